"""Gating, layout, cumsum and the parts of the chunked form, against the reference in fp64."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from devices import Device
from gdn_inputs import take_sequence, to_double
from helpers import rel_rms
from torch import Tensor

import gdn_cuda
from gdn_cuda import reference
from gdn_cuda.gdn.inputs import make_gdn_inputs, make_packed_gdn_inputs
from gdn_cuda.reference import recurrent

BF16_ROUNDING = 3e-3


@pytest.fixture(autouse=True)
def on_kernels(device: Device) -> Iterator[None]:
    with device.kernels():
        yield


@pytest.mark.parametrize("shape", [(2, 300, 32), (1, 1, 8), (3, 5, 7), (1000, 48), (0, 4, 16), (2, 0, 16), (70000, 1)])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_gating(shape: tuple[int, ...], dtype: torch.dtype, device: Device, rng: torch.Generator) -> None:
    heads = shape[-1]
    projection = (8 * torch.randn(*shape[:-1], 2 * heads, generator=rng)).to(device.name, dtype)
    a, b = projection.split(heads, dim=-1)
    A_log, dt_bias = (torch.randn(heads, generator=rng).to(device.name, each) for each in (torch.float32, torch.bfloat16))
    beta, gate = gdn_cuda.fused_gdn_gating(A_log, dt_bias, a, b, is_var_len=len(shape) == 2)
    expected = reference.fused_gdn_gating(A_log.double(), dt_bias.double(), a.double(), b.double())
    assert beta.dtype == dtype and gate.dtype == torch.float32 and beta.is_contiguous() and gate.is_contiguous()
    if a.numel():
        assert rel_rms(gate, expected[1]) < 3e-7
        assert rel_rms(beta, expected[0]) < {torch.float32: 3e-7, torch.float16: 4e-4, torch.bfloat16: BF16_ROUNDING}[dtype]


def test_gating_is_accurate_over_the_whole_range_of_its_inputs(device: Device) -> None:
    """Every value relatively, not only in the mean: the tails of softplus and sigmoid, and the threshold at 20."""
    x = torch.cat([torch.linspace(-80, 80, device.size(4000, 40000)), torch.tensor([20.0, 20.000002, 0.0, -0.0])]).to(
        device.name
    )[:, None]
    zero = torch.zeros(1, device=device.name)
    beta, gate = gdn_cuda.fused_gdn_gating(zero, zero, x, x, is_var_len=True)
    expected_gate = -torch.where(x > 20, x.double(), torch.nn.functional.softplus(x.double(), threshold=1e9))
    assert ((gate.double() - expected_gate) / expected_gate).abs().max() < 1e-6
    assert ((beta.double() - x.double().sigmoid()) / x.double().sigmoid()).abs().max() < 1e-6


@pytest.mark.parametrize("shape", [(130, 32), (2, 3, 65, 7), (1, 8), (5, 1), (2, 0, 3), (2, 1, 2, 3, 33, 40)])
@pytest.mark.parametrize(
    "dtype,alignment", [(torch.float32, 16), (torch.bfloat16, 16), (torch.bfloat16, 128), (torch.float32, 4)]
)
def test_mn_major(shape: tuple[int, ...], dtype: torch.dtype, alignment: int, device: Device, rng: torch.Generator) -> None:
    x = torch.randn(*shape, generator=rng).to(device.name, dtype)
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
def test_chunk_cumsum(dtype: torch.dtype, head_first: bool, packed: bool, device: Device, rng: torch.Generator) -> None:
    H = 37
    lengths = [5, 0, 200, 64, 1]
    cu_seqlens = torch.tensor([0, *lengths]).cumsum(0).int().to(device.name) if packed else None
    x = -torch.rand(*((sum(lengths),) if packed else (2, 150)), H, generator=rng).to(device.name, dtype)
    x = x.mT.contiguous() if head_first else x
    out = torch.full(x.shape, float("nan"), device=device.name)
    batch, tokens = (len(lengths), sum(lengths)) if packed else (2, 150)
    gdn_cuda.chunk_local_cumsum_bf16(x, out, batch, tokens, H, head_first, cu_seqlens)
    expected = reference.chunk_local_cumsum(x.double(), head_first, cu_seqlens)
    assert rel_rms(out, expected) < 1e-6
    mn_major = gdn_cuda.transpose_to_mn_major(out) if not head_first else out.mT.contiguous().mT
    again = torch.full_like(mn_major, float("nan"))
    gdn_cuda.chunk_local_cumsum_bf16(x, again, batch, tokens, H, head_first, cu_seqlens)
    assert torch.equal(again, out)


# ---- The chunked form from its parts

NAN = float("nan")
LAYOUTS = ("contiguous", "strided", "unaligned")


def framed(shape: tuple[int, ...], layout: str, dtype: torch.dtype, device: torch.device) -> tuple[Tensor, Tensor]:
    """A tensor of NaN, and the wider one that contains it (in every row, unless it is contiguous)."""
    margin = {"contiguous": 0, "strided": 8, "unaligned": 1}[layout]  # unaligned: rows do not start on 16 bytes
    wide = torch.full((*shape[:-1], shape[-1] + 2 * margin), NAN, dtype=dtype, device=device)
    return wide[..., margin : margin + shape[-1]], wide


def laid_out(x: Tensor, layout: str) -> Tensor:
    view, _ = framed(x.shape, layout, x.dtype, x.device)
    return view.copy_(x)


def chunk_counts(x: dict[str, Tensor]) -> list[int]:
    lengths = x["cu_seqlens"].diff().tolist() if "cu_seqlens" in x else [x["value"].shape[1]] * x["value"].shape[0]
    return [-(-n // 64) for n in lengths]


def chunk_steps(
    x: dict[str, Tensor], initial: bool = True, state_dtype: torch.dtype = torch.float32, layout: str = "contiguous"
) -> dict[str, Tensor]:
    """The chunked form by its public parts; all outputs and the memory around them are NaN first."""
    q, k, v = (laid_out(x[name], layout) for name in ("query", "key", "value"))
    cu_seqlens = x.get("cu_seqlens")
    Hv, dv, dk = v.shape[-2], v.shape[-1], k.shape[-1]
    batch, tokens, counts = x["state"].shape[0], v.shape[-3], chunk_counts(x)
    spare = 0 if cu_seqlens is None else 2  # slots without a chunk

    gate = gdn_cuda.transpose_to_mn_major(x["gate"])
    cumulated = gdn_cuda.transpose_to_mn_major(torch.empty_like(x["gate"]))
    gdn_cuda.chunk_local_cumsum_bf16(gate, cumulated, batch, tokens, Hv, False, cu_seqlens)
    beta = gdn_cuda.transpose_to_mn_major(x["beta"])
    (u, u_frame), (w, w_frame), (o, o_frame) = (
        framed((*v.shape[:-1], columns), layout, v.dtype, v.device) for columns in (dv, dk, dv)
    )
    gdn_cuda.bf16_gdn_compute_u_w(k, v, u, w, beta, cumulated, cu_seqlens=cu_seqlens)
    result = {"u": u.clone(), "w": w.clone()}

    offset = layout == "unaligned"  # states are contiguous, so only their start can be unaligned
    slots = torch.full((offset + (sum(counts) + spare) * Hv * dv * dk,), NAN, dtype=state_dtype, device=v.device)
    states = slots[offset:].view(sum(counts) + spare, Hv, dv, dk)
    firsts = [sum(counts[:n]) for n in range(batch)]
    if initial:
        for n, first in enumerate(firsts):
            if counts[n]:
                states[first] = x["state"][n].to(state_dtype)
    last = torch.full((offset + batch * Hv * dv * dk,), NAN, dtype=state_dtype, device=v.device)[offset:].view(
        batch, Hv, dv, dk
    )
    shaped = states if cu_seqlens is not None else states.view(batch, -(-tokens // 64), Hv, dv, dk)
    gdn_cuda.bf16_chunked_seq_state_update(k, u, w, shaped, last, cumulated, initial, True, cu_seqlens=cu_seqlens)
    gdn_cuda.bf16_gdn_chunked_compute_O(q, shaped, k, u, o, cumulated, cu_seqlens=cu_seqlens)
    assert states[sum(counts) :].isnan().all()
    result |= {"v_new": u.clone(), "states": states[: sum(counts)].clone(), "o": o.clone(), "last": last}
    for view, frame in ((u, u_frame), (w, w_frame), (o, o_frame)):
        view.fill_(0)
        assert frame.isnan().sum() == frame.numel() - view.numel()
    return result


def check_chunk_steps(x: dict[str, Tensor], got: dict[str, Tensor], bound: float, state_bound: float) -> None:
    """u and w against the chunk's definition, output and final state against the recurrence."""
    double, cu = to_double(x), x.get("cu_seqlens")
    cumulated = reference.chunk_local_cumsum(double["gate"], False, cu)
    u, w = reference.compute_u_w(double["key"], double["value"], double["beta"], cumulated, cu)
    assert rel_rms(got["u"], u) < BF16_ROUNDING and rel_rms(got["w"], w) < BF16_ROUNDING
    expected, expected_state, _ = recurrent(**double)  # type: ignore[arg-type]
    empty = torch.tensor(chunk_counts(x), device=expected_state.device) == 0  # which have no slot to start from
    expected_state = expected_state.masked_fill(empty[:, None, None, None], 0)
    assert rel_rms(got["o"], expected) < bound
    assert rel_rms(got["last"], expected_state) < state_bound


