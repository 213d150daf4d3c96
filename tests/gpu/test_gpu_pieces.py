"""Gating, layout, cumsum and the pieces of the chunked form on the GPU, against the reference in fp64."""

from __future__ import annotations

import pytest
import torch
from helpers import make_gdn_inputs, make_packed_gdn_inputs, rel_rms, to_double
from torch import Tensor

import gdn_cuda
from gdn_cuda import reference
from gdn_cuda.reference import recurrent

BF16_ROUNDING = 3e-3


@pytest.mark.parametrize("shape", [(2, 300, 32), (1, 1, 8), (3, 5, 7), (1000, 48), (0, 4, 16), (2, 0, 16), (70000, 1)])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_gating(shape: tuple[int, ...], dtype: torch.dtype, rng: torch.Generator) -> None:
    heads = shape[-1]
    projection = (8 * torch.randn(*shape[:-1], 2 * heads, generator=rng)).to(dtype).cuda()
    a, b = projection.split(heads, dim=-1)
    A_log, dt_bias = torch.randn(heads, generator=rng).cuda(), torch.randn(heads, generator=rng).bfloat16().cuda()
    beta, gate = gdn_cuda.fused_gdn_gating(A_log, dt_bias, a, b, is_var_len=len(shape) == 2)
    expected = reference.fused_gdn_gating(A_log.double(), dt_bias.double(), a.double(), b.double())
    assert beta.dtype == dtype and gate.dtype == torch.float32 and beta.is_contiguous() and gate.is_contiguous()
    if a.numel():
        assert rel_rms(gate, expected[1]) < 3e-7
        assert rel_rms(beta, expected[0]) < {torch.float32: 3e-7, torch.float16: 4e-4, torch.bfloat16: BF16_ROUNDING}[dtype]


def test_gating_is_accurate_everywhere() -> None:
    """Every value relatively, not only in the mean: the tails of softplus and sigmoid, and the threshold at 20."""
    x = torch.cat([torch.linspace(-80, 80, 40000), torch.tensor([20.0, 20.000002, 0.0, -0.0])]).cuda()[:, None]
    zero = torch.zeros(1, device="cuda")
    beta, gate = gdn_cuda.fused_gdn_gating(zero, zero, x, x, is_var_len=True)
    expected_gate = -torch.where(x > 20, x.double(), torch.nn.functional.softplus(x.double(), threshold=1e9))
    assert ((gate.double() - expected_gate) / expected_gate).abs().max() < 1e-6
    assert ((beta.double() - x.double().sigmoid()) / x.double().sigmoid()).abs().max() < 1e-6


@pytest.mark.parametrize("shape", [(130, 32), (2, 3, 65, 7), (1, 8), (5, 1), (2, 0, 3), (2, 1, 2, 3, 33, 40)])
@pytest.mark.parametrize(
    "dtype,alignment", [(torch.float32, 16), (torch.bfloat16, 16), (torch.bfloat16, 128), (torch.float32, 4)]
)
def test_mn_major(shape: tuple[int, ...], dtype: torch.dtype, alignment: int, rng: torch.Generator) -> None:
    x = torch.randn(*shape, generator=rng).to(dtype).cuda()
    for view in (x, x.mT.contiguous().mT):
        result = gdn_cuda.transpose_to_mn_major(view, alignment)
        assert torch.equal(result, x)
        expected = reference.transpose_to_mn_major(x, alignment)
        assert result.shape == expected.shape and result.stride() == expected.stride()
        assert x.numel() == 0 or (result.stride(-2) == 1 and result.stride(-1) * x.element_size() % alignment == 0)
        columns = torch.as_strided(result, expected.mT._base.shape if expected._base is not None else expected.mT.shape,
                                   expected._base.stride() if expected._base is not None else expected.mT.stride())  # fmt: skip
        assert not columns[..., x.shape[-2] :].any()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("head_first", [False, True])
@pytest.mark.parametrize("packed", [False, True])
def test_chunk_cumsum(dtype: torch.dtype, head_first: bool, packed: bool, rng: torch.Generator) -> None:
    H = 37
    lengths = [5, 0, 200, 64, 1]
    cu_seqlens = torch.tensor([0, *lengths]).cumsum(0).int().cuda() if packed else None
    x = -torch.rand(*((sum(lengths),) if packed else (2, 150)), H, generator=rng).to(dtype).cuda()
    x = x.mT.contiguous() if head_first else x
    out = torch.full(x.shape, float("nan"), device="cuda")
    batch, tokens = (len(lengths), sum(lengths)) if packed else (2, 150)
    gdn_cuda.chunk_local_cumsum_bf16(x, out, batch, tokens, H, head_first, cu_seqlens)
    expected = reference.chunk_local_cumsum(x.double(), head_first, cu_seqlens)
    assert rel_rms(out, expected) < 1e-6
    mn_major = gdn_cuda.transpose_to_mn_major(out) if not head_first else out.mT.contiguous().mT
    again = torch.full_like(mn_major, float("nan"))
    gdn_cuda.chunk_local_cumsum_bf16(x, again, batch, tokens, H, head_first, cu_seqlens)
    assert torch.equal(again, out)


