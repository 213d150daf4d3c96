"""causal-conv1d's tests, with the functions of `gdn_cuda.compat.causal_conv1d` in the package's place.

The references are the package's own, in torch; its compiled kernels are not installed. Gradients are compared too.
"""

from __future__ import annotations

import functools
import sys
from types import ModuleType
from typing import Any

from gdn_cuda.compat import causal_conv1d as ours
from gdn_cuda.integrations import counted

EXCLUDED: dict[str, str] = {}
# 18,000 cases of a few milliseconds
ONE_OF = {
    "test_causal_conv1d": 8,
    "test_causal_conv1d_update": 4,
    "test_causal_conv1d_update_with_batch_gather": 4,
    "test_causal_conv1d_varlen": 4,
}


def prepare() -> None:
    sys.modules["causal_conv1d_cuda"] = ModuleType("causal_conv1d_cuda")  # the package imports it to call its kernels
    import causal_conv1d

    ours.install()
    assert causal_conv1d.causal_conv1d_fn is ours.causal_conv1d_fn


def _counted(name: str) -> Any:
    function = getattr(ours, name)

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        counted.count(f"causal_conv1d.{name}")
        return function(*args, **kwargs)

    return call


def adapt(module: ModuleType) -> None:
    for name in ("causal_conv1d_fn", "causal_conv1d_update", "causal_conv1d_varlen_states"):
        setattr(module, name, _counted(name))