def bf16_inputs(device: Device, lengths: list[int] | None = None, **options: object) -> dict[str, Tensor]:
    heads = device.size({"Hk": 1, "Hv": 2}, {"Hk": 2, "Hv": 4})
    options = {"dtype": torch.bfloat16, "device": device.name, "gate_range": (-3, 0)} | heads | options
    return make_gdn_inputs(**options) if lengths is None else make_packed_gdn_inputs(lengths, **options)  # type: ignore[arg-type]


# u, w, v', S, P and the output are each rounded to bf16, with an error of 1.7e-3 in the result.
CHAIN, CHAIN_STATE = 5e-3, 4e-3
RAGGED = [70, 0, 64, 1, 130, 0, 63]


@pytest.mark.parametrize(
    "dk,dv", [(128, 128), (64, 64), (96, 192), (256, 256), (40, 24), (192, 128), (128, 256), (8, 8), (136, 72)]
)
@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("initial", [False, True])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_chunked_form_by_its_steps(
    dk: int, dv: int, packed: bool, initial: bool, layout: str, device: Device, seed: int
) -> None:
    extent = {"lengths": RAGGED} if packed else {"B": device.size(1, 2), "T": 150}
    x = bf16_inputs(device, **extent, dk=dk, dv=dv, seed=seed)  # type: ignore[arg-type]
    if not initial:
        x["state"] = torch.zeros_like(x["state"])
    check_chunk_steps(x, chunk_steps(x, initial, layout=layout), CHAIN, CHAIN_STATE)


