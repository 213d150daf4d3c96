"""transformers' Mamba, FalconMamba, Jamba and Mamba-2 find our functions by transformers' look-up; results equal its slow
paths'."""

from __future__ import annotations

import importlib
import sys

import pytest
import torch
from helpers import rel_rms
from transformers_mamba import check_bf16, check_forward_and_backward, check_generate, installed, make_model, tokens

from gdn_cuda.compat import mamba_ssm
from gdn_cuda.nn import Mamba, Mamba2

MODELING = "transformers.models.mamba.modeling_mamba"


@pytest.mark.parametrize("model_type", ["mamba", "falcon_mamba", "mamba2"])
def test_forward_and_backward(model_type: str, seed: int, rng: torch.Generator) -> None:
    check_forward_and_backward(model_type, seed, rng, "cpu")


@pytest.mark.parametrize("model_type", ["mamba", "falcon_mamba", "jamba", "mamba2"])
def test_generate(model_type: str, seed: int, rng: torch.Generator) -> None:
    check_generate(model_type, seed, rng, "cpu")


@pytest.mark.parametrize("model_type", ["mamba", "mamba2"])
def test_bf16(model_type: str, seed: int, rng: torch.Generator) -> None:
    check_bf16(model_type, seed, rng, "cpu")


def test_our_block_loads_the_parameters_of_transformers_mixer(seed: int, rng: torch.Generator) -> None:
    mixer = make_model("mamba", seed).backbone.layers[0].mixer
    block = Mamba(32, d_state=8)
    block.load_state_dict(mixer.state_dict())
    u = torch.randn(2, 9, 32, generator=rng)
    assert rel_rms(block(u), mixer(u)) < 1e-5


def test_our_layer_loads_the_parameters_of_transformers_mamba2_mixer(seed: int, rng: torch.Generator) -> None:
    mixer = make_model("mamba2", seed).backbone.layers[0].mixer
    layer = Mamba2(32, d_state=8, headdim=8, ngroups=2)
    layer.load_state_dict(mixer.state_dict())
    u = torch.randn(2, 9, 32, generator=rng)
    assert rel_rms(layer(u), mixer(u)) < 1e-5


def test_models_that_are_imported_later_find_our_functions(monkeypatch: pytest.MonkeyPatch, rng: torch.Generator) -> None:
    monkeypatch.delitem(sys.modules, MODELING, raising=False)
    with installed() as calls:
        later = importlib.import_module(MODELING)
        config = importlib.import_module("transformers").MambaConfig(vocab_size=64, hidden_size=16, num_hidden_layers=1)
        later.MambaForCausalLM(config)(tokens(rng, 1, 3), use_cache=False)
    assert calls.count == {"selective_scan_fn": 1}


def test_uninstall_undoes_everything(seed: int, rng: torch.Generator) -> None:
    model, ids = make_model("mamba", seed), tokens(rng, 1, 5)
    before = model(ids).logits
    with installed() as calls:
        mamba_ssm.install()  # a second call changes nothing
        assert "mamba_ssm" in sys.modules
    assert "mamba_ssm" not in sys.modules
    mamba_ssm.uninstall()  # likewise
    assert torch.equal(model(ids).logits, before) and not calls.count
