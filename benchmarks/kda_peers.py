"""Kimi Delta Attention of this library and of others on one GPU, in one run.

    python benchmarks/kda_peers.py [--json FILE] [--rows FILE] [--limit SECONDS] [--skip FLA,...]

Prefill with initial and final fp32 states, a forward and backward pass, and decode: replays of a CUDA graph (direct calls where
that fails: marked *), medians, the L2 flushed before each. Before that, each peer's results are compared with an fp64
recurrence, in a process of its own, and a peer that kills this process is left out. The peers are what
benchmarks/kda_peers_pack.py carries. The slowest parts come last; the JSON is written after every row.
benchmarks/kda_peers_inputs.py says what the kinds of gates are.
"""

from __future__ import annotations

import argparse
import functools
import importlib.metadata
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

os.environ.setdefault("CUDA_HOME", "/usr/local/cuda")  # pip's headers, which cuDNN would compile with, may lack some

import kda_peers_calls as calls
import kda_peers_fla as fla
import torch
from kda_peers_inputs import (
    CHECKED,
    KINDS,
    SHAPES,
    TEN,
    Inputs,
    Shape,
    error,
    inputs,
    layer_expected,
    layer_inputs,
    prepared,
    recurrence,
    step_expected,
)

from gdn_cuda.cli import bench_report
from gdn_cuda.cli.bench_environment import environment
from gdn_cuda.cli.bench_timing import Timer
from gdn_cuda.operators.measure import Absent, Peer

Report = dict[str, Any]

EVERY_KIND = (Shape(64, (8192,)), Shape(32, (8192,)), Shape(32, (32768,)), Shape(8, (8192,)))

# Peers whose time may depend on the values of gates, beyond whether there is a bound
DEPENDS = ("cuDNN", "cuDNN, g given")
CHECKED_KINDS = (*KINDS, "deep")
TRAINED = (Shape(32, (8192,)), Shape(32, (32768,)))
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
DECODED = (*((heads, batch) for heads in (32, 48) for batch in (1, 64, 256)), (96, 64))


def failure(peer: str, shape: Shape, kind: str) -> str | None:
    """Why a call of cuDNN 1.32.0 is left out. Some of these end the run by an illegal memory access."""
    deep = kind == "heavy" or (kind == "softplus" and max(shape.lengths) > 8192)
    return "its results are NaN" if deep and peer.startswith("cuDNN") else None


class Run:
    def __init__(self, file: str | None, rows: str | None, limit: float, skip: set[str]) -> None:
        self.file, self.rows, self.skip, self.started = file, rows, skip, time.monotonic()
        self.until = self.started + limit
        self.report: Report = {"device": torch.cuda.get_device_name(), "torch": torch.__version__, "versions": versions()}
        self.report |= {"notes": [], "absent": {}, "checks": {}, "prefill": {}, "training": {}, "decode": {}, "host_us": {}}
        self.report |= {"beside FLA": {}}

    @functools.cached_property
    def timer(self) -> Timer:
        return Timer(100)

    def note(self, text: str) -> None:
        self.report["notes"].append(f"{time.monotonic() - self.started:.0f} s: {text}")
        self.write()

    def write(self) -> None:
        if self.file:
            Path(self.file).write_text(json.dumps(self.report, indent=1))
        if self.rows:
            bench_report.write([environment("kda_peers", cpu=False) | {"rows": bench_rows(self.report)}], self.rows)

    def attempt(self, what: str, measure: Callable[[], Any]) -> Any:
        """What `measure` returns, or None if the peer is absent or fails: another library's failure is a gap in the table."""
        if time.monotonic() > self.until:
            self.absent("no time left", what)
            return None
        try:
            return measure()
        except Exception as failure:
            reason = str(failure) if isinstance(failure, Absent) else f"{type(failure).__name__}: {failure}"
            self.absent(reason.splitlines()[0][:200], what)
            torch.cuda.synchronize()
            return None
        finally:
            self.write()

    def absent(self, reason: str, what: str) -> None:
        self.report["absent"].setdefault(reason, []).append(what)

    def time_us(self, peer: Peer) -> tuple[float, str]:
        """On the stream that a graph is captured on, as a backward pass wants it; and "*" where it could not be captured."""
        with torch.cuda.stream(self.timer.side):
            try:
                return self.timer.graph_us(peer.call), ""
            except Exception:
                torch.cuda.synchronize()
                return self.timer.stream_us(peer.call), "*"

    def here(self, peers: Any) -> list[str]:
        return [peer for peer in peers if library(peer) not in self.skip]


