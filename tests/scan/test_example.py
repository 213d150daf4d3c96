"""examples/mamba_copying.py: a few steps. Both scans have the same losses and gradients, and the output shows them."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import processes
import pytest
import torch

PATH = Path(__file__).resolve().parents[2] / "examples" / "mamba_copying.py"


@pytest.fixture(scope="module")
def example() -> ModuleType:
    spec = importlib.util.spec_from_file_location("mamba_copying", PATH)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look it up
    spec.loader.exec_module(module)
    return module


def test_both_scans_have_the_same_losses(example: ModuleType) -> None:
    ours, plain = (example.train(block, 4) for block in (example.Mamba, example.PlainMamba))
    assert example.Mamba.scan is not example.PlainMamba.scan
    assert len(set(ours.losses)) == 4 and ours.losses[-1] < ours.losses[0]
    assert example.difference(ours, plain) < 1e-5


def test_sequences_hold_what_belongs_in_the_blanks(example: ModuleType) -> None:
    tokens, wanted = example.draw(torch.Generator().manual_seed(0))
    for row, expected in zip(tokens.tolist(), wanted.tolist(), strict=True):
        assert [x for x in row if x > example.BLANK] == expected
        assert row[-example.REMEMBERED :] == [example.BLANK] * example.REMEMBERED


def test_it_shows_the_losses(example: ModuleType, tmp_path: Path) -> None:
    """In a process of its own, as it sets the number of threads."""
    has_matplotlib = importlib.util.find_spec("matplotlib") is not None
    png = tmp_path / "losses.png"
    done = processes.run(PATH, "--steps", "2", *(["--png", png] if has_matplotlib else []))
    assert done.returncode == 0, done.stderr
    shown = done.stdout
    assert "largest difference of the two losses" in shown and f"{example.train(example.Mamba, 1).losses[0]:.4f}" in shown
    assert png.exists() == has_matplotlib
