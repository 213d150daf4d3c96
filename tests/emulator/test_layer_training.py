"""A GatedDeltaNet layer's forward and backward by the kernels of GPUs, in the emulator, against the definition in fp64."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from emulated import emulated
from layer_cases import HIDDEN, check, layer

KERNELS = {
    "layers/split_columns",
    "layers/split_backward",
    "conv/causal_conv_channels_last",
    "conv/causal_conv_backward_columns",
    "gdn/chunk_gates_backward",
    "layers/rms_norm",
    "layers/rms_norm_backward",
}
CHAINS = {
    "h200": {"gdn/backward_prepare", "gdn/backward_chain", "gdn/backward_gradients"},
    "a100": {"gdn/backward_mma_states", "gdn/backward_mma_gradients"},
}
DEVICES = {"h200": {}, "a100": {"capability": 80, "multiprocessors": 108, "shared_bytes": 163 << 10}}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(
    "options", [{}, {"layout": "qwen3_5", "allow_negative_eigenvalues": True, "conv_bias": True}], ids=["qwen3_next", "qwen3_5"]
)
def test_gradients(options: dict[str, Any], device: str, dtype: torch.dtype, seed: int) -> None:
    """A padded batch, and packed sequences of no, one and many tokens with tokens of no sequence after them."""
    made = layer(seed, (1, 2), 64, 16, dtype=dtype, **options)
    for lengths in (None, [70, 0, 1, 9]):
        x = torch.randn(1, 84, HIDDEN, generator=torch.Generator().manual_seed(seed)).to(dtype)
        with emulated(**DEVICES[device]) as launched:
            check(made, x, seed, lengths)
        assert {name.partition("{")[0] for name in launched()} >= KERNELS | CHAINS[device]
