"""gdn_cuda.compat.fla.GatedDeltaNet, and FLA's own layer on gdn_cuda.integrations.fla: parameters, results, gradients, padded
and packed batches, caches, and twenty steps of training. FLA's Triton kernels need a GPU: on a CPU functions that are written
out stand in for them."""

from __future__ import annotations

import copy
import doctest
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import literal_fla
import pytest
import torch
from helpers import rel_rms
from torch import Tensor

import gdn_cuda
from gdn_cuda import integrations
from gdn_cuda.compat.fla import GatedDeltaNet
from gdn_cuda.integrations import fla as integration

SIZES: dict[str, Any] = {"hidden_size": 48, "head_dim": 16, "num_heads": 2, "num_v_heads": 4, "layer_idx": 0}
VARIANTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "negative eigenvalues": {"allow_neg_eigval": True, "expand_v": 1.5},
    "biases, sigmoid": {"conv_bias": True, "output_gate_activation": "sigmoid", "num_v_heads": None},
    "without a gate": {"use_gate": False, "conv_size": 3},
    "without convolutions": {"use_short_conv": False},
}
each_variant = pytest.mark.parametrize("variant", VARIANTS)


@pytest.fixture
def device() -> str:
    return "cpu"


def flas_layer() -> type:
    if not integration.available()[0]:
        pytest.skip(integration.available()[1])
    return pytest.importorskip("fla.layers.gated_deltanet", reason="flash-linear-attention is not installed").GatedDeltaNet


def make(variant: str = "plain", seed: int = 0, layer: type = GatedDeltaNet, **more: Any) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the layer without convolutions
        torch.manual_seed(seed)
        return layer(**SIZES | VARIANTS[variant] | more)


