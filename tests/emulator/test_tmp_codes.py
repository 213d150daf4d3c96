from itertools import product
import pytest, torch
from state_codes_on_device import *
from state_codes_on_device import drawn, decode, expected_of, is_rounded, others_stay, rel_rms

@pytest.mark.parametrize("io", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("dv", [32, 128, 96])
@pytest.mark.parametrize("B", [2, 5])
def test_new(io, dv, B, device, rng):
    for sms in (1, 132):
        x = drawn(rng, B, 1, (1, 3), 128, dv, io)
        expected, states = expected_of(x)
        output, after = decode(device, x, "gdn/decode_codes", multiprocessors=sms)
        print(rel_rms(output, expected))
        assert rel_rms(output, expected) < 3e-3
        slots = x["state_indices"]
        assert is_rounded(after["state_pool"][slots], after["state_scales"][slots], states[:, -1])
        assert others_stay(after, x, slots.tolist())

def test_extremes(device, rng):
    x = drawn(rng, 4, 1, (1, 2), 128, 32)
    x["state_scales"][x["state_indices"][0]] = 0
    x["state_scales"][x["state_indices"][1], 0, 3, 2] = 0
    x["key"][2, 0, 0, 5] = 1e15
    x["key"][3, 0, 0, :100] = 0
    expected, states = expected_of(x)
    output, after = decode(device, x, "gdn/decode_codes")
    slots = x["state_indices"]
    for n in range(4):
        print(n, rel_rms(output[n], expected[n]))
        assert rel_rms(output[n], expected[n]) < 3e-3
        assert is_rounded(after["state_pool"][slots[n]], after["state_scales"][slots[n]], states[n, -1])
