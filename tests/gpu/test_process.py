"""A process on a GPU: Ctrl-C in an operator's first call, first calls from disk, and loading beside a CUDA graph capture."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import torch

import gdn_cuda
from gdn_cuda import _C

OPERANDS = """
import json, signal, sys, time
import torch, gdn_cuda
torch.zeros(1, device="cuda")
def draw(*shape): return torch.randn(1, 256, *shape, device="cuda", dtype=torch.bfloat16)
q, k, v = draw(4, 128), draw(4, 128), draw(4, 128)
beta, gate = torch.rand(1, 256, 4, device="cuda"), -torch.rand(1, 256, 4, device="cuda")
"""

INTERRUPTED = (
    OPERANDS
    + """
signal.signal(signal.SIGINT, signal.default_int_handler)
print("calling", flush=True)
try:
    gdn_cuda.chunked_forward(q, k, v, beta, gate, use_qk_l2norm=True)
except KeyboardInterrupt:
    print("interrupted", flush=True)
out = gdn_cuda.chunked_forward(q, k, v, beta, gate, use_qk_l2norm=True)[0].double()
expected = gdn_cuda.reference.chunked_forward(q, k, v, beta, gate, use_qk_l2norm=True)[0].double()
print(bool((out - expected).norm() < 0.02 * expected.norm()), flush=True)
"""
)

FIRST_CALLS = (
    OPERANDS
    + """
seconds = {}
def first(name, call):
    start = time.perf_counter()
    call()
    seconds[name] = time.perf_counter() - start
h, A_log = torch.randn(1, 1, 4, device="cuda", dtype=torch.bfloat16), torch.zeros(4, device="cuda")
first("fused_gdn_gating", lambda: gdn_cuda.fused_gdn_gating(A_log, A_log, h, h))
first("chunked_forward", lambda: gdn_cuda.chunked_forward(q, k, v, beta, gate))
first("recurrent_forward", lambda: gdn_cuda.recurrent_forward(q, k, v, None, beta, gate))
t = torch.randn(64, device="cuda")
first("toeplitz_matvec", lambda: gdn_cuda.toeplitz_matvec(t, t, t))
print(json.dumps(seconds))
"""
)


def test_an_interrupted_first_call_raises_at_once_and_the_next_one_works(tmp_path: Path) -> None:
    environment = os.environ | {"GDN_JIT_CACHE_DIR": str(tmp_path / "cache"), "GDN_JIT_PREBUILT_DIR": ""}
    child = subprocess.Popen([sys.executable, "-c", INTERRUPTED], stdout=subprocess.PIPE, text=True, env=environment)
    assert child.stdout is not None
    assert child.stdout.readline() == "calling\n"
    time.sleep(1.0)  # Hopper's prefill compiles for three seconds and more
    sent = time.monotonic()
    child.send_signal(signal.SIGINT)
    assert child.stdout.readline() == "interrupted\n"
    assert time.monotonic() - sent < 1.0
    assert child.communicate()[0] == "True\n"
    assert child.returncode == 0


def test_first_calls_from_a_warm_disk_cache_take_milliseconds(tmp_path: Path) -> None:
    environment = os.environ | {"GDN_JIT_CACHE_DIR": str(tmp_path / "cache"), "GDN_JIT_PREBUILT_DIR": ""}
    for _ in range(3):
        done = subprocess.run([sys.executable, "-c", FIRST_CALLS], capture_output=True, text=True, env=environment)
        assert done.returncode == 0, done.stderr
    seconds = json.loads(done.stdout)
    assert max(seconds.values()) < 0.1, seconds  # 30 ms is the aim; a busy machine takes longer


def test_a_new_thread_needs_no_context() -> None:
    """As torch's threads of a backward, in which the first that wants one may be ours: a TMA descriptor of warm operators."""
    options = {"device": "cuda", "dtype": torch.bfloat16}
    q, k, v = (torch.randn(1, 128, 4, 128, **options) for _ in range(3))
    beta, gate = torch.rand(1, 128, 4, device="cuda"), -torch.rand(1, 128, 4, device="cuda")
    out = torch.empty_like(v)
    found: list[object] = []

    def call() -> None:
        try:
            found.append(gdn_cuda.chunked_forward(q, k, v, beta, gate, out=out)[0])
        except BaseException as error:
            found.append(error)

    call()
    thread = threading.Thread(target=call)
    thread.start()
    thread.join()
    assert found[0] is out and found[1] is out, found


def test_another_tensor_at_the_same_address() -> None:
    """TMA descriptors are kept by address: one of a tensor that was freed must not serve the next one there."""
    calls = [(1, 128, 4), (1, 64, 8), (2, 64, 4), (1, 100, 4), (1, 128, 4)]
    torch.manual_seed(0)
    memory = torch.randn(3, 128 * 4 * 128, device="cuda").bfloat16()
    addresses = set()
    for batch, tokens, heads in calls:
        q, k, v = (each[: batch * tokens * heads * 128].view(batch, tokens, heads, 128) for each in memory)
        beta = torch.rand(batch, tokens, heads, device="cuda")
        given, elsewhere = (q, k, v, beta, -beta), (q.clone(), k.clone(), v.clone(), beta, -beta)
        addresses.add(q.data_ptr())
        for each in (given, given, elsewhere):
            found = gdn_cuda.chunked_forward(*each, use_qk_l2norm=True)
            if each is given:
                kept = found
        assert all(map(torch.equal, kept, found)), (batch, tokens, heads)
    assert len(addresses) == 1


def test_loading_a_kernel_does_not_break_a_global_graph_capture_in_another_thread() -> None:
    kernel = next(each for each in _C.kernels() if each["name"] == "mn_major")
    configuration = kernel["configurations"][-1]["configuration"]
    x = torch.ones(8, device="cuda")
    failures: list[BaseException] = []

    def load() -> None:
        try:
            _C.load("gdn/mn_major", configuration, torch.cuda.current_device())
        except BaseException as error:
            failures.append(error)

    _C.compile("gdn/mn_major", configuration, _C.driver()["devices"][torch.cuda.current_device()]["arch"])
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="global"):
        y = x + 1
        thread = threading.Thread(target=load)
        thread.start()
        thread.join()
    x.fill_(2)
    graph.replay()
    assert y.tolist() == [3.0] * 8
    assert failures == []