def tokens(rng: torch.Generator, B: int = 2, T: int = 70, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(B, T, SIZES["hidden_size"], generator=rng, dtype=torch.float64).to(dtype)


def trained(run: Any, module: Any, x: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
    """The output of `run(x)`, and gradients of x and of all parameters."""
    x = x.detach().requires_grad_()
    module.zero_grad()
    out = run(x)
    out.backward(torch.cos(torch.arange(out.numel())).view(out.shape).to(out))
    return out.detach(), {"x": x.grad} | {name: p.grad.clone() for name, p in module.named_parameters()}


def check(run: Any, module: Any, x: Tensor, lengths: list[int] | None = None, tolerance: float = 1e-4) -> None:
    """Output and gradients are those of the layer written out, in fp64."""
    found, gradients = trained(run, module, x)
    exact = copy.deepcopy(module).double()
    expected, wanted = trained(lambda y: literal_fla.layer(exact, y, lengths), exact, x.double())
    assert found.dtype == x.dtype and rel_rms(found, expected) < tolerance
    for name, gradient in gradients.items():
        assert rel_rms(gradient, wanted[name]) < tolerance, name


# ---- Our layer


@each_variant
def test_gradients_of_all_parameters(variant: str, device: str, seed: int, rng: torch.Generator) -> None:
    layer = make(variant, seed).to(device)
    assert {id(p) for p in layer.parameters() if getattr(p, "_no_weight_decay", False)} == {id(layer.A_log), id(layer.dt_bias)}
    check(lambda x: layer(x)[0], layer, tokens(rng).to(device))


@each_variant
def test_packed(variant: str, device: str, seed: int, rng: torch.Generator) -> None:
    layer, lengths = make(variant, seed).to(device), [30, 1, 64, 5]
    offsets = torch.tensor([0, *torch.tensor(lengths).cumsum(0).tolist()], device=device)
    check(lambda x: layer(x, cu_seqlens=offsets)[0], layer, tokens(rng, 1, 100).to(device), lengths)


def test_the_example_in_its_docstring_runs() -> None:
    (example,) = doctest.DocTestFinder(recurse=False).find(
        GatedDeltaNet, "GatedDeltaNet", globs={"torch": torch, "gdn_cuda": gdn_cuda}
    )
    assert example.examples and not doctest.DocTestRunner(verbose=False).run(example).failed


@pytest.mark.parametrize("columns", [20, 25])
def test_padded(columns: int, seed: int, rng: torch.Generator) -> None:
    """Padding on either side, and a row of padding alone: as each sequence alone; outputs of padding are 0. A mask may have
    columns of earlier tokens."""
    layer, x = make("plain", seed), tokens(rng, 4, 20)
    mask = torch.ones(4, columns, dtype=torch.int64)
    mask[0, : columns - 13], mask[1, columns - 2 :], mask[2] = 0, 0, 0
    kept = mask[:, columns - 20 :].bool()
    found, gradients = trained(lambda y: layer(y, attention_mask=mask)[0], layer, x)
    assert not found[~kept].any() and not gradients["x"][~kept].any()

    def alone(y: Tensor) -> Tensor:
        rows = [layer(y[n : n + 1, kept[n]])[0][0] if kept[n].any() else y.new_zeros(0, y.shape[2]) for n in range(4)]
        return torch.zeros_like(y).index_put((kept,), torch.cat(rows))

    expected, wanted = trained(alone, layer, x)
    assert rel_rms(found, expected) < 1e-5
    assert all(rel_rms(gradients[name], wanted[name]) < 1e-4 for name in gradients)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_other_dtypes(dtype: torch.dtype, seed: int, rng: torch.Generator) -> None:
    layer = make("plain", seed).to(dtype)
    check(lambda x: layer(x)[0], layer, tokens(rng, dtype=dtype), tolerance=4e-2 if dtype == torch.bfloat16 else 1e-10)


def test_autocast(seed: int, rng: torch.Generator) -> None:
    layer, x = make("plain", seed), tokens(rng)
    with torch.autocast("cpu", torch.bfloat16):
        found, gradients = trained(lambda y: layer(y)[0], layer, x)
    assert found.dtype == torch.bfloat16
    expected, wanted = trained(lambda y: layer(y)[0], layer, x)
    assert rel_rms(found, expected) < 2e-2
    for name, gradient in gradients.items():
        assert gradient.dtype == torch.float32 and rel_rms(gradient, wanted[name]) < 6e-2, name


def test_compiled(seed: int, rng: torch.Generator) -> None:
    layer, x = make("plain", seed), tokens(rng)
    compiled = torch.compile(lambda y: layer(y)[0], fullgraph=True, backend="aot_eager")
    found, gradients = trained(compiled, layer, x)
    expected, wanted = trained(lambda y: layer(y)[0], layer, x)
    assert torch.equal(found, expected)
    assert all(rel_rms(gradients[name], wanted[name]) < 1e-6 for name in wanted)


class Cache:
    """The part of FLA's cache that a layer uses."""

    def __init__(self) -> None:
        self.states: dict[int, dict[str, Any]] = {}
        self.seen = 0

    def __len__(self) -> int:
        return len(self.states)

    def __getitem__(self, layer: int) -> dict[str, Any]:
        return self.states[layer]

    def update(self, *, layer_idx: int, offset: int, **states: Any) -> None:
        self.states.setdefault(layer_idx, {"recurrent_state": None, "conv_state": None}).update(states)
        self.seen += offset


@each_variant
@pytest.mark.parametrize("grad", [False, True])
def test_a_cache_continues_prompts(variant: str, grad: bool, seed: int, rng: torch.Generator) -> None:
    layer, x, cache = make(variant, seed).eval(), tokens(rng), Cache()
    with torch.set_grad_enabled(grad):
        whole = layer(x)[0]
        parts = [
            layer(x[:, first:end], past_key_values=cache, use_cache=True)
            for first, end in ((0, 2), (2, 66), (66, 67), (67, 70))
        ]
    assert all(part[2] is cache and part[1] is None for part in parts) and cache.seen == 70
    assert rel_rms(torch.cat([part[0] for part in parts], 1), whole) < 1e-5
    assert cache[0]["recurrent_state"].shape == (2, layer.num_v_heads, layer.head_v_dim, layer.head_k_dim)
    if layer.use_short_conv:
        widths = (layer.key_dim, layer.key_dim, layer.value_dim)
        assert [each.shape for each in cache[0]["conv_state"]] == [(2, width, layer.conv_size) for width in widths]
    assert torch.cat([part[0] for part in parts], 1).requires_grad == grad


def test_gradients_through_a_cache(seed: int, rng: torch.Generator) -> None:
    layer, x = make("plain", seed), tokens(rng)

    def parts(y: Tensor) -> Tensor:
        cache = Cache()
        first = layer(y[:, :33], past_key_values=cache, use_cache=True)[0]
        return torch.cat([first, layer(y[:, 33:], past_key_values=cache, use_cache=True)[0]], 1)

    check(parts, layer, x)


def test_modes_compute_the_same(device: str, seed: int, rng: torch.Generator) -> None:
    """Also gradients; "fused_recurrent" trains on the bits of decode."""
    layer, x = make("plain", seed, mode="fused_recurrent").to(device), tokens(rng).to(device)
    check(lambda y: layer(y)[0], layer, x)
    found = layer(x)[0]
    with torch.no_grad():
        assert torch.equal(layer(x)[0], found)
        layer.mode = "chunk"
        by_chunks = layer(x)[0]
    assert rel_rms(by_chunks, found) < 1e-5
    assert device == "cuda" or not torch.equal(by_chunks, found)  # a GPU computes fp32 tokens token by token in any case


@pytest.mark.parametrize("length, training, by_token", [(64, False, True), (64, True, False), (65, False, False)])
def test_short_calls_outside_training_are_by_token(
    length: int, training: bool, by_token: bool, seed: int, rng: torch.Generator
) -> None:
    """With gradients and without."""
    layer, x = make("plain", seed).train(training), tokens(rng, T=length)
    found = trained(lambda y: layer(y)[0], layer, x)[0]
    with torch.no_grad():
        assert torch.equal(layer(x)[0], found)
        layer.mode = "fused_recurrent"
        assert torch.equal(layer(x)[0], found) == by_token


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"mode": "parallel"}, "mode: expected 'chunk' or 'fused_recurrent', got 'parallel'"),
        ({"num_v_heads": 3}, "num_v_heads: expected a multiple of num_heads=2, got 3"),
        ({"expand_v": 1.3}, "expand_v: expected a whole number of columns, times head_dim=16, got 1.3"),
        ({"output_gate_activation": "relu"}, "output_gate_activation: expected 'swish', 'silu' or 'sigmoid', got 'relu'"),
    ],
    ids=str,
)
def test_arguments_that_are_refused(change: dict[str, Any], error: str) -> None:
    with pytest.raises(ValueError, match=f"^GatedDeltaNet: {error}"):
        GatedDeltaNet(**SIZES | change)


