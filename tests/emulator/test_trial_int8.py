import pytest, os, torch
from coded_steps_on_device import *
from step_cases import OUT_BOUND
@pytest.mark.parametrize("n", [1, 2])
def test_trial(device, seed, n, monkeypatch):
    monkeypatch.setenv("GDN_TRY_STEP", str(n))
    for bare, dim, mps in ((False, 64, 1), (True, 32, 132), (False, 16, 1)):
        x = drawn(seed, 128, dim=dim, heads=4, batch=5, io=BF16, bare=bare)
        expected, states = expected_of(x)
        there = {name: moved(y, device) for name, y in x.items()}
        there["out"] = torch.full(x["x"].shape, torch.nan, dtype=BF16)
        with device.kernels(multiprocessors=mps) as names:
            selective_state_update(**there)
        print(names() if callable(names) else names)
        wanted = states.double().unflatten(-1, (-1, 32)).abs().amax(-1) / 127
        error = ((read(there["state"], there["state_scales"]) - states).abs().unflatten(-1, (-1, 32)) / wanted[..., None]).max()
        print("STEPS", error, "SCALES", ((there["state_scales"] - wanted).abs() / wanted).max())
        close(there["out"], expected, OUT_BOUND[BF16])
        assert error < 0.6