def library(peer: str) -> str:
    return "CuTe" if "CuTe" in peer else peer.replace(",", "").split()[0]


def versions() -> dict[str, str]:
    found = {}
    for name in ("fla-core", "nvidia-cudnn-frontend", "triton"):
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = "absent"
    return found


# ---- Checks


def check(run: Run, name: str) -> None:
    """All results of a library."""
    for peer in calls.PREFILL:
        if library(peer) == name:
            check_prefill(run, peer)
    for peer in calls.TRAINING:
        if library(peer) == name:
            check_training(run, peer)
    for peer in calls.STEPS:
        if library(peer) == name:
            check_step(run, peer)


def checked(peer: str) -> Shape:
    """FLA's kernels are compiled for this number of heads anyway."""
    return Shape(fla.TUNED_HEADS, CHECKED.lengths) if peer == "FLA" else CHECKED


def check_prefill(run: Run, peer: str) -> None:
    def errors(kind: str) -> list[float]:
        x = inputs(checked(peer), kind)
        found = calls.PREFILL[peer](x)
        return compared(found.read(found.call()), recurrence(prepared(x, torch.float64)))

    kept = run.report["checks"].setdefault(f"{peer}: o, S", {})
    for kind in CHECKED_KINDS:
        kept[kind] = run.attempt(f"check {peer} {kind}", partial(errors, kind))


def check_training(run: Run, peer: str) -> None:
    def errors(kind: str) -> list[float]:
        x = with_grads(inputs(checked(peer), kind))
        found = calls.TRAINING[peer](x)
        gradients = found.read(found.call())
        raw = "given" not in peer
        given = x if raw else prepared(x)
        exact = {name: t.double() if torch.is_tensor(t) and t.is_floating_point() else t for name, t in given.items()}
        names = ("query", "key", "value", "a", "b", "state") if raw else (*calls.TRAINED, "state")
        leaves = {name: exact[name].requires_grad_() for name in names}
        results = recurrence(prepared(exact | leaves, torch.float64) if raw else exact | leaves)
        return compared(
            gradients, torch.autograd.grad(results, list(leaves.values()), (exact["grad_out"], exact["grad_states"]))
        )

    kept = run.report["checks"].setdefault(f"{peer}: dq dk dv dg dβ dS", {})
    for kind in ("init", "short"):
        kept[kind] = run.attempt(f"check {peer} backward {kind}", partial(errors, kind))


def with_grads(x: Inputs) -> Inputs:
    return x | {"grad_out": torch.randn_like(x["value"]), "grad_states": torch.randn_like(x["state"]) * 0.1}


def check_step(run: Run, peer: str) -> None:
    def errors(heads: int, states: torch.dtype) -> list[float]:
        x = layer_inputs(heads, 5, states)
        expected = step_expected(x) if library(peer) == "FLA" else layer_expected(x)
        found = calls.STEPS[peer](x)
        return compared(found.read(found.call()), expected)

    kept = run.report["checks"].setdefault(f"{peer}: o, S", {})
    for heads, states in ((32, "fp32"), (32, "bf16"), (48, "fp32")):
        kept[f"{heads} {states}"] = run.attempt(f"check {peer} {heads} {states}", partial(errors, heads, DTYPES[states]))


def compare_with_fla(run: Run, shape: Shape) -> None:
    """At a size at which libraries split sequences."""

    def errors(kind: str, peer: str) -> list[float]:
        x = inputs(shape, kind)
        expected, found = calls.fla(x), calls.PREFILL[peer](x)
        return compared(found.read(found.call()), [t.double() for t in expected.read(expected.call())])

    for peer in run.here(calls.PREFILL):
        if peer != "FLA":
            kinds = KINDS if "given" in peer else ("init", "short")
            found = {kind: run.attempt(f"compare {peer} {shape.name} {kind}", partial(errors, kind, peer)) for kind in kinds}
            run.report["beside FLA"][peer] = found


