"""Sizes beyond 32 bits reach the kernels untruncated or are refused. The tensors are expanded or meta and need no memory."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from torch import Tensor

import gdn_cuda
from gdn_cuda.operators.registration import check
from gdn_cuda.operators.schema import Schema

WRAPS = 2**32 + 1  # truncated to 32 bits, this is 1
BF16, FP32, INT = torch.bfloat16, torch.float32, torch.int32


def read(*shape: int, dtype: torch.dtype = BF16, device: str = "meta") -> Tensor:
    """An expanded tensor with a contiguous last dimension."""
    return torch.zeros(*(1 for _ in shape[:-1]), shape[-1], dtype=dtype, device=device).expand(shape)


def written(*shape: int, dtype: torch.dtype = BF16) -> Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


def gates(B: int, T: int, H: int, dtype: torch.dtype = FP32) -> Tensor:
    return written(B, H, T, dtype=dtype).transpose(1, 2)


def decode(**changes: Any) -> tuple[Any, ...]:
    row = read(1, 1, 1, 8)
    arguments = {
        "query": row,
        "key": row,
        "value": row,
        "a": read(1, 1, 1),
        "b": read(1, 1, 1),
        "A_log": read(1),
        "dt_bias": read(1),
        "state_pool": written(2, 1, 8, 8),
        "state_indices": None,
        "cu_seqlens": None,
        "num_accepted_tokens": None,
        "null_slot": None,
        "step_states": None,
        "step_slots": None,
        "parents": None,
        "state_scales": None,
        "step_scales": None,
        "has_initial_state": None,
        "write_indices": None,
        "update_state": True,
        "scale": None,
        "lower_bound": None,
        "use_qk_l2norm": True,
        "allow_negative_eigenvalues": False,
        "out": written(1, 1, 1, 8),
    }
    assert changes.keys() <= arguments.keys()
    arguments |= changes
    return tuple(arguments[name] for name in Schema.of("fused_decode").arguments)


def cumsum(x: Tensor, offsets: Tensor | None = None) -> tuple[Any, ...]:
    return x, written(*x.shape, dtype=FP32), False, offsets


def u_w(B: int, T: int, H: int) -> tuple[Any, ...]:
    results = written(B, T, H, 8), written(B, T, H, 8)
    return read(B, T, 1, 8), read(B, T, H, 8), *results, gates(B, T, H), None, None


def outputs(B: int, T: int, H: int) -> tuple[Any, ...]:
    states = written(B, -(-T // 64), H, 8, 8, dtype=FP32)
    return read(B, T, 1, 8), states, read(B, T, 1, 8), read(B, T, H, 8), written(B, T, H, 8), None, None


def recurrent(*, steps: int) -> tuple[Any, ...]:
    row = read(1, 1, 1, 8)
    state = torch.zeros(1, 1, 1, 8, 8, device="meta").expand(1, steps, 1, 8, 8)
    return row, row, row, 2, written(1, 1, 1, 8), state, read(1, 1, 1), read(1, 1, 1, dtype=FP32)


REFUSED = {
    "mn-major": ("transpose_to_mn_major", (read(WRAPS, 1, 1, device="cpu"), 16), "input"),
    "mn-major-product": ("transpose_to_mn_major", (read(2**16, 2**16, 1, 1), 16), "input"),
    "u-w": ("bf16_gdn_compute_u_w", u_w(2**16, 64, 2**15), "v"),
    "compute-o": ("bf16_gdn_chunked_compute_O", outputs(2**16, 64, 2**15), "u"),
    "cumsum-chunks": ("chunk_local_cumsum_bf16", cumsum(read(2**26, 2**11 + 1, 1)), "input"),
    "cumsum-heads": ("chunk_local_cumsum_bf16", cumsum(read(1, 1, WRAPS)), "input"),
    "cumsum-tokens": ("chunk_local_cumsum_bf16", cumsum(read(0, WRAPS, 1)), "input"),
    "cumsum-batch": ("chunk_local_cumsum_bf16", cumsum(read(1, 1), read(WRAPS, dtype=INT)), "input"),
    "gating-tokens": ("fused_gdn_gating", (read(1), read(1), read(1, WRAPS, 1), read(1, WRAPS, 1)), "a"),
    "gating-no-batch": ("fused_gdn_gating", (read(1), read(1), read(0, WRAPS, 1), read(0, WRAPS, 1)), "a"),
    "kda-gating-tokens": ("fused_kda_gating", (read(0, WRAPS, 1, 1), read(1), None, None), "a"),
    "kda-gating-channels": ("fused_kda_gating", (read(1, 2**16, 2**16), read(2**16), None, None), "a"),
    "columns-of-slots": ("fused_decode", decode(state_indices=read(1, WRAPS, dtype=INT)), "state_indices"),
    "slots": ("fused_decode", decode(state_pool=written(WRAPS, 1, 8, 8), state_indices=read(1, dtype=INT)), "state_pool"),
    "step-rows": (
        "fused_decode",
        decode(step_states=written(WRAPS, 1, 1, 8, 8), step_slots=read(1, dtype=INT)),
        "step_states",
    ),
    "steps": ("fused_decode", decode(step_states=written(1, WRAPS, 1, 8, 8), step_slots=read(1, dtype=INT)), "step_states"),
    "steps-of-a-verify": ("recurrent_forward", recurrent(steps=WRAPS), "state"),
    "tokens": ("recurrent_forward", (*(read(0, WRAPS, 1, 8),) * 3, 0, written(0, WRAPS, 1, 8), None, read(0, WRAPS, 1),
                                     read(0, WRAPS, 1, dtype=FP32)), "query"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_sizes_beyond_32_bits_are_refused_where_the_kernel_counts_in_32(name: str) -> None:
    operator, arguments, argument = REFUSED[name]
    with pytest.raises(ValueError, match=rf"^{operator}: {argument}: expected .*, got .*"):
        check(operator, arguments)


FITS = {
    "mn-major": ("transpose_to_mn_major", (read(2**31 - 1, 1, 1, device="cpu"), 16)),
    "mn-major-rows": ("transpose_to_mn_major", (read(1, WRAPS, 1), 16)),  # the kernel loops over rows
    "mn-major-columns": ("transpose_to_mn_major", (read(1, 1, WRAPS), 16)),
    "u-w": ("bf16_gdn_compute_u_w", u_w(2**16 - 1, 64, 2**15)),
    "compute-o": ("bf16_gdn_chunked_compute_O", outputs(2**16 - 1, 64, 2**15)),
    "cumsum-chunks": ("chunk_local_cumsum_bf16", cumsum(read(2**25, 2**12 - 64, 1))),
    "decode": ("fused_decode", decode()),
    "slots": ("fused_decode", decode(state_pool=written(2**31 - 1, 1, 8, 8), state_indices=read(1, dtype=INT))),
    "steps-of-a-verify": ("recurrent_forward", recurrent(steps=2**31 - 1)),
}


@pytest.mark.parametrize("name", FITS)
def test_the_largest_sizes_that_fit_are_accepted(name: str) -> None:
    check(*FITS[name])


@pytest.mark.parametrize("device", ["cpu", "meta"])
@pytest.mark.parametrize("alignment", [0, -16, 3, 2**63 - 2])
def test_an_impossible_alignment_is_refused(device: str, alignment: int) -> None:
    x = torch.zeros(3, 5, dtype=BF16, device=device)
    with pytest.raises(ValueError, match=re.escape("transpose_to_mn_major: alignment: expected ")):
        gdn_cuda.transpose_to_mn_major(x, alignment)


def test_a_huge_alignment_does_not_overflow() -> None:
    x = torch.zeros(3, 5, dtype=BF16)
    with pytest.raises(
        ValueError, match="alignment: expected an alignment for which the result has fewer than 2\\^63 bytes, got 46116"
    ):
        gdn_cuda.transpose_to_mn_major(x, 2**62)  # five columns of 2^62 bytes
    columns = gdn_cuda.transpose_to_mn_major(x.to("meta"), 2**60)
    assert columns.shape == (3, 5) and columns.stride() == (1, 2**59)
