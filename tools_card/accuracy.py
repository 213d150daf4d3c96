"""accuracy.py VARIANT...: relative RMS errors of output and state against the recurrence in fp64."""
import sys

import torch
from measure import child

import os

import gdn_cuda
from gdn_cuda import reference
from gdn_cuda.gdn.inputs import make_gdn_inputs
from gdn_cuda.gdn.measure_gates import gates


def rel(a, b):
    return ((a.double() - b).norm() / b.norm()).item()


DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
LENGTH = 512 if DEVICE == "cuda" else 16
CASES = [
    (f"{kind} {mode} beta {beta_max:g} {str(dtype)[6:]}", kind, mode, beta_max, dtype)
    for dtype in (torch.bfloat16, torch.float16)
    for kind, mode, beta_max in (
        ("init", "random", 1),
        ("fast", "random", 1),
        ("mixed", "random", 1),
        ("init", "parallel", 2),
        ("init", "repeated", 2),
        ("mixed", "repeated", 2),
        ("init", "unnormalized", 1),
    )
]


def inputs(kind, mode, beta_max, dtype):
    x = make_gdn_inputs(
        T=LENGTH, B=2, Hk=16, Hv=32, dk=128, dv=128, seed=1, device=DEVICE, dtype=dtype, gate_range=(-1.0, 0.0), beta_max=float(beta_max), key_mode=mode
    )
    torch.manual_seed(2)
    x["gate"] = gates(kind, (2, LENGTH), 32, DEVICE).to(x["gate"].dtype)
    return x


def run(variant):
    done = {}
    for name, *case in CASES:
        x = inputs(*case)
        norm = case[1] == "unnormalized"
        out, state = gdn_cuda.chunked_forward(**x, use_qk_l2norm=norm)[:2]
        path = f"/tmp/card_expected_{len(done)}.pt"
        if not os.path.exists(path):
            y = {k: v.double() if v is not None else v for k, v in x.items()}
            expected = reference.recurrent(**y, use_qk_l2norm=norm)[:2]
            torch.save([e.float() for e in expected], path)
        expected = torch.load(path)
        done[name] = f"{rel(out, expected[0].double()):.2e} {rel(state, expected[1].double()):.2e}"
    for name, value in done.items():
        print(f"{variant:4d} {name:42s} {value}", flush=True)


if __name__ == "__main__":
    for v in sys.argv[1:]:
        os.waitpid(child(int(v), run), 0)
