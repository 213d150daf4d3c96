"""transformers' Mamba, Qwen3-Next and LFM2 find our convolutions by transformers' look-up; results equal its slow paths'."""

from __future__ import annotations

import importlib
import sys

import pytest
import torch
from transformers_conv import MODELS, check_forward_and_backward, check_generate, installed, make_model, tokens

from gdn_cuda.compat import causal_conv1d, mamba_ssm

MODELING = "transformers.models.lfm2.modeling_lfm2"


@pytest.mark.parametrize("model_type", MODELS)
def test_forward_and_backward(model_type: str, seed: int, rng: torch.Generator) -> None:
    check_forward_and_backward(model_type, seed, rng, "cpu")


@pytest.mark.parametrize("model_type", MODELS)
def test_generate(model_type: str, seed: int, rng: torch.Generator) -> None:
    check_generate(model_type, seed, rng, "cpu")


def test_both_packages_at_once(seed: int, rng: torch.Generator) -> None:
    with mamba_ssm.install():
        check_generate("mamba", seed, rng, "cpu")


def test_models_that_are_imported_later_find_our_functions(monkeypatch: pytest.MonkeyPatch, rng: torch.Generator) -> None:
    monkeypatch.delitem(sys.modules, MODELING, raising=False)
    with installed() as count:
        later = importlib.import_module(MODELING)
        model = make_model("lfm2", 0)
        again = later.Lfm2ForCausalLM(model.config)
        again(tokens(rng, 1, 3, "cpu"), use_cache=False)
    assert count == {"causal_conv1d_fn": 2}


def test_uninstall_undoes_everything(seed: int, rng: torch.Generator) -> None:
    model, ids = make_model("lfm2", seed), tokens(rng, 1, 5, "cpu")
    before = model(ids).logits
    with installed() as count:
        causal_conv1d.install()  # a second call changes nothing
        assert "causal_conv1d" in sys.modules
    assert "causal_conv1d" not in sys.modules
    causal_conv1d.uninstall()  # likewise
    assert torch.equal(model(ids).logits, before) and not count
