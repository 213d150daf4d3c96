"""Mamba-2's chunked form and its gradients against the literal recurrence and its autograd, in fp64."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from helpers import rel_rms
from torch import Tensor

import gdn_cuda
from gdn_cuda.ssd import reference as ssd
from gdn_cuda.ssd.reference import Scan, Steps

STEPS = {"softplus": Steps(softplus=True), "limits": Steps(True, (0.01, 0.5)), "as it is": Steps()}
DECAYS = {"as initialised": 1.0, "slow": 1e-4, "strong": 100.0, "none": 0.0}
LENGTHS = (0, 1, 63, 64, 65, 200)


def drawn(
    T: int = 200,
    H: int = 4,
    G: int = 2,
    P: int = 6,
    N: int = 5,
    B: int = 2,
    decay: float = 1.0,
    seed: int = 0,
    D: int = 1,
    z: bool = True,
) -> Scan:
    """dt as models have it before softplus; D with so many dimensions, 0: none."""
    rng = torch.Generator().manual_seed(seed)

    def normal(*sizes: int) -> Tensor:
        return torch.randn(*sizes, generator=rng, dtype=torch.float64)

    step = torch.exp(torch.rand(H, generator=rng, dtype=torch.float64) * math.log(100) + math.log(1e-3))
    return Scan(
        x=normal(B, T, H, P),
        dt=0.5 * normal(B, T, H),
        A=-decay * (1 + 15 * torch.rand(H, generator=rng, dtype=torch.float64)),
        B=normal(B, T, G, N),
        C=normal(B, T, G, N),
        D=(None, normal(H), normal(H, P))[D],
        z=normal(B, T, H, P) if z else None,
        dt_bias=torch.log(torch.expm1(step)),
        initial_state=normal(B, H, P, N),
    )


def close(found: tuple[Tensor, Tensor], expected: tuple[Tensor, Tensor], bound: float = 1e-12) -> bool:
    return all(rel_rms(a, b) < bound if b.numel() else a.shape == b.shape for a, b in zip(found, expected, strict=True))


def with_resets(scan: Scan) -> Scan:
    """Every 37th token of every other head: exp(δA) is 0."""
    dt = scan.dt.clone()
    dt[:, ::37, ::2] = 2000.0
    return scan._replace(dt=dt)


@pytest.mark.parametrize("T", LENGTHS)
@pytest.mark.parametrize("steps", STEPS.values(), ids=STEPS)
@pytest.mark.parametrize("decay", DECAYS.values(), ids=DECAYS)
def test_the_chunked_form_is_the_recurrence(decay: float, steps: Steps, T: int, seed: int) -> None:
    for D, z in itertools.product((0, 1, 2), (False, True)):
        scan = drawn(T, decay=decay, seed=seed, D=D, z=z)
        scan = scan if steps.softplus else scan._replace(dt=scan.dt.abs() / 10, dt_bias=None)
        assert close(ssd.chunked(scan, steps), ssd.recurrent(scan, steps))


@pytest.mark.parametrize("groups", [1, 2, 4])
def test_groups(groups: int, seed: int) -> None:
    scan = drawn(100, G=groups, seed=seed)
    assert close(ssd.chunked(scan, STEPS["softplus"]), ssd.recurrent(scan, STEPS["softplus"]))


def test_resets(seed: int) -> None:
    """Sums of many clamped logarithms lose digits: 64 of them are 70,000."""
    scan = with_resets(drawn(seed=seed))
    assert close(ssd.chunked(scan, STEPS["softplus"]), ssd.recurrent(scan, STEPS["softplus"]), 1e-11)


@pytest.mark.parametrize("name", ["x", "dt", "B", "C"])
@pytest.mark.parametrize("poison", [torch.nan, torch.inf])
def test_a_reset_in_the_chunk_of_what_is_not_finite(poison: float, name: str, seed: int) -> None:
    """By the operator, every token has what it has by the recurrence."""
    scan = drawn(seed=seed, z=False)._asdict()
    scan["dt"][:, 20] = 2000.0
    scan[name][:, 10] = poison
    found = gdn_cuda.ssd_scan(**scan, dt_softplus=True, return_last_state=True)
    wanted = ssd.recurrent(Scan(**scan), Steps(softplus=True))
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-9, equal_nan=True)
    assert wanted[0][:, 20:].isfinite().all() and wanted[1].isfinite().all()


@pytest.mark.parametrize("poison", [torch.nan, torch.inf])
def test_nothing_of_before_a_reset_shows(poison: float, seed: int) -> None:
    scan = drawn(130, seed=seed)
    dt, state = scan.dt.clone(), torch.full_like(scan.initial_state, poison)
    dt[:, 70] = 2000.0
    found, last = ssd.recurrent(scan._replace(dt=dt, initial_state=state), STEPS["softplus"])
    after = Scan(*(y[:, 70:] if y is not None and y.dim() > 2 else y for y in scan._replace(dt=dt, initial_state=None)))
    expected, expected_last = ssd.recurrent(after, STEPS["softplus"])
    assert not found[:, :70].isfinite().any()
    assert close((found[:, 70:], last), (expected, expected_last))


def test_against_the_selective_scan_of_expanded_tensors(seed: int) -> None:
    """Each channel and state of a head decays alike there."""
    scan = drawn(90, G=2, seed=seed, D=1)
    *_, heads, channels = scan.x.shape
    N = scan.B.shape[-1]

    def rows(y: Tensor) -> Tensor:
        return y.flatten(2).mT.contiguous()

    def each(y: Tensor) -> Tensor:
        return y.repeat_interleave(channels, 0)

    delta = STEPS["softplus"](scan.dt, scan.dt_bias)
    assert scan.D is not None and scan.z is not None and scan.initial_state is not None
    out, last = gdn_cuda.selective_scan(
        rows(scan.x),
        rows(delta[..., None].expand(*delta.shape, channels)),
        each(scan.A)[:, None].repeat(1, N),
        *(y.permute(0, 2, 3, 1).contiguous() for y in (scan.B, scan.C)),
        D=each(scan.D),
        z=rows(scan.z),
        return_last_state=True,
        initial_state=scan.initial_state.flatten(1, 2),
    )
    found = out.mT.unflatten(-1, (heads, channels)), last.unflatten(1, (heads, channels))
    assert close(ssd.chunked(scan, STEPS["softplus"]), found)


@pytest.mark.parametrize("T", LENGTHS)
@pytest.mark.parametrize("steps", [STEPS["softplus"], STEPS["limits"]], ids=["softplus", "limits"])
@pytest.mark.parametrize("decay", [1.0, 1e-4, 100.0], ids=["as initialised", "slow", "strong"])
def test_gradients_are_those_of_the_recurrence(decay: float, steps: Steps, T: int, seed: int) -> None:
    for D, z, reset in ((0, False, False), (1, True, False), (2, True, True)):
        scan = drawn(T, decay=decay, seed=seed, D=D, z=z)
        check_gradients(with_resets(scan) if reset else scan, steps, seed)


def check_gradients(scan: Scan, steps: Steps, seed: int) -> None:
    leaves = Scan(*(None if x is None else x.clone().requires_grad_() for x in scan))
    out, last = ssd.recurrent(leaves, steps)
    rng = torch.Generator().manual_seed(seed + 1)
    grads = [torch.randn(y.shape, generator=rng, dtype=torch.float64) for y in (out, last)]
    given = [x for x in leaves if x is not None]
    expected = iter(torch.autograd.grad([out, last], given, grads, allow_unused=True, materialize_grads=True))
    found = ssd.gradients(scan, steps, *grads)
    for name, x, gradient in zip(Scan._fields, scan, found, strict=True):
        if x is None:
            assert gradient is None
            continue
        wanted = next(expected)
        scale = wanted.norm() + 1e-30
        assert gradient is not None and gradient.shape == wanted.shape
        assert (gradient - wanted).norm() / scale < 1e-9 or (gradient - wanted).abs().max() < 1e-12, name


def test_gradients_at_the_limits_pass_and_outside_are_zero() -> None:
    scan = drawn(4, B=1, H=1, G=1, D=0, z=False)._replace(
        dt=torch.tensor([0.1, 0.2, 0.5, 0.7]).double().view(1, 4, 1), dt_bias=None
    )
    found = ssd.gradients(scan, Steps(limit=(0.2, 0.5)), torch.ones_like(scan.x), None)
    assert [bool(x) for x in found.dt.flatten().ne(0)] == [False, True, True, False]


@pytest.mark.parametrize("states", [True, False])
def test_packed_sequences_are_those_alone(states: bool, seed: int) -> None:
    lengths = [30, 0, 1, 100, 64]
    scan = drawn(sum(lengths) + 3, B=1, seed=seed)
    initial = torch.randn(5, *scan.initial_state.shape[1:], dtype=torch.float64) if states else None
    offsets = torch.tensor([0, *itertools.accumulate(lengths)])
    out, last, _ = ssd.scan_spans(scan._replace(initial_state=initial), STEPS["softplus"], ssd.spans_of_packed(offsets), 5)
    for n, (a, b) in enumerate(itertools.pairwise(offsets.tolist())):
        part = Scan(*(y[:, a:b] if y is not None and y.dim() > 2 else y for y in scan))
        alone = ssd.recurrent(part._replace(initial_state=None if initial is None else initial[n : n + 1]), STEPS["softplus"])
        assert close((out[:, a:b], last[n : n + 1]), alone)
    assert not out[:, sum(lengths) :].any()


def test_seq_idx_zeroes_the_state_where_it_changes(seed: int) -> None:
    """The first row begins with 0 and has an initial state, the second one drops it."""
    scan = drawn(50, seed=seed)
    seq_idx = torch.tensor([[0] * 20 + [1] * 30, [1] * 10 + [2] * 40], dtype=torch.int32)
    out, last, _ = ssd.scan_spans(scan, STEPS["softplus"], ssd.spans_of_rows(seq_idx), 2)
    for row, (border, kept) in enumerate(((20, True), (10, False))):
        rows = Scan(*(y[row : row + 1] if y is not None and y.dim() > 2 else y for y in scan))
        first = Scan(*(y[:, :border] if y is not None and y.dim() > 2 else y for y in rows))
        first = first._replace(initial_state=rows.initial_state if kept else None)
        second = Scan(*(y[:, border:] if y is not None and y.dim() > 2 else y for y in rows))._replace(initial_state=None)
        expected, _ = ssd.recurrent(first, STEPS["softplus"])
        rest = ssd.recurrent(second, STEPS["softplus"])
        assert close((out[row : row + 1, :border], last[row : row + 1]), (expected, rest[1]))
        assert close((out[row : row + 1, border:], last[row : row + 1]), rest)
