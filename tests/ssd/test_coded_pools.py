"""ssd_scan on int8 pools of CPU tensors: everything of coded_pools_on_device, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from coded_pools_on_device import *  # noqa: F403
from coded_pools_on_device import with_pool
from devices import Device
from ssd_on_device import drawn

import gdn_cuda
from gdn_cuda.ssd.call import Call
from gdn_cuda.ssd.expanded import expanded_pool


@pytest.fixture
def device() -> Device:
    return Device("cpu")


def refuses(argument: str, expected: str, call: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=rf"^ssd_scan: {argument}: expected .*{expected}.*, got .+"):
        gdn_cuda.ssd_scan(**call)


def test_scales_and_dtypes_belong_together(seed: int) -> None:
    x = with_pool(drawn(Device("cpu"), seed, T=9, B=4, N=64), seed)
    scales, pool = x["state_scales"], x["initial_state"]
    refuses("state_scales", "a tensor, as initial_state is int8", x | {"state_scales": None})
    refuses("state_scales", "None, as initial_state is float32", x | {"initial_state": pool.float()})
    refuses("state_scales", "float32", x | {"state_scales": scales.bfloat16()})
    refuses("state_scales", r"the shape of initial_state .*N / 32", x | {"state_scales": scales[:-1]})
    refuses("state_scales", "contiguous states", x | {"state_scales": scales.mT.contiguous().mT})
    refuses("initial_state", "contiguous states", x | {"initial_state": pool.mT.contiguous().mT})
    refuses("state_scales", "memory of its own", x | {"state_scales": scales[:1].expand(6, -1, -1, -1)})
    refuses("initial_state", "int8", x | {"initial_state": pool.int()})
    refuses("state_scales", "None without state_indices", x | {"state_indices": None, "initial_state": None})
    dense = {"state_indices": None, "state_scales": None, "initial_state": pool[:4]}
    refuses("initial_state", "float32", x | dense)
    refuses("state_dtype", "", x | {"state_dtype": torch.float32})
    odd = drawn(Device("cpu"), seed, T=9, B=4, N=48)
    refuses("initial_state", "N that is a multiple of 32", odd | {
        "initial_state": torch.zeros(6, 4, 64, 48, dtype=torch.int8), "state_scales": torch.zeros(6, 4, 64, 2),
        "state_indices": x["state_indices"]})  # fmt: skip
    refuses(".*", "", x | {"out": scales.flatten()[: x["x"].numel()].view(x["x"].shape) if scales.is_contiguous() else pool})


def test_calls_on_expanded_tensors(seed: int) -> None:
    """What selective_scan computes where no kernel takes a call: the same states, which are rounded once."""
    x = with_pool(drawn(Device("cpu"), seed, T=9, B=4, N=64), seed)
    x["state_indices"][2] = 99
    own = [x | {name: x[name].clone() for name in ("initial_state", "state_scales")} for _ in range(2)]
    out = gdn_cuda.ssd_scan(**own[0])
    names = {"z", "seq_idx", "has_initial_state", "write_indices", "checkpoint_offsets", "boundaries", "checkpoints"}
    options = dict.fromkeys(names | {"states_before"}) | {"dt_lowest": 0.0, "dt_highest": torch.inf, "checkpoint_every": 0}
    call = Call(**options | own[1] | {"update_state": True, "out": torch.empty_like(x["x"])})
    expanded_pool(call)
    assert torch.equal(out.isnan(), call.out.isnan()) and bool(out[2].isnan().all())
    torch.testing.assert_close(out[:2], call.out[:2], rtol=1e-2, atol=1e-2)
    torch.testing.assert_close(own[0]["state_scales"], own[1]["state_scales"], rtol=1e-4, atol=0)
    difference = own[0]["initial_state"].int() - own[1]["initial_state"].int()
    assert int(difference.abs().max()) <= 1 and float((difference != 0).float().mean()) < 1e-2