def compared(found: Any, expected: Any) -> list[float]:
    return [error(*pair) for pair in zip(found, expected, strict=True)]


def start_checks(skip: set[str], folder: Path) -> dict[str, subprocess.Popen[bytes]]:
    """FLA's are made in this process, when its kernels are compiled."""
    names = dict.fromkeys(map(library, (*calls.PREFILL, *calls.STEPS)))
    return {
        name: subprocess.Popen([sys.executable, __file__, "--check", name, "--json", str(folder / f"{name}.json")])
        for name in names
        if name not in (*skip, "FLA")
    }


def read_checks(run: Run, children: dict[str, subprocess.Popen[bytes]], folder: Path) -> None:
    for name, child in children.items():
        try:
            status = child.wait(max(run.started + 90 - time.monotonic(), 1))
        except subprocess.TimeoutExpired:
            child.kill()
            status = child.wait()
        file = folder / f"{name}.json"
        if file.exists():
            report = json.loads(file.read_text())
            run.report["checks"] |= report["checks"]
            for reason, what in report["absent"].items():
                run.report["absent"].setdefault(reason, []).extend(what)
        if status:
            run.skip.add(name)
            run.absent(f"its check ended with {status}", name)


# ---- Times


def kinds_of(shape: Shape, peer: str) -> tuple[str, ...]:
    if shape in EVERY_KIND:
        return KINDS
    return ("init", "short") if peer in DEPENDS else ("init",)


def prefill(run: Run, shape: Shape, peers: list[str]) -> None:
    def measured(peer: str, kind: str, x: Callable[[], Inputs]) -> tuple[float, str]:
        if why := failure(peer, shape, kind):
            raise Absent(why)
        found = calls.PREFILL[peer](x())
        timed = run.time_us(found)
        if kind == "init" and shape == Shape(32, (8192,)):
            run.report["host_us"][peer] = run.timer.host_us(found.call, timed[0])
        return timed

    row = run.report["prefill"].setdefault(shape.name, {})
    for kind in KINDS:
        x = functools.cache(partial(inputs, shape, kind))
        for peer in peers:
            if kind in kinds_of(shape, peer):
                timed = run.attempt(f"{peer} {shape.name} {kind}", partial(measured, peer, kind, x))
                row.setdefault(peer, {})[kind] = timed
        del x
        torch.cuda.empty_cache()


def training(run: Run, shape: Shape, peer: str) -> None:
    def measured() -> tuple[float, str, float]:
        found = calls.TRAINING[peer](with_grads(inputs(shape, "init")))
        found.call()
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        found.call()
        peak = torch.cuda.max_memory_allocated() - before
        return *run.time_us(found), peak / 2**20

    timed = run.attempt(f"{peer} {shape.name} forward and backward", measured)
    run.report["training"].setdefault(shape.name, {})[peer] = timed
    torch.cuda.empty_cache()


def decode(run: Run, heads: int, batch: int) -> None:
    row = run.report["decode"].setdefault(f"{heads}, B {batch}", {})
    for states, dtype in DTYPES.items():
        x = layer_inputs(heads, batch, dtype)
        for peer in run.here(calls.STEPS):
            timed = run.attempt(f"{peer} {heads} B {batch} {states}", lambda peer=peer, x=x: run.time_us(calls.STEPS[peer](x)))
            row.setdefault(peer, {})[states] = timed
        del x
        torch.cuda.empty_cache()


# ---- Tables

