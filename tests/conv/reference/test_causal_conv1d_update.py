"""The oracle of causal_conv1d_update against torch's conv1d, in every window of the state."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from step_conv_oracle import as_array, draws, update


def whole(inputs: torch.Tensor, x: dict) -> torch.Tensor:
    """The convolution of all inputs (B, D, L) from zeros, by torch."""
    W = x["weight"].shape[1]
    padded = F.pad(inputs.double(), (W - 1, 0))
    return F.silu(F.conv1d(padded, x["weight"].double()[:, None], x["bias"].double(), groups=len(x["weight"])))


@pytest.mark.parametrize("window", ["last", "longer", "circular", "verify"])
@pytest.mark.parametrize("W", [1, 2, 4, 9])
def test_several_calls_equal_torchs_convolution(W: int, window: str, seed: int) -> None:
    x = draws(seed, W=W, tokens=17)
    inputs = x.pop("x").double()
    columns = {"last": W - 1, "longer": W + 2, "circular": max(W - 1, 1), "verify": W + 3}[window]
    state, start, found = torch.zeros(3, 20, columns, dtype=torch.float64), 0, []
    accepted = torch.ones(3, dtype=torch.int64)
    for count in (1, 4, 2, 1, 5, 1, 3):
        more = {"circular": {"cache_seqlens": torch.full((3,), start)}, "verify": {"num_accepted_tokens": accepted}}
        out, after = update(x | {"x": inputs[..., start : start + count], "conv_state": state} | more.get(window, {}))
        state, accepted = torch.from_numpy(after), torch.full((3,), count)
        found.append(out)
        start += count
    np.testing.assert_allclose(np.concatenate(found, 2), whole(inputs, x).numpy(), rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("W", [2, 4, 7])
def test_verify_continues_after_the_accepted_tokens(W: int, seed: int) -> None:
    """Each call has four tokens, of which some are accepted; rejected tokens have no effect."""
    x = draws(seed, W=W, tokens=40, batch=1)
    drafts = x.pop("x").double()
    state = torch.zeros(1, 20, W - 2 + 4, dtype=torch.float64)
    kept, accepted, start = [], 1, 0
    for keep in (1, 4, 2, 3, 1, 1, 2, 4):
        tokens = drafts[..., start : start + 4]
        more = {"x": tokens, "conv_state": state, "num_accepted_tokens": torch.tensor([accepted])}
        out, after = update(x | more)
        sequence = torch.cat([*kept, tokens], 2)
        np.testing.assert_allclose(out, whole(sequence, x)[..., -4:].numpy(), rtol=1e-11, atol=1e-12)
        state, accepted, start = torch.from_numpy(after), keep, start + 4
        kept.append(tokens[..., :keep])


def test_states_hold_the_last_inputs(seed: int) -> None:
    """States of W − 1 columns and more, for more tokens than columns and for fewer."""
    for columns, tokens in ((3, 1), (3, 7), (6, 1), (6, 2), (6, 5), (6, 9)):
        x = draws(seed, columns=columns, tokens=tokens)
        every = np.concatenate([as_array(x["conv_state"]), as_array(x["x"])], 2)
        assert np.array_equal(update(x)[1], every[..., -columns:])
