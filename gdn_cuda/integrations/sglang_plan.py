"""What SGLang says of a call beside its arguments, or in other words than our operators."""

from __future__ import annotations

import sys

import torch.nn.functional as F
from torch import Tensor


def deterministic() -> bool:
    """--enable-deterministic-inference: the results of a sequence do not depend on the rest of the batch."""
    context = sys.modules.get("sglang.srt.runtime_context")
    return context is not None and bool(context.get_exec().deterministic.enable_deterministic_inference)


def parents(retrieve_parent_token: Tensor) -> Tensor:
    """The first token continues from the slot, whatever its parent is."""
    return F.pad(retrieve_parent_token[:, 1:], (1, 0), value=-1)
