"""Mamba-2's functions of gdn_cuda.compat.mamba_ssm: results and gradients against their definition in fp64, and errors."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from helpers import rel_rms
from mamba2_layer import convolution, normed
from torch import Tensor

from gdn_cuda.compat import mamba_ssm, mamba_ssm_ssd
from gdn_cuda.hosts import verified

# Parameters in the source of mamba_ssm, commit e9594ce; its release 2.3.2 has no state_dtype.
_SCAN = "x, dt, A, B, C, chunk_size, D=None, z=None, dt_bias=None, "
_LIMIT = "dt_limit=(0.0, inf)"
_LAYER = "zxbcdt, conv1d_weight, conv1d_bias, dt_bias, A, D, chunk_size, "
_NORM = "rmsnorm_weight=None, rmsnorm_eps=1e-06, outproj_weight=None, outproj_bias=None, headdim=None, ngroups=1, "
_NORM += "norm_before_gate=True"
SIGNATURES = {
    "mamba_chunk_scan": _SCAN + "dt_softplus=False",
    "mamba_chunk_scan_combined": _SCAN + "initial_states=None, seq_idx=None, cu_seqlens=None, dt_softplus=False, "
    f"{_LIMIT}, return_final_states=False, return_varlen_states=False, state_dtype=None",
    "mamba_conv1d_scan_ref": "xBC, conv1d_weight, conv1d_bias, dt, A, chunk_size, D=None, z=None, dt_bias=None, "
    f"dt_softplus=False, {_LIMIT}, activation='silu', headdim=None, ngroups=1",
    "mamba_split_conv1d_scan_combined": _LAYER + f"initial_states=None, seq_idx=None, {_LIMIT}, return_final_states=False, "
    f"activation='silu', {_NORM}, state_dtype=None",
    "mamba_split_conv1d_scan_ref": _LAYER + f"{_LIMIT}, activation='silu', {_NORM}",
    "ssd_selective_scan": f"{_SCAN.replace('chunk_size, ', '')}dt_softplus=False, {_LIMIT}",
}
BATCH, L, H, P, G, N = 2, 9, 4, 3, 2, 5
CHANNELS = H * P + 2 * G * N
LIMIT = (0.2, 0.9)


@pytest.mark.parametrize("name", mamba_ssm_ssd.__all__)
def test_parameters_and_defaults_are_those_of_mamba_ssm(name: str) -> None:
    assert verified.parameters(getattr(mamba_ssm, name)) == SIGNATURES[name] and name in mamba_ssm.__all__


def literal(
    x: Tensor,
    dt: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor | None = None,
    z: Tensor | None = None,
    initial: Tensor | None = None,
    reset: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """(out, last state) token by token; dt (B, L, H, P) after its softplus, A (H, P, N), D (H, P). `reset` (B, L): tokens
    before which the state is zeroed."""
    B, C = (y.repeat_interleave(H // G, 2) for y in (B, C))
    state = x.new_zeros(x.shape[0], H, P, N) if initial is None else initial
    rows = []
    for t in range(x.shape[1]):
        if reset is not None:
            state = torch.where(reset[:, t, None, None, None], 0, state)
        step = dt[:, t, ..., None]
        state = torch.exp(step * A) * state + step * x[:, t, ..., None] * B[:, t, :, None]
        rows.append((state * C[:, t, :, None]).sum(-1) + (0 if D is None else D * x[:, t]))
    out = torch.stack(rows, 1)
    return (out if z is None else out * F.silu(z)), state


def draw(rng: torch.Generator, *sizes: int) -> Tensor:
    return torch.randn(*sizes, generator=rng, dtype=torch.float64)


def drawn(rng: torch.Generator, batch: int = BATCH) -> dict[str, Any]:
    return {
        "x": draw(rng, batch, L, H, P),
        "dt": draw(rng, batch, L, H),
        "A": -draw(rng, H).exp(),
        "B": draw(rng, batch, L, G, N),
        "C": draw(rng, batch, L, G, N),
        "D": draw(rng, H),
        "z": draw(rng, batch, L, H, P),
        "dt_bias": draw(rng, H),
    }


def by_channel(y: Tensor) -> Tensor:
    return y[..., None].expand(*y.shape, P)


def expected_of(
    x: dict[str, Any], limit: tuple[float, float] = (0, math.inf), softplus: bool = True, **more: Any
) -> tuple[Tensor, Tensor]:
    dt, bias, A, D = (x[name] for name in ("dt", "dt_bias", "A", "D"))
    dt = (dt if dt.dim() == 4 else by_channel(dt)) + (bias if bias.dim() == 2 else by_channel(bias))
    A = A.view(H, P, N) if A.dim() == 2 else A[:, None, None].expand(H, P, N)
    dt = (F.softplus(dt) if softplus else dt).clamp(*limit)
    return literal(x["x"], dt, A, x["B"], x["C"], D if D.dim() == 2 else by_channel(D), x["z"], **more)


@pytest.mark.parametrize("D_by_channel", [False, True])
@pytest.mark.parametrize("numbered", [False, True])
def test_the_scan_and_its_gradients(numbered: bool, D_by_channel: bool, rng: torch.Generator) -> None:
    x = drawn(rng) | {"initial_states": draw(rng, BATCH, H, P, N)}
    x |= {"D": draw(rng, H, P)} if D_by_channel else {}
    leaves = [y.requires_grad_() for y in x.values()]
    numbers = torch.tensor([[0] * 4 + [1] * 5, [1] * 2 + [3] * 7])
    reset = torch.cat([numbers[:, :1] != 0, numbers.diff() != 0], 1)
    options = {"dt_softplus": True, "dt_limit": LIMIT, "return_final_states": True}
    out, last = mamba_ssm.mamba_chunk_scan_combined(
        *(x[name] for name in ("x", "dt", "A", "B", "C")), 4, *(x[name] for name in ("D", "z", "dt_bias", "initial_states")),
        numbers if numbered else None, **options,
    )  # fmt: skip
    expected = expected_of(x, LIMIT, initial=x["initial_states"], reset=reset if numbered else None)
    weights = draw(rng, *out.shape), draw(rng, *last.shape)
    for ours, theirs in zip((out, last), expected, strict=True):
        assert rel_rms(ours, theirs) < 1e-13
    found, gradients = (torch.autograd.grad(results, leaves, weights) for results in ((out, last), expected))
    for name, ours, theirs in zip(x, found, gradients, strict=True):
        assert rel_rms(ours, theirs) < 1e-11, name


@pytest.mark.parametrize("final", [False, True])
@pytest.mark.parametrize("initial", [False, True])
def test_states_after_packed_sequences(initial: bool, final: bool, rng: torch.Generator) -> None:
    """seq_idx divides the row; cu_seqlens says where states are returned."""
    offsets = [0, 4, 4, L]
    x = drawn(rng, 1) | {"dt_softplus": True, "seq_idx": torch.tensor([[0] * 4 + [2] * 5])}
    x |= {"initial_states": draw(rng, 1, H, P, N)} if initial else {}
    options = {"cu_seqlens": torch.tensor(offsets), "return_varlen_states": True, "return_final_states": final}
    out, *states = mamba_ssm.mamba_chunk_scan_combined(**x, chunk_size=4, **options)
    parts, ends = [], []
    for start, end in pairwise(offsets):
        part = {name: y[:, start:end] if name in ("x", "dt", "B", "C", "z") else y for name, y in x.items()}
        before = x["initial_states"] if initial and start == 0 else None
        if start == end:
            ends.append(torch.zeros(1, H, P, N))
            continue
        y, after = expected_of(part, initial=before)
        parts.append(y)
        ends.append(after)
    assert rel_rms(out, torch.cat(parts, 1)) < 1e-13
    assert len(states) == 1 + final and rel_rms(states[-1], torch.cat(ends)) < 1e-13
    if final:
        assert rel_rms(states[0], ends[-1]) < 1e-13
    half = mamba_ssm.mamba_chunk_scan_combined(**x, chunk_size=4, **options, state_dtype=torch.bfloat16)
    assert half[-1].dtype == torch.bfloat16 and torch.equal(half[0], out)


def test_returned_values_and_dtypes(rng: torch.Generator) -> None:
    x = {name: y.float() for name, y in drawn(rng, 1).items()}
    x |= {name: x[name].bfloat16() for name in ("x", "dt", "B", "C", "z")}
    scan = mamba_ssm.mamba_chunk_scan_combined
    out = scan(**x, chunk_size=4)
    assert isinstance(out, Tensor) and out.dtype == torch.bfloat16
    out, last = scan(**x, chunk_size=4, return_final_states=True, state_dtype=torch.bfloat16)
    assert last.dtype == torch.float32 and last.shape == (1, H, P, N)
    _, states = scan(**x, chunk_size=4, cu_seqlens=torch.tensor([0, 3, L]), return_varlen_states=True)
    assert states.dtype == torch.bfloat16 and states.shape == (2, H, P, N)
    alone = scan(**x, chunk_size=4, cu_seqlens=torch.tensor([0, 3, L]))  # which changes nothing
    assert torch.equal(alone, out)


def test_tensors_without_contiguous_rows(rng: torch.Generator) -> None:
    x = drawn(rng)
    turned = {name: y.mT.contiguous().mT if y.dim() == 4 else y for name, y in x.items()}
    scan = mamba_ssm.mamba_chunk_scan_combined
    assert torch.equal(scan(**turned, chunk_size=4), scan(**x, chunk_size=4))


@pytest.mark.parametrize("softplus", [False, True])
@pytest.mark.parametrize(
    "wide", [set(), {"dt"}, {"dt_bias"}, {"A"}, {"dt", "dt_bias", "A", "D"}], ids=lambda names: ",".join(sorted(names))
)
def test_scans_of_steps_and_decays_by_channel(wide: set[str], softplus: bool, rng: torch.Generator) -> None:
    x, limit = drawn(rng), LIMIT if softplus else (0.0, math.inf)
    if not softplus:
        x["dt"], x["dt_bias"] = x["dt"].abs(), x["dt_bias"].abs()
    shapes = {"dt": (BATCH, L, H, P), "dt_bias": (H, P), "A": (H * P, N), "D": (H, P)}
    x |= {name: draw(rng, *shapes[name]).abs() * (-1 if name == "A" else 1) for name in wide}
    expected, _ = expected_of(x, limit, softplus)
    assert rel_rms(mamba_ssm.ssd_selective_scan(**x, dt_softplus=softplus, dt_limit=limit), expected) < 1e-13
    if not wide and softplus:
        assert rel_rms(mamba_ssm.mamba_chunk_scan(**x, chunk_size=4, dt_softplus=True), expected_of(x)[0]) < 1e-13


# ---- With convolution, norm and projection


def layer(rng: torch.Generator, mlp: int = 0, batch: int = BATCH) -> dict[str, Any]:
    return {
        "zxbcdt": draw(rng, batch, L, 2 * mlp + 2 * H * P + 2 * G * N + H),
        "conv1d_weight": draw(rng, CHANNELS, 4),
        "conv1d_bias": draw(rng, CHANNELS),
        "dt_bias": draw(rng, H),
        "A": -draw(rng, H).exp(),
        "D": draw(rng, H),
    }


def literal_layer(x: dict[str, Any], groups: int = G, limit: tuple[float, float] = (0, math.inf)) -> tuple[Tensor, Tensor]:
    dim = H * P
    mlp = (x["zxbcdt"].shape[-1] - 2 * dim - 2 * G * N - H) // 2
    z0, x0, z, xBC, dt = x["zxbcdt"].split([mlp, mlp, dim, CHANNELS, H], -1)
    taps = x["conv1d_weight"], x["conv1d_bias"]
    numbers = x.get("seq_idx")
    if numbers is None:
        rows = [convolution(*taps, row) for row in xBC]
    else:
        lengths = [torch.unique_consecutive(row, return_counts=True)[1].tolist() for row in numbers]
        rows = [
            torch.cat([convolution(*taps, part) for part in row.split(each)]) for row, each in zip(xBC, lengths, strict=True)
        ]
    xBC = torch.stack(rows)
    u, B, C = xBC.split([dim, G * N, G * N], -1)
    step = by_channel(F.softplus(dt + x["dt_bias"]).clamp(*limit))
    A, D = x["A"][:, None, None].expand(H, P, N), x["D"] if x["D"].dim() == 2 else by_channel(x["D"])
    gate = z.unflatten(-1, (H, P)) if x.get("rmsnorm_weight") is None else None
    reset = None if numbers is None else torch.cat([numbers[:, :1] != 0, numbers.diff() != 0], 1)
    system = step, A, B.unflatten(-1, (G, N)), C.unflatten(-1, (G, N)), D, gate, x.get("initial_states")
    y, last = literal(u.unflatten(-1, (H, P)), *system, reset=reset)
    y = y.flatten(-2)
    if gate is None:
        norm = x["rmsnorm_weight"], x.get("rmsnorm_eps", 1e-6), groups
        y = normed(y, *norm) * F.silu(z) if x.get("norm_before_gate", True) else normed(y * F.silu(z), *norm)
    y = torch.cat([F.silu(z0) * x0, y], -1)
    if x.get("outproj_weight") is not None:
        y = y @ x["outproj_weight"].T + (0 if x.get("outproj_bias") is None else x["outproj_bias"])
    return y, last


def wide_layer(rng: torch.Generator) -> dict[str, Any]:
    x = layer(rng, 3) | {"initial_states": draw(rng, BATCH, H, P, N), "D": draw(rng, H, P)}
    x |= {"rmsnorm_weight": draw(rng, H * P), "rmsnorm_eps": 1e-3, "norm_before_gate": False}
    return x | {"outproj_weight": draw(rng, 7, H * P + 3), "outproj_bias": draw(rng, 7)}


LAYERS: dict[str, Any] = {
    "gated by the scan": layer,
    "norm, then gate": lambda rng: layer(rng) | {"rmsnorm_weight": draw(rng, H * P)},
    "all": wide_layer,
    "numbered": lambda rng: layer(rng) | {"seq_idx": torch.tensor([[0] * 4 + [1] * 5, [0] * 2 + [3] * 7])},
}


@pytest.mark.parametrize("name", LAYERS)
def test_a_layer_and_its_gradients(name: str, rng: torch.Generator) -> None:
    x = LAYERS[name](rng)
    leaves = {name: y.requires_grad_() for name, y in x.items() if isinstance(y, Tensor) and y.is_floating_point()}
    rest = {"chunk_size": 4, "headdim": P, "ngroups": G, "dt_limit": LIMIT, "return_final_states": True}
    out, last = mamba_ssm.mamba_split_conv1d_scan_combined(**x, **rest)
    expected = literal_layer(x, limit=LIMIT)
    for ours, theirs in zip((out, last), expected, strict=True):
        assert rel_rms(ours, theirs) < 1e-12
    weights = draw(rng, *out.shape), draw(rng, *last.shape)
    found, gradients = (torch.autograd.grad(y, list(leaves.values()), weights) for y in ((out, last), expected))
    for argument, ours, theirs in zip(leaves, found, gradients, strict=True):
        assert rel_rms(ours, theirs) < 1e-10, argument
    alone = mamba_ssm.mamba_split_conv1d_scan_combined(**x, **rest | {"return_final_states": False})
    assert torch.equal(alone, out)


@pytest.mark.parametrize("norm", [False, True])
def test_the_layer_that_normalizes_all_channels(norm: bool, rng: torch.Generator) -> None:
    x = layer(rng) | ({"rmsnorm_weight": draw(rng, H * P), "norm_before_gate": False} if norm else {})
    out = mamba_ssm.mamba_split_conv1d_scan_ref(**x, chunk_size=4, headdim=P, ngroups=G)
    assert rel_rms(out, literal_layer(x, groups=1)[0]) < 1e-13


@pytest.mark.parametrize("gated", [False, True])
def test_a_convolution_and_a_scan(gated: bool, rng: torch.Generator) -> None:
    x = layer(rng)
    z, xBC, dt = x["zxbcdt"].split([H * P, CHANNELS, H], -1)
    given = (xBC, x["conv1d_weight"], x["conv1d_bias"], dt, x["A"], 4, x["D"], z if gated else None, x["dt_bias"], True)
    out = mamba_ssm.mamba_conv1d_scan_ref(*given, headdim=P, ngroups=G)
    expected, _ = literal_layer(x)
    assert rel_rms(out * (1 if gated else F.silu(z)), expected) < 1e-13


def test_the_projection_has_the_dtype_of_autocast(rng: torch.Generator) -> None:
    x = {name: y.float() for name, y in (layer(rng) | {"outproj_weight": draw(rng, 7, H * P)}).items()}
    rest = {"chunk_size": 4, "headdim": P, "ngroups": G}
    expected = mamba_ssm.mamba_split_conv1d_scan_combined(**x, **rest)
    with torch.autocast("cpu", torch.bfloat16):
        out = mamba_ssm.mamba_split_conv1d_scan_combined(**x, **rest)
    assert out.dtype == torch.bfloat16 and rel_rms(out, expected) < 1e-2


BAD: dict[str, tuple[str, dict[str, Any], str]] = {
    "headdim": ("split", {"headdim": None}, r"headdim: expected the channels of a head with D \(H,\), got None"),
    "ngroups": ("split", {"ngroups": 3}, r"ngroups: expected a divisor of the 4 heads, got 3"),
    "taps": ("split", {"conv1d_weight": torch.zeros(11, 4)}, r"conv1d_weight: expected 12 channels of 4 heads and .*, got 11"),
    "width": ("split", {"zxbcdt": torch.zeros(2, 9, 47)}, r"zxbcdt: expected \(B, L, 48\), or more .*, got \(2, 9, 47\)"),
    "bias": ("split", {"outproj_bias": torch.zeros(7)}, r"outproj_bias: expected None without outproj_weight, got a tensor"),
    "activation": ("split", {"activation": "relu"}, r"activation: expected None, 'silu' or 'swish', got 'relu'"),
    "norm": ("split", {"rmsnorm_weight": torch.zeros(11)}, r"rmsnorm_weight: expected .*, got .*"),
    "initial": ("split", {"initial_states": torch.zeros(2, 4, 3, 6)}, r"initial_states: expected .*, got .*"),
    "dt_bias": ("split", {"dt_bias": torch.zeros(3)}, r"dt_bias: expected .*, got .*"),
    "offsets": ("scan", {"return_varlen_states": True}, r"cu_seqlens: expected a tensor with return_varlen_states, got None"),
    "batch": (
        "scan",
        {"return_varlen_states": True, "cu_seqlens": torch.tensor([0, 9])},
        r"x: expected a batch of 1, as cu_seqlens packs sequences along T, got .*",
    ),
    "C": ("scan", {"C": torch.zeros(2, 9, 2, 6)}, r"C: expected .*, got .*"),
    "states": ("scan", {"initial_states": torch.zeros(3, 4, 3, 5)}, r"initial_states: expected .*, got .*"),
}


@pytest.mark.parametrize("name", BAD)
def test_errors_name_argument_expected_and_got(name: str, rng: torch.Generator) -> None:
    kind, changed, message = BAD[name]
    split = kind == "split"
    function = mamba_ssm.mamba_split_conv1d_scan_combined if split else mamba_ssm.mamba_chunk_scan_combined
    x = layer(rng) | {"headdim": P, "ngroups": G} if split else drawn(rng)
    x = {name: y.float() if isinstance(y, Tensor) else y for name, y in x.items()}
    with pytest.raises(ValueError, match=rf"^{function.__name__}: {message}$"):
        function(**x | changed, chunk_size=4)
