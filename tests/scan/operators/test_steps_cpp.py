"""The C++ API of the steps on CPU tensors, which it passes to the implementations that Python registers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import cpp_api
import pytest
import torch
from step_cases import draws

import gdn_cuda
from gdn_cuda.scan.simplified_step import _inputs as simplified_inputs

SOURCE = Path(__file__).resolve().parents[1] / "scan_api.cpp"


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return cpp_api.load(SOURCE, tmp_path_factory.mktemp("scan_api"))


@pytest.mark.parametrize("given", [False, True])
@pytest.mark.parametrize("state", [torch.float32, torch.complex64])
def test_selective(api: Any, given: bool, state: torch.dtype, seed: int) -> None:
    x = draws(seed, state=state, slots=5, bare=True)
    tensors = [x[name] for name in ("x", "dt", "A", "B", "C")]
    slots, D = torch.tensor([4, -1, 0]), torch.ones(5)
    pools = [x["state"].clone() for _ in range(2)]
    out = torch.full_like(x["x"], torch.nan) if given else None
    ours = api.selective_state_update(pools[0], *tensors, D, slots, out)
    options = {"dt_softplus": True, "discretization": "zoh", "state_batch_indices": slots}
    assert torch.equal(ours, gdn_cuda.selective_state_update(pools[1], *tensors, D, **options))
    assert torch.equal(*pools) and not torch.equal(pools[0], x["state"])
    assert out is None or ours.data_ptr() == out.data_ptr()


def test_simplified(api: Any, seed: int) -> None:
    x = simplified_inputs(2, seed)
    states = [x.pop("state")]
    states.append(states[0].clone())
    ours = api.simplified_state_update(states[0], *x.values(), torch.ones(5))
    expected = gdn_cuda.simplified_state_update(states[1], **x, D=torch.ones(5), discretization="dirac", conj_sym=False)
    assert torch.equal(ours, expected) and torch.equal(*states)


def test_a_missing_required_tensor_is_refused_by_name(api: Any) -> None:
    with pytest.raises(ValueError, match=r"^selective_state_update: state: expected a tensor, got none$"):
        api.step_without_state(torch.zeros(1))
