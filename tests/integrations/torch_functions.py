"""Imports modeling files of transformers such that their functions are transformers' own in torch, which are what ours are
compared with: those of an installed FLA or causal_conv1d, which it would take, need a GPU."""

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
