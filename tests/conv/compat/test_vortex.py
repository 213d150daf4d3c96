"""gdn_cuda.compat.vortex: vortex's functions by their definitions, and a random StripedHyena 2 with and without `patch()`."""

from __future__ import annotations

import contextlib
import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import hyena_oracle as oracle
import pytest
import torch
from helpers import rel_rms
from hyena_cases import draws, fir_parameters, gated_inputs, mask
from torch import Tensor

from gdn_cuda.compat import vortex as compat

needs_vortex = pytest.mark.skipif(
    importlib.util.find_spec("vortex") is None, reason="vortex is not installed: pip install vtx einops"
)
PROMPT, STEPS = 160, 6  # vortex's own steps need at least the longest filter's taps minus one tokens


# ---- Functions


@pytest.mark.parametrize("K", [7, 40])  # up to the operator's 32 taps, and more
def test_hcs_conv(K: int, seed: int) -> None:
    x = gated_inputs(2, 6, 50, seed, torch.float32)
    weight, bias = fir_parameters(6, 6, K, seed, torch.float32)
    for gated, masked in ((False, None), (False, mask(2, 50, seed)), (True, mask(2, 50, seed))):
        y = compat.hcs_conv(*x, weight, bias, gated_bias=gated, padding_mask=masked)
        assert rel_rms(y, torch.from_numpy(oracle.short(*x, weight, bias, gated, masked)[0])) < 1e-6


@pytest.mark.parametrize("function", [compat.hcm_fft_conv, compat.fftconv_func])
def test_fft_convolutions(function: Any, seed: int) -> None:
    draw = draws(seed)
    u, k, D = draw(2, 6, 20), draw(6, 1, 9), draw(6)
    expected = torch.from_numpy(oracle.causal_conv(u, k[:, 0], D))
    for filter_ in (k, k[:, 0], k[None, :, 0]):
        assert rel_rms(function(u, filter_, D, None, gelu=False, groups=3, layer_idx=1), expected) < 1e-12
    longer = draw(6, 30)
    assert rel_rms(function(u, longer, D, None, False), torch.from_numpy(oracle.causal_conv(u, longer[:, :20], D))) < 1e-12
    with pytest.raises(ValueError, match=r"bidirectional: expected False, got True"):
        function(u, k, D, None, gelu=False, bidirectional=True)


def test_an_anticausal_filter(seed: int) -> None:
    """By vortex's formula."""
    draw = draws(seed)
    u, k, reversed_k, D = draw(2, 6, 20), draw(6, 20), draw(6, 20), draw(6)
    spectrum = torch.fft.rfft(k, n=40) + torch.fft.rfft(reversed_k, n=40).conj()
    expected = torch.fft.irfft(torch.fft.rfft(u, n=40) * spectrum, n=40)[..., :20] + u * D[:, None]
    assert rel_rms(compat.fftconv_func(u, k, D, None, k_rev=reversed_k), expected) < 1e-12


def test_unsupported_arguments_of_hcm_fft_conv(seed: int) -> None:
    u, k, D = torch.ones(1, 2, 4), torch.ones(2, 1, 3), torch.ones(2)
    for argument, given in (("gelu", True), ("dropout_mask", u), ("k_rev", k)):
        with pytest.raises(ValueError, match=f"^hcm_fft_conv: {argument}: expected "):
            compat.hcm_fft_conv(u, k, D, **({"dropout_mask": None} | {argument: given}))


def test_hcl_fft_conv(seed: int) -> None:
    draw = draws(seed)
    h, u, x2, D = draw(1, 6, 20), draw(1, 6, 20), draw(1, 6, 20), draw(6)
    expected = torch.from_numpy(oracle.causal_conv(u, h[0], D)) * x2
    assert rel_rms(compat.hcl_fft_conv(h, u, x2, D, 20, 40), expected) < 1e-12


@pytest.mark.skipif(importlib.util.find_spec("vortex") is not None, reason="vortex is installed")
def test_patch_without_vortex() -> None:
    with pytest.raises(ImportError, match="vortex"):
        compat.patch()
    compat.unpatch()


# ---- Models


@pytest.fixture
def vortex(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Any]:
    """vortex imports flash-attn's library, which models without attention do not call; on a CPU it asks for a CUDA device."""
    if importlib.util.find_spec("flash_attn_2_cuda") is None:
        monkeypatch.setitem(sys.modules, "flash_attn_2_cuda", ModuleType("flash_attn_2_cuda"))
    if not torch.cuda.is_available():
        monkeypatch.setattr(torch.cuda, "device", lambda _: contextlib.nullcontext())
    monkeypatch.chdir(tmp_path)  # where it writes a log
    from vortex.model import model, utils

    yield model, utils
    compat.unpatch()


