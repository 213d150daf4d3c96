"""Imports modeling files of transformers so that they use transformers' own functions in torch, with which tests compare ours.
Otherwise they would use those of an installed FLA or causal_conv1d, which need a GPU."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterable

import pytest


def import_models(models: Iterable[str]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        for package in ("fla", "causal_conv1d"):
            patch.setitem(sys.modules, package, None)
        for model in models:
            importlib.import_module(f"transformers.models.{model}.modeling_{model}")