@pytest.mark.parametrize("T", [1, 63, 64, 65, 320, 4096])
def test_lengths_of_sequences(T: int, device: Device, seed: int) -> None:
    if device.size(320, T) < T:
        pytest.skip("takes minutes in the emulator")
    x = bf16_inputs(device, B=2, T=T, dk=128, dv=128, seed=seed)
    check_chunk_steps(x, chunk_steps(x), CHAIN, CHAIN_STATE)


def test_chunk_steps_of_no_tokens(device: Device) -> None:
    x = bf16_inputs(device, B=2, T=0, dk=128, dv=128)
    got = chunk_steps(x)
    assert got["o"].shape == x["value"].shape and not got["last"].any()


@pytest.mark.parametrize("key_mode", ["random", "repeated", "parallel", "zero"])
@pytest.mark.parametrize("gate_range", [(-3, 0), (0, 0), (-100, 0)])
@pytest.mark.parametrize("dk", [128, 256])
def test_chunk_steps_with_negative_eigenvalues(
    key_mode: str, gate_range: tuple[float, float], dk: int, device: Device, seed: int
) -> None:
    """beta to 2: with keys that repeat, or are that differ by one percent, T alternates and w cancels."""
    x = bf16_inputs(
        device, B=1, T=device.size(200, 700), dk=dk, dv=128, gate_range=gate_range, beta_max=2.0, key_mode=key_mode, seed=seed
    )
    check_chunk_steps(x, chunk_steps(x), 8e-3, 1e-2)


