"""benchmarks/state_formats.py: its oracle is the recurrence, and its formats round as they say."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

from gdn_cuda.gdn import reference

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "benchmarks"))

import state_formats as formats  # noqa: E402
from state_formats import Format  # noqa: E402


@pytest.mark.parametrize("layer", list(formats.CASES))
def test_the_oracle_is_the_recurrence(layer: str) -> None:
    for case in formats.cases(layer, 12, quick=True):
        x = formats.Tokens(*(None if y is None else y.double() for y in case.tokens))
        output, state = formats.recurrence(case.tokens, None)
        if x.beta is not None:
            gate = x.decay.log() if layer == "kda" else x.decay.log()[..., 0]
            q, k, v, beta, gate = (y[None] for y in (x.q, x.k, x.v, x.beta[..., 0], gate))
            expected, last, _ = reference.recurrent(q, k, v, beta, gate, scale=1.0)
            expected, last = expected[0], last[0]
        else:  # in closed form: every token's value, decayed since
            kept = torch.stack([x.decay[t + 1 :].prod(0) for t in range(12)])
            last = torch.einsum("thi,thj->hij", kept * x.v, x.k)
            expected = output.clone()
            expected[-1] = (last @ x.q[-1][..., None])[..., 0]
        torch.testing.assert_close(output, expected, rtol=1e-10, atol=1e-12)
        torch.testing.assert_close(state, last, rtol=1e-10, atol=1e-12)


ALL = (*formats.FORMATS, *formats.ROTATED, *formats.VARIANTS)


def test_formats_have_names_of_their_own() -> None:
    assert len({form.name for form in ALL}) == len(ALL)


@pytest.mark.parametrize("form", [x for x in ALL if x.scale != "clipped" and x.codes in ("int8", "e4m3")], ids=lambda x: x.name)
def test_a_rounded_value_is_within_a_step(form: Format) -> None:
    x = torch.randn(3, 64, 128, generator=torch.Generator().manual_seed(1))
    found = formats.rounder(form, x.shape)(x.clone(), 5)
    assert torch.equal(found, formats.rounder(form, x.shape)(x.clone(), 5)), "the same bits for the same seed"
    rows, columns = (size or whole for size, whole in zip(form.tile, (64, 128), strict=True))
    blocks = (3, 64 // rows, rows, 128 // columns, columns)
    most = x.view(blocks).abs().amax((2, 4), keepdim=True).expand(blocks).reshape(x.shape)
    steps = {"nearest": 0.5, "half": 0.75, "dither": 0.5}.get(form.rounding, 1.0) * (2 if form.scale == "power of two" else 1)
    step = most / 127 if form.codes == "int8" else torch.maximum(x.abs() / 8, most / 448 / 512)
    edge = most / 254 if form.rounding == "dither" else 0  # the largest code has no noise above it
    assert ((found - x).abs() <= steps * step * (1 + 1e-5) + edge).all()


def test_stochastic_rounding_and_dither_are_unbiased_and_nearest_is_not() -> None:
    x = torch.full((1, 64, 128), 0.3)
    x[..., 0] = 127
    means = {}
    for rounding in ("nearest", "stochastic", "dither"):
        rounded = formats.rounder(Format(rounding=rounding), x.shape)
        means[rounding] = float(torch.stack([rounded(x.clone(), t)[..., 1:].mean() for t in range(20)]).mean())
    assert means["nearest"] == 0
    assert means["stochastic"] == pytest.approx(0.3, abs=5e-3) and means["dither"] == pytest.approx(0.3, abs=5e-3)


def test_a_ring_stores_the_state_less_often() -> None:
    (case,) = formats.cases("gdn", 64, quick=True)
    oracle = formats.recurrence(case.tokens, None)
    found = [
        max(e["state"][0] for e in formats.errors(case, formats.recurrence(case.tokens, form), oracle).values())
        for form in (Format("fp32"), Format("bf16"), Format(every=8), Format(), Format("e4m3"))
    ]
    assert found[0] < 1e-6 and found == sorted(found)