OWN = "gdn_cuda"
# µs, set beforehand
REACH = {
    **{"64, 1×1024": 80, "64, 1×4096": 250, "64, 1×8192": 450, "64, 2×8192": 800, "64, 2×16384": 1550},
    **{"64, packed 8192: 10 random": 450, "64, packed 8192: 20 skewed": 500, "64, packed 8192: 20 even": 420},
    **{"32, 1×8192": 240, "32, 1×32768": 850, "4, 1×8192": 160, "4, 1×32768": 500, "8, 1×8192": 160, "8, 1×32768": 500},
    **{"16, 1×8192": 170, "24, 1×8192": 180, "96, 1×8192": 650, "16, 8×2048": 220},
}
REACH_OF_TRAINING = {"32, 1×8192": 1300, "32, 1×32768": 5000}


EMPTY: Report = {"peers_call_us": {}, "peers_errors": {}, "peers_disagree": []}


def bench_rows(report: Report) -> list[Report]:
    """Rows of a report as that of `bench`, in ms, for benchmarks/fill_pages.py."""
    rows = []

    def add(name: str, row: Report, which: Callable[[Any], Any], reach: float | None) -> None:
        timed = {peer: which(found) for peer, found in row.items()}
        us = {peer: one[0] for peer, one in timed.items() if one}
        if OWN not in us:
            return
        peers = {peer: us.get(peer) for peer in row if peer != OWN}
        rows.append({"shape": name, "row": name, "kind": "", "time_us": us[OWN], "reach_us": reach, "peers_us": peers} | EMPTY)

    for shape, row in report["prefill"].items():
        for kind in KINDS:
            reach = REACH.get(shape) if kind == "init" else None
            add(f"prefill {shape} {kind}", row, lambda found, kind=kind: (found or {}).get(kind), reach)
    for shape, row in report["training"].items():
        add(f"forward + backward {shape} init", row, lambda found: found, REACH_OF_TRAINING.get(shape))
    return rows


def cells(row: Any, scale: float, digits: int) -> str:
    timed = [f"{one[0] / scale:.{digits}f}{one[1]}" if one else "–" for one in (row or {}).values()]
    return " / ".join(timed) or "–"


def table(title: str, columns: list[str], rows: dict[str, list[str]]) -> list[str]:
    lines = ["", f"| {title} | {' | '.join(columns)} |", "|---" * (1 + len(columns)) + "|"]
    return [*lines, *(f"| {name} | {' | '.join(row)} |" for name, row in rows.items())]


def geomean(report: Report, peer: str, kind: str) -> str:
    timed = [report["prefill"].get(shape.name, {}).get(peer, {}).get(kind) for shape in TEN]
    return f"{math.exp(statistics.fmean(math.log(one[0]) for one in timed)) / 1000:.3f}" if all(timed) else "–"


def numbers(errors: Any) -> str:
    return " ".join(f"{1000 * one:.2g}" for one in errors) if errors else "–"


