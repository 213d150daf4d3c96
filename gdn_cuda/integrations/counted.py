"""Calls that a host makes, counted: how many ran here, and how many its own kernel ran instead, with the reason."""

from __future__ import annotations

import functools
import logging
from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

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
    """Our operators' are "function: argument: expected X, got Y"."""
    return isinstance(error, Declined) or any(": expected " in word for word in error.args if isinstance(word, str))


def counted(name: str, ours: Callable[..., Any], host: Callable[..., Any]) -> Callable[..., Any]:
    """A function with the host's signature that does what `run` does."""

    @functools.wraps(host)
    def call(*args: Any, **kwargs: Any) -> Any:
        return run(name, ours, host, args, kwargs)

    return call


def run(name: str, ours: Callable[..., Any], host: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """Calls `ours`, and `host` where it is Declined or an operator of ours refuses its arguments: that comes before anything is
    written, so the host's kernel finds them as they were. Any other error is the caller's."""
    try:
        result = ours(*args, **kwargs)
    except ValueError as refusal:
        if not _is_refusal(refusal):
            raise
        reason = refusal.args[0].partition(", got ")[0]  # what was given may differ in every call
    else:
        count(name)
        return result
    count(name, reason)
    return host(*args, **kwargs)


def decline_gradients(*tensors: Tensor | None) -> None:
    if torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in tensors):
        raise Declined("gradients are needed")


def decline_export() -> None:
    # What torch.compiler.is_exporting() reads; to that call itself, torch.compile answers True.
    if getattr(torch.compiler, "_is_exporting_flag", False):
        raise Declined("torch.export runs")