def pieces(x: dict[str, Tensor], initial: bool, state_dtype: torch.dtype) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
    """The chunked form from its public pieces; everything they write is poisoned first."""
    q, k, v, cu_seqlens = x["query"], x["key"], x["value"], x.get("cu_seqlens")
    Hv, dv, dk = v.shape[-2], v.shape[-1], k.shape[-1]
    batch, tokens = (x["state"].shape[0], v.shape[-3])
    counts = [-(-tokens // 64)] if cu_seqlens is None else [-(-n // 64) for n in cu_seqlens.diff().tolist()]

    def nan(*shape: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
        return torch.full(shape, float("nan"), dtype=dtype, device="cuda")

    gate = gdn_cuda.transpose_to_mn_major(x["gate"])
    cumulated = gdn_cuda.transpose_to_mn_major(torch.empty_like(x["gate"]))
    gdn_cuda.chunk_local_cumsum_bf16(gate, cumulated, batch, tokens, Hv, False, cu_seqlens)
    beta = gdn_cuda.transpose_to_mn_major(x["beta"])
    u, w, o = nan(*v.shape), nan(*v.shape[:-1], dk), nan(*v.shape)
    gdn_cuda.bf16_gdn_compute_u_w(k, v, u, w, beta, cumulated, cu_seqlens=cu_seqlens)
    uw = {"u": u.clone(), "w": w}
    states = nan(*((batch, *counts) if cu_seqlens is None else (sum(counts),)), Hv, dv, dk, dtype=state_dtype)
    if initial:
        if cu_seqlens is None:
            states[:, 0] = x["state"].to(state_dtype)
        else:
            first = 0
            for n, count in enumerate(counts):
                if count:
                    states[first] = x["state"][n].to(state_dtype)
                first += count
    last = nan(batch, Hv, dv, dk, dtype=torch.float32)
    gdn_cuda.bf16_chunked_seq_state_update(k, u, w, states, last, cumulated, initial, True, cu_seqlens=cu_seqlens)
    gdn_cuda.bf16_gdn_chunked_compute_O(q, states, k, u, o, cumulated, cu_seqlens=cu_seqlens)
    return o, last, uw


@pytest.mark.parametrize("dk,dv", [(128, 128), (64, 64), (96, 192), (256, 256), (40, 24)])
@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("initial", [False, True])
def test_chunked_form_from_its_pieces(dk: int, dv: int, packed: bool, initial: bool, seed: int) -> None:
    options = {
        "Hk": 2,
        "Hv": 4,
        "dk": dk,
        "dv": dv,
        "dtype": torch.bfloat16,
        "device": "cuda",
        "seed": seed,
        "gate_range": (-3, 0),
    }
    x = make_packed_gdn_inputs([70, 64, 1, 130], **options) if packed else make_gdn_inputs(B=2, T=150, **options)  # type: ignore[arg-type]
    if not initial:
        x["state"] = torch.zeros_like(x["state"])
    o, last, uw = pieces(x, initial, torch.float32)
    double = to_double(x)
    cu = x.get("cu_seqlens")
    cumulated = reference.chunk_local_cumsum(double["gate"], False, cu)
    u, w = reference.compute_u_w(double["key"], double["value"], double["beta"], cumulated, cu)
    assert rel_rms(uw["u"], u) < BF16_ROUNDING and rel_rms(uw["w"], w) < BF16_ROUNDING
    expected, expected_state, _ = recurrent(**double)  # type: ignore[arg-type]
    assert rel_rms(o, expected) < 1e-2  # u, w, v' and the output are each rounded to bf16 on the way
    assert rel_rms(last, expected_state) < 1e-2


def test_pieces_without_gate_and_with_bf16_states(seed: int) -> None:
    x = make_gdn_inputs(B=1, T=200, dk=128, dv=128, dtype=torch.bfloat16, device="cuda", seed=seed, gate_range=(0, 0))
    o, last, _ = pieces(x, True, torch.bfloat16)
    expected, expected_state, _ = recurrent(**to_double(x))
    assert rel_rms(o, expected) < 1e-2 and rel_rms(last, expected_state) < 1e-2