def model_of(vortex: Any, dtype: torch.dtype, **more: Any) -> Any:
    """HCS, HCM and HCL layers, with decaying poles."""
    model, utils = vortex
    config = {
        "vocab_size": 64,
        "hidden_size": 32,
        "num_filters": 32,
        "num_layers": 4,
        "hcs_layer_idxs": [0, 3],
        "hcm_layer_idxs": [1],
        "hcl_layer_idxs": [2],
        "attn_layer_idxs": [],
        "hcs_filter_length": 7,
        "hcm_filter_length": 128,
        "hcs_filter_groups": 8,
        "hcm_filter_groups": 8,
        "hcl_filter_groups": 32,
        "short_filter_length": 3,
        "short_filter_bias": False,
        "num_attention_heads": 4,
        "state_size": 16,
        "mlp_init_method": torch.nn.init.xavier_uniform_,
        "inner_mlp_size": 64,
        "eps": 1e-6,
        "make_vocab_size_divisible_by": 8,
        "inner_size_multiple_of": 16,
        "hyena_filter_groups": 1,
        "column_split_hyena": False,
        "interleave": True,
        "evo2_style_activations": True,
        "model_parallel_size": 1,
        "pipe_parallel_size": 1,
        "tie_embeddings": True,
        "hyena_out_proj_bias": True,
        "qkv_proj_bias": False,
        "max_seqlen": 512,
        "use_flashfft": False,
        "prefill_style": "fft",
        "mlp_activation": "gelu",
        "hyena_block_dtype": dtype,
        "mlp_dtype": dtype,
    } | more
    torch.manual_seed(0)
    made = model.StripedHyena(utils.dotdict(config)).eval()
    for name, parameter in made.named_parameters():
        if name.endswith("log_poles"):
            parameter.data = -(2 * torch.randn_like(parameter.float())).exp()
        elif name.endswith("residues"):
            parameter.data = parameter.data.float() / 4
        elif name.endswith(("filter.h", "short_filter_weight")):
            parameter.data /= parameter.shape[-1] ** 0.5
        elif name.endswith("filter.D"):
            parameter.data.normal_()
        elif name.startswith("embedding"):
            parameter.data /= 16  # logits below 2, whose last bit in bfloat16 is 2^-8
        if not name.endswith(("log_poles", "residues")):
            parameter.data = parameter.data.to(dtype)
    return made


@torch.no_grad()
def logits(model: Any, tokens: Tensor, prompt: int = 0) -> Tensor:
    """Logits of all tokens at once, or of a prompt's last token and of each token after it, step by step."""
    if not prompt:
        found: Tensor = model(tokens)[0]
        return found.float()
    states = model.initialize_inference_params()
    parts = [model(tokens[:, :prompt], states)[0][:, -1:]]
    for t in range(prompt, tokens.shape[1]):
        parts.append(model(tokens[:, t : t + 1], states)[0])
    return torch.cat(parts, 1).float()


def random_tokens(L: int = PROMPT + STEPS, B: int = 2) -> Tensor:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    return torch.randint(64, (B, L), generator=torch.Generator().manual_seed(1)).to(device)


OTHER_CONFIGURATIONS: list[dict[str, Any]] = [
    {},
    {"interleave": False, "column_split_hyena": True, "hyena_flip_x1x2": True, "short_filter_bias": True},
]


@needs_vortex
@pytest.mark.parametrize("more", OTHER_CONFIGURATIONS, ids=["evo2", "striped hyena"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_patched_models_have_the_same_logits(vortex: Any, dtype: torch.dtype, more: dict[str, Any]) -> None:
    model, tokens = model_of(vortex, dtype, **more), random_tokens()
    for prompt in (0, PROMPT):
        before = logits(model, tokens, prompt)
        compat.patch()
        compat.patch()  # changes nothing
        patched = logits(model, tokens, prompt)
        compat.unpatch()
        assert torch.equal(logits(model, tokens, prompt), before), "unpatched models are what they were"
        error = (patched - before).abs()
        assert 0.1 < before.std() < 1 and error.max() < 5e-2 and error.mean() < 5e-3
        assert dtype == torch.bfloat16 or rel_rms(patched, before) < 1e-4
        assert not torch.equal(patched, before), "the patched model ran vortex's own functions"


@needs_vortex
@pytest.mark.parametrize("prompt", [1, 2, 5, 100])
def test_prompts_shorter_than_the_filters(vortex: Any, prompt: int) -> None:
    """Steps equal all tokens at once, which is not so for vortex's own."""
    model, tokens = model_of(vortex, torch.float32), random_tokens(prompt + 10)
    compat.patch()
    assert rel_rms(logits(model, tokens, prompt), logits(model, tokens)[:, prompt - 1 :]) < 1e-4


@needs_vortex
def test_padding(vortex: Any) -> None:
    model, tokens = model_of(vortex, torch.float32), random_tokens()
    kept = torch.ones_like(tokens)
    kept[1, 100:] = 0
    with torch.no_grad():
        before = model(tokens, padding_mask=kept)[0]
        compat.patch()
        assert rel_rms(model(tokens, padding_mask=kept)[0], before) < 1e-4


@needs_vortex
def test_gradients(vortex: Any) -> None:
    model, tokens = model_of(vortex, torch.float32), random_tokens(20)
    gradients = []
    for change in (lambda: None, compat.patch):
        change()
        model.zero_grad()
        model(tokens)[0].square().sum().backward()
        gradients.append({name: x.grad for name, x in model.named_parameters() if x.grad is not None})
    assert gradients[0].keys() == gradients[1].keys() and len(gradients[0]) > 20
    for name, expected in gradients[0].items():
        assert rel_rms(gradients[1][name], expected) < 1e-4, name


@needs_vortex
@pytest.mark.parametrize("more", [{"long_fir_threshold": 40}, {"print_activations": True}], ids=str)
def test_options_left_to_vortex(vortex: Any, more: dict[str, Any]) -> None:
    model, tokens = model_of(vortex, torch.float32, **more), random_tokens(60, 1)
    before = logits(model, tokens)
    compat.patch()
    assert rel_rms(logits(model, tokens), before) < 1e-4


@needs_vortex
def test_the_filter_is_not_materialised(vortex: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    compat.patch()
    model = model_of(vortex, torch.float32)
    shapes = []
    compute = type(model.blocks[2].filter).compute_filter
    monkeypatch.setattr(
        type(model.blocks[2].filter), "compute_filter", lambda *x: shapes.append((y := compute(*x))[0].shape) or y
    )
    logits(model, random_tokens())
    assert shapes == [(1, 32, 0)]
