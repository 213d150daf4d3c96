"""examples/gdn_recall.py: a few steps. Both rules have the same losses and gradients, and the output shows them."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import processes
import pytest
import torch

PATH = Path(__file__).resolve().parents[2] / "examples" / "gdn_recall.py"


@pytest.fixture(scope="module")
def example() -> ModuleType:
    spec = importlib.util.spec_from_file_location("gdn_recall", PATH)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look it up
    spec.loader.exec_module(module)
    return module


def test_both_rules_have_the_same_losses(example: ModuleType) -> None:
    ours, plain = (example.train(example.Model(rule), 3) for rule in (example.gated_delta_rule, example.loop_over_tokens))
    assert len(set(ours.losses)) == 3 and 3 < ours.losses[-1] < 4
    assert example.difference(ours, plain) < 1e-5


def test_both_rules_have_the_same_gradients(example: ModuleType) -> None:
    found = []
    for rule in (example.gated_delta_rule, example.loop_over_tokens):
        model = example.Model(rule)
        keys, values, wanted = example.draw(torch.Generator().manual_seed(1))
        torch.nn.functional.cross_entropy(model(keys, values)[:, -example.QUERIES :].flatten(0, 1), wanted.flatten()).backward()
        found.append({name: p.grad for name, p in model.named_parameters()})
    for name, gradient in found[0].items():
        assert (gradient - found[1][name]).norm() <= 1e-4 * found[1][name].norm(), name


def test_queries_ask_for_values_of_earlier_pairs(example: ModuleType) -> None:
    keys, values, wanted = example.draw(torch.Generator().manual_seed(0))
    for row, given, expected in zip(keys.tolist(), values.tolist(), wanted.tolist(), strict=True):
        pairs = dict(zip(row[: example.PAIRS], given[: example.PAIRS], strict=True))
        assert len(pairs) == example.PAIRS and [pairs[key] for key in row[example.PAIRS :]] == expected
        assert given[example.PAIRS :] == [example.VALUES] * example.QUERIES


def test_it_shows_the_losses(example: ModuleType, tmp_path: Path) -> None:
    """In a process of its own, as it sets the number of threads."""
    has_matplotlib = importlib.util.find_spec("matplotlib") is not None
    png = tmp_path / "losses.png"
    done = processes.run(PATH, "--steps", "2", *(["--png", png] if has_matplotlib else []))
    assert done.returncode == 0, done.stderr
    shown = done.stdout
    assert (
        "largest difference of the two losses" in shown
        and f"{example.train(example.Model(example.gated_delta_rule), 1).losses[0]:.4f}" in shown
    )
    assert png.exists() == has_matplotlib
