"""gdn/prefill_ahead on the GPU: the bits of gdn/prefill, which takes the same sequences where others fill the card."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from gdn_inputs import to_double
from helpers import rel_rms
from torch import Tensor

import gdn_cuda
from gdn_cuda.gdn.inputs import KEY_MODES, make_gdn_inputs, make_packed_gdn_inputs
from gdn_cuda.operators.explain import explained
from gdn_cuda.reference import recurrent


def inputs(T: int, Hv: int, **options: Any) -> dict[str, Tensor]:
    given = {"B": 1, "Hk": Hv // 2, "dk": 128, "dv": 128, "dtype": torch.bfloat16, "device": "cuda", "beta_max": 2.0, **options}
    return make_gdn_inputs(T=T, Hv=Hv, **given)


def run(kernel: str, x: dict[str, Tensor], **options: Any) -> tuple[Tensor, ...]:
    """Deterministic results, of this kernel alone."""
    steps = explained(gdn_cuda.chunked_forward, **x, deterministic=True, **options).steps
    assert [step["kernel"] for step in steps if step["kernel"].startswith("gdn/")][:1] == [kernel]
    results = gdn_cuda.chunked_forward(**x, deterministic=True, out=torch.full_like(x["value"], float("nan")), **options)
    return tuple(result for result in results if result is not None)


def check_bits(x: dict[str, Tensor], **options: Any) -> tuple[Tensor, ...]:
    """Against a batch that has the sequence last."""
    ahead = run("gdn/prefill_ahead", x, **options)
    heads = x["value"].shape[2]
    batch = {name: each.expand(132 // heads + 1, *each.shape[1:]).contiguous() for name, each in x.items()}
    for name in ("query", "key", "value"):
        batch[name][:-1] *= 0.5
    usual = run("gdn/prefill", batch, **options)
    assert torch.equal(ahead[0], usual[0][-1:]) and torch.equal(ahead[1], usual[1][-1:])
    return ahead


# Three and two blocks that prepare for each pair of a sequence and a head; the bits are the same from call to call.
@pytest.mark.parametrize("Hv", [2, 32])
def test_heads(Hv: int, seed: int) -> None:
    x = inputs(4000, Hv, seed=seed, gate_range=(-0.1, 0.0))
    ahead = check_bits(x)
    for _ in range(20):
        assert all(map(torch.equal, ahead, run("gdn/prefill_ahead", x)))
    expected, expected_state, _ = recurrent(**to_double(x))
    assert rel_rms(ahead[0], expected) < 5e-3 and rel_rms(ahead[1], expected_state) < 5e-3


@pytest.mark.parametrize("key_mode", KEY_MODES)
@pytest.mark.parametrize("gates", [(-100.0, 0.0), (-0.2, 0.0), (0.0, 0.0)])
def test_hostile_inputs(gates: tuple[float, float], key_mode: str, seed: int) -> None:
    norm = key_mode == "unnormalized"
    check_bits(inputs(1700, 4, seed=seed, gate_range=gates, key_mode=key_mode), use_qk_l2norm=norm)


def test_more_than_one_window_of_chunks(seed: int) -> None:
    """Records of 32 heads are as many as 303 chunks: the states go through memory from one launch to the next, in fp32."""
    check_bits(inputs(45000, 32, seed=seed, gate_range=(-1e-3, 0.0)))


@pytest.mark.parametrize("io", [torch.bfloat16, torch.float16])
def test_packed_sequences(io: torch.dtype, seed: int) -> None:
    options = {"Hk": 2, "Hv": 4, "dk": 96, "dv": 192, "dtype": io, "device": "cuda", "gate_range": (-0.2, 0.0)}
    x = make_packed_gdn_inputs([2000, 0, 70, 1001, 2048], seed=seed, **options)  # type: ignore[arg-type]
    out, state = run("gdn/prefill_ahead", x)[:2]
    expected, expected_state, _ = recurrent(**to_double(x))
    bound = 1e-3 if io == torch.float16 else 5e-3
    assert rel_rms(out, expected) < bound and rel_rms(state, expected_state) < bound


def test_it_runs_beside_other_work(seed: int) -> None:
    """Blocks that own rows wait for blocks that prepare, and these for nobody: neither other calls nor a full card stop it."""
    x = inputs(4000, 32, seed=seed, gate_range=(-0.1, 0.0))
    expected = run("gdn/prefill_ahead", x)
    streams = [torch.cuda.Stream() for _ in range(4)]
    torch.cuda.synchronize()
    results = []
    for _ in range(5):
        for stream in streams:
            with torch.cuda.stream(stream):
                results.append(gdn_cuda.chunked_forward(**x, deterministic=True)[:2])
                torch.empty(1 << 26, device="cuda").normal_()
    torch.cuda.synchronize()
    for out, state in results:
        assert torch.equal(out, expected[0]) and torch.equal(state, expected[1])
