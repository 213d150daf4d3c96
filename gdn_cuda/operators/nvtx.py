"""GDN_NVTX=1: an NVTX range around every call of an operator, so that a profile names it ("gdn_cuda.fused_decode")."""

from __future__ import annotations

import logging
import os
from typing import Any

import torch

logger = logging.getLogger("gdn_cuda")


def ranged(name: str, overload: Any) -> Any:
    """The operator itself if ranges are not requested, so that calls cost nothing more."""
    return _Ranged(name, overload) if os.environ.get("GDN_NVTX") else overload


class _Ranged:
    def __init__(self, name: str, overload: Any):
        self._range, self._overload = f"gdn_cuda.{name}", overload
        self._enabled: bool | None = None

    def __call__(self, *args: Any) -> Any:
        if torch.compiler.is_compiling() or not self._is_enabled():
            return self._overload(*args)
        torch.cuda.nvtx.range_push(self._range)
        try:
            return self._overload(*args)
        finally:
            torch.cuda.nvtx.range_pop()

    def __getattr__(self, name: str) -> Any:
        """Other attributes of the operator: its schema, for instance."""
        return getattr(self._overload, name)

    def _is_enabled(self) -> bool:
        """Read at the first call, because variables are read at first use."""
        if self._enabled is None:
            self._enabled = _enabled()
        return self._enabled


def _enabled() -> bool:
    from .. import _C

    if not _C.env()["nvtx"]:
        return False
    try:
        torch.cuda.nvtx.mark("gdn_cuda")
    except RuntimeError as error:
        logger.warning("GDN_NVTX: no ranges: %s", error)
        return False
    return True
