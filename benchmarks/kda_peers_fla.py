"""FLA's Triton kernels for benchmarks/kda_peers.py: compiled in many processes before the first call, tuned at one head count.

    python benchmarks/kda_peers_fla.py SHARE SHARES FOLDER    # one of the processes; ends by itself

FLA tunes every kernel for every head count, some 300 candidates each, which takes minutes a head count. Here the candidates of
32 heads are compiled by all cores into Triton's cache (nothing is launched), then timed on an idle GPU; other head counts get
the winners of 32 heads, as FLA's own FLA_CACHE_MODE=fuzzy does, and are compiled by all cores again.
"""

from __future__ import annotations

import gc
import itertools
import json
import os
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

os.environ.setdefault("FLA_DISABLE_BACKEND_DISPATCH", "1")  # otherwise chunk_kda may call FlashKDA
TUNED_HEADS = 32
WAIT_S = 200


def start(folder: Path, processes: int) -> list[subprocess.Popen[bytes]]:
    log = (folder / "fla.log").open("wb")
    command = [sys.executable, __file__]
    return [
        subprocess.Popen([*command, str(share), str(processes), str(folder)], stdout=log, stderr=log)
        for share in range(processes)
    ]


def wait(folder: Path, stage: str, children: list[subprocess.Popen[bytes]], until: float) -> str:
    """Until every child has finished the stage; returns what is to be said about it."""
    started = time.monotonic()
    while time.monotonic() < until:
        left = [n for n, child in enumerate(children) if not (folder / f"{stage}.{n}").exists() and child.poll() is None]
        if not left:
            break
        time.sleep(0.2)
    done = len(list(folder.glob(f"{stage}.*")))
    return f"{stage}: {done} of {len(children)} processes after {time.monotonic() - started:.0f} s"


# ---- In this process


def quick_tuning() -> None:
    """5 ms of warm-up and 25 of calls a candidate instead of 25 and 100."""
    from triton.runtime import driver
    from triton.testing import do_bench

    driver.active.get_benchmarker = lambda: partial(do_bench, warmup=5, rep=25)


def tuners() -> dict[str, Any]:
    from triton.runtime.autotuner import Autotuner

    found = [one for one in gc.get_objects() if isinstance(one, Autotuner)]
    return {f"{one.base_fn.__module__}.{one.base_fn.__name__}": one for one in found}


def keep_winners(folder: Path) -> int:
    """Fixes the candidates that have won so far, here and for the other processes."""
    winners = {name: one.best_config for name, one in tuners().items() if hasattr(one, "best_config")}
    for name, one in tuners().items():
        if name in winners:
            one.configs = [winners[name]]
    kept = {name: [best.kwargs, best.num_warps, best.num_stages] for name, best in winners.items()}
    (folder / "written.json").write_text(json.dumps(kept))
    (folder / "written.json").rename(folder / "winners.json")
    return len(kept)


# ---- In the processes that compile


def compile_only(share: int, shares: int) -> None:
    """From here on, kernels with candidates are compiled, every shares-th candidate, and not launched."""
    from fla.ops.utils.cache import CachedAutotuner
    from triton.runtime.autotuner import Autotuner

    counter = itertools.count()

    def run(self: Any, *args: Any, **kwargs: Any) -> None:
        self.nargs = dict(zip(self.arg_names, args, strict=False))
        for candidate in self.prune_configs(kwargs) if len(self.configs) > 1 else self.configs:
            if next(counter) % shares != share:
                continue
            try:
                self.fn.run(*args, **(kwargs | {"warmup": True}), **candidate.all_kwargs())
            except Exception as error:  # a candidate that needs too much shared memory, say
                print(f"{self.base_fn.__name__}, {candidate}: {type(error).__name__}: {error}", flush=True)

    Autotuner.run = run
    CachedAutotuner.run = run


def run_kernels(heads: int, batch: int, packed: bool, bounded: bool, backward: bool, device: str = "cuda") -> None:
    import torch
    from fla.ops.kda import chunk_kda
    from kda_peers_calls import fla_arguments, fla_options
    from kda_peers_inputs import Shape, inputs

    shape = Shape(heads, (256,) * (3 if packed else batch), "3" if packed else "")
    x = inputs(shape, "init" if bounded else "softplus", device)
    arguments = {name: t.requires_grad_(backward) for name, t in fla_arguments(x).items()}
    out, states = chunk_kda(**arguments, **fla_options(x))
    if backward:
        torch.autograd.grad((out, states), list(arguments.values()), (out.detach(), states.detach()))


# heads, sequences of a batch, packed, bounded
OTHERS = (
    *((64, 1, False, True), (64, 2, False, True), (64, 1, True, True), (96, 1, False, True), (16, 8, False, True)),
    *((4, 1, False, True), (8, 1, False, True), (16, 1, False, True), (24, 1, False, True), (12, 1, False, True)),
    *((10, 1, False, True), (12, 4, False, True), (64, 1, False, False), (8, 1, False, False)),
)


def main(share: int, shares: int, folder: Path, device: str = "cuda") -> None:
    compile_only(share, shares)
    run_kernels(TUNED_HEADS, 1, False, True, True, device)
    run_kernels(TUNED_HEADS, 1, False, False, False, device)
    (folder / f"candidates.{share}").touch()
    deadline = time.monotonic() + WAIT_S
    while not (folder / "winners.json").exists():
        if time.monotonic() > deadline or os.getppid() == 1:
            return
        time.sleep(0.2)
    import triton

    winners = json.loads((folder / "winners.json").read_text())
    for name, one in tuners().items():
        if name in winners:
            kwargs, warps, stages = winners[name]
            one.configs = [triton.Config(kwargs, num_warps=warps, num_stages=stages)]
    compile_only(0, 1)
    for other in OTHERS[share::shares]:
        run_kernels(*other, False, device)
    (folder / f"others.{share}").touch()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]))