def markdown(report: Report) -> list[str]:
    named = ", ".join(f"{name} {version}" for name, version in report["versions"].items())
    lines = [f"{report['device']}, torch {report['torch']}, {named}; prefill in ms, gates {' / '.join(KINDS)}"]
    peers, shown = list(calls.PREFILL), [shape.name for shape in SHAPES]
    rows = {name: [cells(row.get(peer), 1000, 3) for peer in peers] for name, row in report["prefill"].items() if name in shown}
    ten = {peer: ("init", "short") if peer in DEPENDS else ("init",) for peer in peers}
    rows["cuDNN's ten shapes, geomean"] = [" / ".join(geomean(report, peer, kind) for kind in ten[peer]) for peer in peers]
    lines += table("heads, sequences×tokens", peers, rows)
    rows = {}
    for name, row in report["training"].items():
        timed = [row.get(peer) for peer in calls.TRAINING]
        rows[name] = [f"{one[0] / 1000:.3f}{one[1]}, {one[2]:.0f} MiB" if one else "–" for one in timed]
    lines += table("forward + backward, init", list(calls.TRAINING), rows)
    rows = {name: [cells(row.get(peer), 1, 1) for peer in calls.STEPS] for name, row in report["decode"].items()}
    lines += table("decode, µs, fp32 / bf16", list(calls.STEPS), rows)
    compared = report["checks"] | {f"{peer}: o, S beside FLA's, 32, 1×8192": row for peer, row in report["beside FLA"].items()}
    found = {name: ["; ".join(f"{kind} {numbers(one)}" for kind, one in row.items())] for name, row in compared.items()}
    lines += table("relative RMS in 1e-3", ["against fp64"], found)
    lines += ["", "Host, µs a call (32, 1×8192): " + ", ".join(f"{peer} {us:.0f}" for peer, us in report["host_us"].items())]
    lines.append("; ".join(report["notes"]))
    gaps = [
        f"{reason[:90]}: {what[0]}" + f" and {len(what) - 1} more" * (len(what) > 1)
        for reason, what in report["absent"].items()
    ]
    lines.append("; ".join(gaps[:8]))
    return lines


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", metavar="FILE", help="written after every row")
    parser.add_argument("--rows", metavar="FILE", help="a report as that of bench, for benchmarks/fill_pages.py")
    parser.add_argument("--limit", type=float, default=220, metavar="SECONDS", help="nothing is begun after that")
    parser.add_argument(
        "--skip", default="", metavar="NAMES", help="FLA,FlashKDA,cuDNN,CuTe,FlashInfer,vLLM: some to leave out"
    )
    parser.add_argument("--check", metavar="NAME", help="only check this library's results")
    parser.add_argument("--processes", type=int, default=max((os.cpu_count() or 4) - 2, 1), help="that compile FLA's kernels")
    options = parser.parse_args()
    run = Run(options.json, options.rows, options.limit, set(options.skip.split(",")))
    if options.check:
        check(run, options.check)
        return 0
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name:
        folder = Path(name)
        os.environ["TRITON_CACHE_DIR"] = f"{name}/triton"
        compiling = [] if "FLA" in run.skip else fla.start(folder, options.processes)
        checking = start_checks(run.skip, folder)
        try:
            measure(run, folder, compiling, checking)
        finally:
            for child in (*compiling, *checking.values()):
                child.kill()
            if compiling and options.json:
                Path(options.json).with_suffix(".fla.log").write_bytes((folder / "fla.log").read_bytes()[-200_000:])
            run.write()
            print("\n".join(markdown(run.report)))
    return 0


def measure(run: Run, folder: Path, compiling: list[Any], checking: dict[str, Any]) -> None:
    read_checks(run, checking, folder)
    run.note("checked")
    if compiling:  # their use of the GPU's memory and of the CPUs would disturb
        run.note(fla.wait(folder, "candidates", compiling, run.started + 100))
    others = [peer for peer in run.here(calls.PREFILL) if peer != "FLA"]
    shapes = tuple(dict.fromkeys((*SHAPES, *TEN)))
    for shape in shapes:
        prefill(run, shape, others)
    run.note("prefill without FLA")
    for heads, batch in DECODED:
        decode(run, heads, batch)
    run.note("decode")
    for peer in run.here(calls.TRAINING):
        if peer != "FLA":
            for shape in TRAINED:
                training(run, shape, peer)
    run.note("backward without FLA")
    if "FLA" not in run.skip:
        measure_fla(run, folder, compiling, shapes)


def measure_fla(run: Run, folder: Path, compiling: list[Any], shapes: tuple[Shape, ...]) -> None:
    fla.quick_tuning()
    tuned = [shape for shape in shapes if shape.heads == fla.TUNED_HEADS]
    for kind in ("init", "softplus"):
        run.attempt(f"FLA tuning {kind}", lambda kind=kind: calls.fla(inputs(tuned[0], kind)).call())
    torch.cuda.synchronize()
    run.note(f"FLA: {fla.keep_winners(folder)} kernels tuned")
    for shape in tuned:
        prefill(run, shape, ["FLA"])
    check_prefill(run, "FLA")
    check_step(run, "FLA step")
    compare_with_fla(run, tuned[0])
    run.note(fla.wait(folder, "others", compiling, time.monotonic() + 45))
    for shape in shapes:
        if shape not in tuned:
            prefill(run, shape, ["FLA"])
    run.note("FLA's prefill")
    for shape in TRAINED:
        training(run, shape, "FLA")
    run.note("FLA's backward")
    check_training(run, "FLA")
    run.note("done")


if __name__ == "__main__":
    sys.exit(main())
