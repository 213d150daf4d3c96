"""GatedDeltaNet trains: gradients of x and of every parameter, against autograd of the definition in fp64."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from helpers import rel_rms
from layer_cases import BOUND, HIDDEN, check, gradients, layer
from torch.utils.checkpoint import checkpoint

from gdn_cuda import gdn_prefill_layer
from gdn_cuda.nn import GatedDeltaNet

F64 = torch.float64
FORMS: list[dict[str, Any]] = [
    {},
    {"layout": "qwen3_5", "conv_bias": True},
    {"allow_negative_eigenvalues": True, "conv_bias": True},
    {"layout": "qwen3_5", "allow_negative_eigenvalues": True},
]


def tokens(seed: int, B: int = 2, L: int = 70, dtype: torch.dtype = F64) -> torch.Tensor:
    return torch.randn(B, L, HIDDEN, generator=torch.Generator().manual_seed(seed), dtype=F64).to(dtype)


@pytest.mark.parametrize("form", FORMS, ids=str)
@pytest.mark.parametrize("heads", [(2, 2), (1, 3), (2, 4)], ids=str)
def test_gradients(heads: tuple[int, int], form: dict[str, Any], seed: int) -> None:
    """As many value heads as key heads, and more."""
    check(layer(seed, heads, dtype=F64, norm_eps=1e-6, **form), tokens(seed), seed)


@pytest.mark.parametrize("L", [1, 2, 3, 4, 63, 64, 65, 130])
def test_lengths(L: int, seed: int) -> None:
    check(layer(seed, dtype=F64), tokens(seed, L=L), seed)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("form", FORMS, ids=str)
def test_dtypes(form: dict[str, Any], dtype: torch.dtype, seed: int) -> None:
    check(layer(seed, dtype=dtype, **form), tokens(seed, dtype=dtype), seed)


@pytest.mark.parametrize("form", FORMS, ids=str)
def test_packed(form: dict[str, Any], seed: int) -> None:
    """Sequences of no, one and many tokens, and tokens of no sequence, which have no gradient."""
    lengths = [5, 0, 1, 70, 3]
    made, x = layer(seed, dtype=F64, **form), tokens(seed, B=1, L=sum(lengths) + 4)
    check(made, x, seed, lengths)
    offsets = torch.tensor([0, *lengths]).cumsum(0)
    y, found = gradients(made, x, torch.ones(x.shape), cu_seqlens=offsets)
    assert not y[:, sum(lengths) :].any() and not found["x"][:, sum(lengths) :].any()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_packed_sequence_is_the_sequence_alone(dtype: torch.dtype, seed: int) -> None:
    lengths = [70, 1, 20]
    made, x = layer(seed, dtype=dtype), tokens(seed, B=1, L=sum(lengths), dtype=dtype)
    grad = torch.randn(x.shape)
    y, found = gradients(made, x, grad, cu_seqlens=torch.tensor([0, *lengths]).cumsum(0))
    alone = [gradients(made, *each) for each in zip(x.split(lengths, 1), grad.split(lengths, 1), strict=True)]
    bound = 1e-5 if dtype == torch.float32 else 2e-2  # of sums over sequences in another order
    assert rel_rms(y, torch.cat([each for each, _ in alone], 1)) < bound
    for name, mine in found.items():
        each = [gradient[name].double() for _, gradient in alone]
        assert rel_rms(mine, torch.cat(each, 1) if name == "x" else sum(each)) < bound, name


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_a_sequence_that_is_not_finite_leaves_the_others(bad: float, seed: int) -> None:
    lengths, made = [9, 6, 12], layer(seed)
    x, offsets = tokens(seed, B=1, L=27, dtype=torch.float32), torch.tensor([0, 9, 15, 27])
    y, clean = gradients(made, x, torch.ones(x.shape), cu_seqlens=offsets)
    x[:, 10] = bad
    z, found = gradients(made, x, torch.ones(x.shape), cu_seqlens=offsets)
    for mine, theirs in ((z, y), (found["x"], clean["x"])):
        for n in (0, 2):
            assert torch.equal(mine.split(lengths, 1)[n], theirs.split(lengths, 1)[n])


def test_gradcheck(seed: int) -> None:
    made, x = layer(seed, (1, 2), 4, 3, dtype=F64), tokens(seed, B=1, L=5).requires_grad_()
    assert torch.autograd.gradcheck(made, (x,), fast_mode=True)


@pytest.mark.parametrize("packed", [False, True])
def test_compiled(packed: bool, seed: int) -> None:
    made, x = layer(seed, dtype=torch.bfloat16), tokens(seed, B=1, L=20, dtype=torch.bfloat16)
    options = {"cu_seqlens": torch.tensor([0, 12, 20])} if packed else {}
    y, found = gradients(made, x, torch.ones(x.shape), **options)
    torch._dynamo.reset()
    whole = copy.deepcopy(made)
    whole.compile(fullgraph=True, backend="aot_eager")
    z, others = gradients(whole, x, torch.ones(x.shape), **options)
    assert torch.equal(y, z)
    for name, mine in found.items():
        assert torch.equal(mine, others[name]), name


@pytest.mark.parametrize("reentrant", [False, True])
def test_activation_checkpointing(reentrant: bool, seed: int) -> None:
    made, x = layer(seed), tokens(seed, L=20, dtype=torch.float32).requires_grad_()
    made(x).square().sum().backward()
    assert x.grad is not None
    expected, x.grad = [x.grad, *(p.grad for p in made.parameters())], None
    made.zero_grad()
    checkpoint(made, x, use_reentrant=reentrant).square().sum().backward()
    for mine, theirs in zip([x.grad, *(p.grad for p in made.parameters())], expected, strict=True):
        assert mine is not None and theirs is not None and torch.equal(mine, theirs)


@pytest.mark.parametrize("given", [torch.float32, torch.bfloat16])
def test_autocast(given: torch.dtype, seed: int) -> None:
    """Parameters stay in fp32, and so do their gradients."""
    made, x = layer(seed), tokens(seed, dtype=torch.float32)
    _, expected = gradients(made, x, torch.ones(x.shape))
    with torch.autocast("cpu", torch.bfloat16):
        y, found = gradients(made, x.to(given), torch.ones(x.shape))
    assert y.dtype == torch.bfloat16
    for name, mine in found.items():
        assert mine.dtype == (given if name == "x" else torch.float32)
        assert rel_rms(mine, expected[name]) < BOUND[torch.bfloat16], name


@pytest.mark.parametrize("layout", ["qwen3_next", "qwen3_5"])
def test_without_gradients_the_bits_are_the_same(layout: str, seed: int) -> None:
    made, x = layer(seed, dtype=torch.bfloat16, layout=layout), tokens(seed, dtype=torch.bfloat16)
    expected = made(x)
    with torch.no_grad():
        assert torch.equal(made(x), expected)
        assert rel_rms(made(x, made.new_state(2)), expected) < 1e-2


def test_with_a_state_backward_is_refused_by_name(seed: int) -> None:
    made, x = layer(seed), tokens(seed, L=3, dtype=torch.float32)
    for name, function in (("GatedDeltaNet", made), ("GatedDeltaNet.step", made.step)):
        y = function(x, made.new_state(2))
        with pytest.raises(RuntimeError, match=f"^{name}: no gradient is computed; for gradients use forward without a state"):
            y.sum().backward()


def test_initial_values(seed: int) -> None:
    torch.manual_seed(seed)
    made = GatedDeltaNet(8, (1, 4000), 2, 1)
    rate, dt = made.A_log.detach().exp(), torch.nn.functional.softplus(made.dt_bias.detach())
    assert made.A_log.isfinite().all() and rate.min() > 0 and rate.max() <= 16.001
    assert dt.min() > 0.000999 and dt.max() < 0.1001
    # Uniform, and log-uniform: a quarter of the heads in each quarter of the range, to 6 standard deviations.
    for values, low, high in ((rate, 0.0, 16.0), (dt.log(), -6.9078, -2.3026)):
        counts = torch.histc(values, 4, low, high)
        assert (counts - 1000).abs().max() < 6 * 750**0.5
    marked = [name for name, p in made.named_parameters() if getattr(p, "_no_weight_decay", False)]
    assert marked == ["A_log", "dt_bias"]


def test_a_layer_made_on_meta(seed: int) -> None:
    made = GatedDeltaNet(HIDDEN, (1, 2), 8, 8, device="meta").to_empty(device="cpu")
    with torch.no_grad():
        for p in made.parameters():
            p.fill_(torch.nan)
    made.reset_recurrence()
    assert made.A_log.isfinite().all() and made.dt_bias.isfinite().all()
    assert made.A_log._no_weight_decay and made.dt_bias._no_weight_decay  # type: ignore[attr-defined]


def test_parameters_are_those_of_earlier_versions() -> None:
    """A checkpoint that was written by a version without gradients."""
    made = GatedDeltaNet(HIDDEN, (2, 4), 16, 8, conv_bias=True)
    shapes = {
        "A_log": (4,),
        "dt_bias": (4,),
        "in_proj_qkvz.weight": (128, HIDDEN),
        "in_proj_ba.weight": (8, HIDDEN),
        "conv1d.weight": (96, 1, 4),
        "conv1d.bias": (96,),
        "norm.weight": (8,),
        "out_proj.weight": (HIDDEN, 32),
    }
    assert {name: tuple(y.shape) for name, y in made.state_dict().items()} == shapes
    made.load_state_dict({name: torch.ones(shape) for name, shape in shapes.items()})


def test_a_layer_learns(seed: int) -> None:
    """It fits random targets, of which it has fewer than parameters."""
    torch.manual_seed(seed)
    made = GatedDeltaNet(HIDDEN, (2, 4), 16, 8)
    optimizer = torch.optim.Adam(made.parameters(), lr=1e-2)
    x, targets = torch.randn(2, 2, 12, HIDDEN)
    losses = []
    for _ in range(80):
        loss = (made(x) - targets).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.2 * losses[0]


PROJECTIONS = {"qkvz": torch.randn(1, 6, 2 * 8 + 2 * 2 * 4), "ba": torch.randn(1, 6, 4), "heads": (1, 2), "dk": 8, "dv": 4}
WEIGHTS = {"conv_weight": torch.randn(24, 4), "A_log": torch.zeros(2), "dt_bias": torch.zeros(2), "norm_weight": torch.ones(4)}


@pytest.mark.parametrize(
    "change, text",
    [
        ({"state_indices": torch.tensor([0])}, "state_indices: expected None without pools, got a tensor"),
        ({"has_initial_state": torch.tensor([True])}, "has_initial_state: expected None without pools, got a tensor"),
        ({"conv_pool": torch.zeros(1, 24, 3)}, "state_pool: expected a tensor, got None"),
        ({"state_pool": torch.zeros(1, 2, 4, 8)}, "conv_pool: expected a tensor, got None"),
        ({"norm_weight": torch.ones(3)}, "norm_weight: expected"),
        ({"conv_weight": torch.ones(23, 4)}, "conv_weight: expected"),
        ({"A_log": torch.ones(3)}, "A_log: expected"),
        ({"ba": torch.randn(1, 6, 4, dtype=F64)}, "ba: expected"),
        ({"cu_seqlens": torch.tensor([[0, 6]])}, "cu_seqlens: expected"),
    ],
)
@pytest.mark.parametrize("grad", [False, True])
def test_wrong_input_of_gdn_prefill_layer_without_pools(change: dict[str, Any], text: str, grad: bool) -> None:
    given = PROJECTIONS | WEIGHTS | change
    given["qkvz"] = given["qkvz"].clone().requires_grad_(grad)
    with pytest.raises(ValueError, match=f"^gdn_prefill_layer: {text}"):
        gdn_prefill_layer(**given)