def test_calls_that_are_refused(seed: int, rng: torch.Generator) -> None:
    layer, x = make("plain", seed, layer_idx=None), tokens(rng, 2, 5)
    for more, error in (
        ({"past_key_values": Cache()}, "past_key_values: expected None in a layer that was made without layer_idx"),
        ({"attention_mask": torch.ones(2, 1, 5, 5)}, r"attention_mask: expected \(B=2, T=5 or more\)"),
        ({"attention_mask": torch.ones(2, 4)}, r"attention_mask: expected \(B=2, T=5 or more\)"),
    ):
        with pytest.raises(ValueError, match=f"^GatedDeltaNet: {error}"):
            layer(x, **more)
    with pytest.raises(ValueError, match=r"^GatedDeltaNet: hidden_states: expected \(B, T, hidden_size=48\), got"):
        layer(x[..., :-1])


# ---- FLA's layer


@contextmanager
def installed() -> Iterator[None]:
    integration.install(cpu=True)
    integrations.reset_calls()
    try:
        yield
    finally:
        integration.uninstall()


@contextmanager
def written_out(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """FLA's layer on the functions of `literal_fla` in place of its Triton kernels."""
    import fla.layers.gated_deltanet as layers
    import fla.modules.causal_conv1d.ops as convolutions
    import fla.modules.norm.fused_norm_gate as norms

    def norm(x: Tensor, g: Tensor, weight: Tensor, bias: None, activation: str, eps: float, **others: Any) -> Tensor:
        return literal_fla.rms_norm_gated(x, g, weight, eps, activation)

    with monkeypatch.context() as patch:
        patch.setattr(layers, "chunk_gated_delta_rule", literal_fla.gated_delta_rule)
        for module in (layers, convolutions):
            patch.setattr(module, "causal_conv1d", literal_fla.causal_conv1d)
        patch.setattr(norms, "rms_norm_gated", norm)
        yield


@each_variant
def test_parameters_are_flas(variant: str, seed: int) -> None:
    """Names, shapes and, from a seed, values; state dicts go in either direction."""
    ours, theirs = make(variant, seed), make(variant, seed, flas_layer())
    expected = theirs.state_dict()
    assert list(ours.state_dict()) == list(expected)
    for name, value in ours.state_dict().items():
        assert value.dtype == expected[name].dtype and torch.equal(value, expected[name]), name
    make(variant, seed + 1).load_state_dict(expected)
    make(variant, seed + 1, flas_layer()).load_state_dict(ours.state_dict())


@pytest.mark.parametrize("variant", ["plain", "negative eigenvalues"])
@pytest.mark.parametrize("form", ["batch", "packed", "padded", "cache"])
def test_flas_layer_has_our_gradients(variant: str, form: str, device: str, seed: int, rng: torch.Generator) -> None:
    layer = make(variant, seed, flas_layer()).to(device)
    ours = make(variant, seed).to(device)
    x = tokens(rng, 1 if form == "packed" else 2).to(device)
    more: dict[str, Any] = {}
    if form == "packed":
        more["cu_seqlens"] = torch.tensor([0, 20, 70], device=device)
    if form == "padded":
        more["attention_mask"] = torch.ones(2, 70, dtype=torch.int64, device=device)
        more["attention_mask"][0, :9] = 0

    def run(module: Any, y: Tensor) -> Tensor:
        if form != "cache":
            return module(y, **more)[0]
        cache = Cache()
        first = module(y[:, :33], past_key_values=cache, use_cache=True)[0]
        return torch.cat([first, module(y[:, 33:], past_key_values=cache, use_cache=True)[0]], 1)

    expected, wanted = trained(lambda y: run(ours, y), ours, x)
    with installed():
        found, gradients = trained(lambda y: run(layer, y), layer, x)
        convolutions = {"batch": 1, "padded": 3, "packed": 3, "cache": 6}[form]
        calls = {"causal_conv1d": convolutions} | dict.fromkeys(
            ("chunk_gated_delta_rule", "rms_norm_gated"), 2 if form == "cache" else 1
        )
        assert integrations.calls("fla") == {f"fla.{name}": {"gdn_cuda": count} for name, count in calls.items()}
    assert rel_rms(found, expected) < 1e-5
    assert all(rel_rms(gradients[name], wanted[name]) < 1e-4 for name in wanted)


def losses(layer: Any, x: Tensor, target: Tensor, steps: int = 20) -> list[float]:
    optimizer, found = torch.optim.AdamW(layer.parameters(), lr=3e-3), []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = (layer(x)[0] - target).square().mean()
        loss.backward()
        optimizer.step()
        found.append(float(loss.detach()))
    return found


def test_twenty_steps_of_training(device: str, seed: int, rng: torch.Generator, monkeypatch: pytest.MonkeyPatch) -> None:
    """FLA's layer with the integration, our layer, and FLA's layer on functions that are written out: the same losses."""
    x, target = (tokens(rng, 2, 66).to(device) for _ in range(2))
    theirs = flas_layer()
    ours = losses(make("plain", seed).to(device), x, target)
    with installed():
        integrated = losses(make("plain", seed, theirs).to(device), x, target)
        assert integrations.calls("fla")["fla.chunk_gated_delta_rule"] == {"gdn_cuda": 20}
    with written_out(monkeypatch):
        expected = losses(make("plain", seed, theirs).to(device), x, target)
    assert expected[-1] < 0.95 * expected[0]
    assert integrated == pytest.approx(expected, rel=1e-4) and ours == pytest.approx(expected, rel=1e-4)
