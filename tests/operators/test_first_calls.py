"""Neither the import nor a first call imports torch's tracer and its symbolic algebra, which take seconds and which eager calls
do not use. Each operator runs in its own process, because a module stays imported."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import gdn_cuda
from gdn_cuda.operators import examples

# Forks of a process that has imported torch: starting a process for each function would take seconds.
CHILD = """
import os, sys
sys.path.insert(0, {package!r})
import torch

SLOW = ("sympy", "torch._dynamo", "torch._inductor", "torch.fx.experimental.symbolic_shapes")
before = set(sys.modules)

def new():
    return sorted(name for name in set(sys.modules) - before if name.startswith(SLOW))

import gdn_cuda

assert not new(), new()
from gdn_cuda.operators import examples

torch.set_num_threads(1)
before = set(sys.modules)
failed = False
first_of = {{}}
for name, case in examples.load().items():
    first_of.setdefault(case.function, (name, case))
for name, case in first_of.values():
    if (child := os.fork()) == 0:
        case.function(**case.make(2, 3, 0))
        found = new()
        if found:
            print(name, found[:3], flush=True)
        os._exit(bool(found))
    failed |= os.waitpid(child, 0)[1] != 0
def differentiated():
    c, r, x = torch.randn(3, 4, 5)
    c = (c + torch.eye(5)[0] * 9).requires_grad_()
    gdn_cuda.toeplitz_solve(c, r, x).sum().backward()
    gdn_cuda.displacement_matvec(x.T, x.T, x[0])
    gdn_cuda.toeplitz_to_cauchy(c, r[:1])
    gdn_cuda.toeplitz_inverse_apply(*gdn_cuda.gs_compute_generators(c, r), x)
    gdn_cuda.fft_causal_conv(x[None], c).sum().backward()
    gdn_cuda.split_projections(torch.randn(1, 6, 2))
    pool = torch.zeros(2, 1, 8, 8)
    gdn_cuda.commit_replay(pool, gdn_cuda.replay_buffers(pool, 2, 1), None, torch.tensor([1]))
    gdn_cuda.commit_replay(pool, gdn_cuda.ring_buffers(pool, 2, 1))
    gdn_cuda.ssd_commit_replay(pool, gdn_cuda.ssd_replay_buffers(pool, 2, 1), -torch.ones(1))
if (child := os.fork()) == 0:
    differentiated()
    if found := new():
        print("gradients", found[:3], flush=True)
    os._exit(bool(found))
failed |= os.waitpid(child, 0)[1] != 0
sys.exit(failed)
"""


def test_neither_the_import_nor_a_first_call_imports_the_tracer() -> None:
    child = CHILD.format(package=str(Path(gdn_cuda.__file__).parents[1]))
    done = subprocess.run([sys.executable, "-c", child], capture_output=True, text=True, timeout=300, env=dict(os.environ))
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_public_operator_is_among_the_cases() -> None:
    called = {case.function for case in examples.load().values()}
    elsewhere = {"toeplitz_solve", "toeplitz_solve_symmetric", "gs_compute_generators", "toeplitz_inverse_apply",
                 "toeplitz_to_cauchy", "displacement_matvec", "cauchy_pin_l2", "fft_causal_conv",
                 "split_projections", "commit_replay", "replay_buffers", "ring_buffers", "gdn_prefill_layer",
                 "kda_prefill_layer",
                 "ssd_commit_replay", "ssd_replay_buffers"}  # fmt: skip
    elsewhere |= {"init", "compile", "warmup", "explain", "no_compile"}
    functions = {getattr(gdn_cuda, name) for name in gdn_cuda.__all__ if name not in elsewhere}
    assert {f for f in functions if callable(f) and not isinstance(f, type)} <= called
