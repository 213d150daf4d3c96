"""transformers' RecurrentGemma on rglru_scan, on CPU tensors: forward, backward, generate."""

import pytest
import recurrent_gemma


@pytest.mark.parametrize("part", ["forward_and_backward", "generate", "a_state_that_continues"])
def test_recurrent_gemma(part: str, seed: int) -> None:
    getattr(recurrent_gemma, f"check_{part}")("cpu", seed)
