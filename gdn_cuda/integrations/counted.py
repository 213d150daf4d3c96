"""Counts the calls of a host: how many ran here, and how many its own kernel ran instead, with the reason."""

from __future__ import annotations

import functools
import logging
from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ..operators.autograd import needs_gradients

logger = logging.getLogger("gdn_cuda")
_OURS = "gdn_cuda"
_counts: dict[str, Counter[str]] = {}


class Declined(ValueError):
    """This call is one for the host's own kernel."""


def calls(integration: str | None = None) -> dict[str, dict[str, int]]:
    """By function ("transformers.chunk_gated_delta_rule"): how many calls ran here ("gdn_cuda"), and how many the host's own
    kernel ran, by reason. Calls in compiled code are not counted."""
    return {name: dict(count) for name, count in _counts.items() if integration in (None, name.partition(".")[0])}


def reset_calls() -> None:
    _counts.clear()


def count(name: str, reason: str = _OURS) -> None:
    """The first call with a reason is logged."""
    if torch.compiler.is_compiling():
        return
    counter = _counts.setdefault(name, Counter())
    counter[reason] += 1
    if reason != _OURS and counter[reason] == 1:
        logger.warning("%s: the host's own kernel runs: %s", name, reason)


def _is_refusal(error: ValueError) -> bool:
    """Whether the error has the form of our operators' errors, "function: argument: expected X, got Y"."""
    return isinstance(error, Declined) or any(": expected " in word for word in error.args if isinstance(word, str))


def counted(name: str, ours: Callable[..., Any], host: Callable[..., Any]) -> Callable[..., Any]:
    """A function with the host's signature that calls `run`."""

    @functools.wraps(host)
    def call(*args: Any, **kwargs: Any) -> Any:
        return run(name, ours, host, args, kwargs)

    return call


def run(name: str, ours: Callable[..., Any], host: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """Calls `ours`, or `host` if `ours` raises Declined or one of our operators refuses its arguments. Both happen before
    anything is written, so the host's kernel gets unchanged arguments. Any other error goes to the caller."""
    try:
        result = ours(*args, **kwargs)
    except ValueError as refusal:
        if not _is_refusal(refusal):
            raise
        reason = refusal.args[0].partition(", got ")[0]  # the rest of the message may differ in every call
    else:
        count(name)
        return result
    count(name, reason)
    return host(*args, **kwargs)


def decline_gradients(*tensors: Tensor | None) -> None:
    if needs_gradients(*tensors):
        raise Declined("gradients are needed")


def decline_export() -> None:
    # The flag that torch.compiler.is_exporting() returns; torch.compile replaces a call of that function by True.
    if getattr(torch.compiler, "_is_exporting_flag", False):
        raise Declined("torch.export runs")
