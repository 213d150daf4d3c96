"""RecurrentGemma of transformers on `rglru_scan`.

    from transformers.models.recurrent_gemma.modeling_recurrent_gemma import RecurrentGemmaRglru
    RecurrentGemmaRglru.forward = gdn_cuda.compat.recurrent_gemma.rglru_forward

transformers' `_rnn_scan` takes a, and inputs that are already multiplied by √(1 − a²). `rglru_forward` passes the gates and
the unscaled inputs to the scan instead, so the multiplier and its bounded derivative are computed in the kernel, too.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..scan import rglru_scan

_POWER, _MAX_SQRT_GRADIENT = 8.0, 1000.0


def rglru_forward(self: Any, activations: Tensor, position_ids: Tensor) -> Tensor:
    """Computes and stores the same as RecurrentGemmaRglru.forward, for a module `self` of that class."""
    B, L, width = activations.shape
    blocks = activations.unflatten(-1, (self.num_attention_heads, self.block_width))

    def gate(weight: Tensor, bias: Tensor) -> Tensor:
        return torch.sigmoid(torch.einsum("blhi,hij->blhj", blocks, weight) + bias).flatten(-2)

    gated = activations * gate(self.input_gate_weight, self.input_gate_bias)
    rate = gate(self.recurrent_gate_weight, self.recurrent_gate_bias)
    decay = torch.exp(-_POWER * torch.nn.functional.softplus(self.recurrent_param.float()))
    # Without a state the scan would treat the first token as the beginning of a sequence; here positions decide that.
    state = self.recurrent_states
    if state is None:
        state = activations.new_zeros((B, width), dtype=torch.float32)
    out, last = rglru_scan(
        gated.transpose(1, 2),
        rate.transpose(1, 2),
        decay[:, None],
        True,
        initial_state=state.to(activations.device)[..., None],
        reset=(position_ids == 0).expand(B, L),
        first_multiplier=True,
        max_sqrt_gradient=_MAX_SQRT_GRADIENT,
    )
    self.recurrent_states = last[..., 0]
    return out.transpose(1, 2)
