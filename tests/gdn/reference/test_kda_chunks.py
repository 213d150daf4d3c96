"""The oracle of Kimi Delta Attention by chunks against the recurrence, in fp64."""

from __future__ import annotations

import pytest
import torch
from helpers import rel_rms
from kda_cases import GATES, KEYS, decays, drawn_keys, literal, log_decays
from kda_chunks import CHANNELS, by_chunks, chunk, read, write


@pytest.mark.parametrize("T", [1, 63, 64, 65, 150])
@pytest.mark.parametrize("gates", GATES[:-1])
def test_chunks_are_the_recurrence(T: int, gates: str, seed: int) -> None:
    rng = torch.Generator().manual_seed(seed)
    for keys in KEYS:
        x = {
            "query": torch.randn(2, T, 1, 16, generator=rng),
            "key": drawn_keys(keys, (2, T, 1, 16), rng),
            "value": torch.randn(2, T, 2, 8, generator=rng),
            "beta": 2 * torch.rand(2, T, 2, generator=rng),
        }
        decay = decays(log_decays(gates, (2, T, 2, 16), rng))
        state = torch.randn(2, 2, 8, 16, generator=rng)
        output, states = literal(**x, decay=decay, state=state, norm=True)
        found, last = by_chunks(x, decay, state, norm=True)
        assert rel_rms(found, output) < 1e-12 and rel_rms(last, states[:, -1]) < 1e-12


def test_records_are_read_as_written(seed: int) -> None:
    rng = torch.Generator().manual_seed(seed)
    q, k, a = (torch.rand(50, CHANNELS, generator=rng) for _ in range(3))
    made = chunk(q, k, torch.rand(50, generator=rng), a, 0.1, True)
    for careful, bound in ((False, 3e-3), (True, 2e-5)):
        found = read(write(made, careful, torch.bfloat16), int(careful), torch.bfloat16)
        assert rel_rms(found.update, made.update) < bound and rel_rms(found.scores, made.scores) < bound
        assert rel_rms(found.key_in, made.key_in) < 3e-3 and rel_rms(found.decay, made.decay) < 1e-6