@pytest.mark.parametrize("dk", [64, 128, 256])
def test_chunk_steps_with_bf16_states(dk: int, device: Device, seed: int) -> None:
    x = bf16_inputs(device, B=1, T=200, dk=dk, dv=128, seed=seed)
    check_chunk_steps(x, chunk_steps(x, state_dtype=torch.bfloat16), CHAIN, CHAIN_STATE)


def test_chunk_steps_without_gate(device: Device, seed: int) -> None:
    """No gate is the same as gates of zero, bit by bit."""
    x = bf16_inputs(device, B=2, T=150, dk=128, dv=128, gate_range=(0, 0), seed=seed)
    gated = chunk_steps(x)
    beta = gdn_cuda.transpose_to_mn_major(x["beta"])
    u, w, o = (torch.full_like(x["value"], NAN) for _ in range(3))
    states, last = (
        torch.full_like(gated["states"].view(2, 3, *gated["last"].shape[1:]), NAN),
        torch.full_like(gated["last"], NAN),
    )
    states[:, 0] = x["state"]
    gdn_cuda.bf16_gdn_compute_u_w(x["key"], x["value"], u, w, beta)
    assert torch.equal(u, gated["u"]) and torch.equal(w, gated["w"])
    gdn_cuda.bf16_chunked_seq_state_update(x["key"], u, w, states, last, is_initial_state=True)
    gdn_cuda.bf16_gdn_chunked_compute_O(x["query"], states, x["key"], u, o)
    assert torch.equal(last, gated["last"]) and torch.equal(o, gated["o"])


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_sequence_has_the_same_bits_alone_and_beside_nan(layout: str, device: Device, seed: int) -> None:
    x = bf16_inputs(device, RAGGED, dk=128, dv=128, seed=seed)
    together = chunk_steps(x, layout=layout)
    counts = chunk_counts(x)
    poisoned = x | {name: x[name].clone() for name in ("query", "key", "value", "beta", "gate", "state")}
    for n in (2, 4):
        first, last = x["cu_seqlens"][n].item(), x["cu_seqlens"][n + 1].item()
        for name in ("query", "key", "value", "beta", "gate"):
            poisoned[name][first:last] = NAN
        poisoned["state"][n] = NAN
    beside = chunk_steps(poisoned, layout=layout)
    for n in (0, 3, 6):
        span, chunks = slice(x["cu_seqlens"][n], x["cu_seqlens"][n + 1]), slice(sum(counts[:n]), sum(counts[: n + 1]))
        alone = chunk_steps(take_sequence(x, n))
        for name in ("u", "w", "v_new", "o"):
            assert torch.equal(together[name][span], alone[name][0]) and torch.equal(beside[name][span], alone[name][0])
        assert torch.equal(together["states"][chunks], alone["states"]) and torch.equal(beside["last"][n], alone["last"][0])


def test_tokens_of_no_sequence_are_not_written(device: Device, seed: int) -> None:
    x = bf16_inputs(device, [70, 64], dk=128, dv=128, seed=seed)
    x |= {name: torch.cat([x[name], torch.full_like(x[name][:9], NAN)]) for name in ("query", "key", "value", "beta", "gate")}
    got = chunk_steps(x)
    for name in ("u", "w", "v_new", "o"):
        assert got[name][:134].isfinite().all() and got[name][134:].isnan().all()


def test_many_short_sequences(device: Device, seed: int) -> None:
    """More than the 32 that a warp reads at once."""
    x = bf16_inputs(
        device, [n % 5 * 40 for n in range(100)], Hk=1, Hv=device.size(1, 4), dk=64, dv=device.size(8, 64), seed=seed
    )
    check_chunk_steps(x, chunk_steps(x), CHAIN, CHAIN_STATE)
