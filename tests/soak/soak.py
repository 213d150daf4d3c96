"""A soak as an engine serves: `python tests/soak/soak.py --seconds 60`, on a GPU with --device cuda. An epoch is one seed:
requests arrive for some steps, and the last ones end. A failure prints the command that repeats its epoch alone."""

from __future__ import annotations

import argparse
import gc
import resource
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

if __name__ == "__main__":  # pytest has these folders on its path
    sys.path[:0] = [str(Path(__file__).resolve().parents[1]), str(Path(__file__).resolve().parents[2])]

import torch
from soak_alone import Oracle
from soak_counts import Counts, table
from soak_delta import (
    BoundedGates,
    EightBitChannels,
    EightBitStates,
    GatedDeltaNet,
    KimiDeltaAttention,
    MixedStates,
    SixteenBitStates,
)
from soak_engine import Engine, Load
from soak_layer import Layer
from soak_mamba import Mamba, Mamba2
from soak_streams import Streams

LITERAL = {"cpu": 1, "cuda": 4}  # one of so many requests is compared with fp64
WARM = 2  # epochs after which memory no longer grows
GROWTH = {"cuda": 1 << 20, "cpu": 64 << 20}  # bytes; those of a process include torch's and the allocator's own


def layers(device: str) -> list[Layer]:
    if device == "cuda":
        return [
            GatedDeltaNet(device, (16, 32), 128, 128),
            SixteenBitStates(device, (4, 8), 128, 128),
            EightBitStates(device, (16, 32), 128, 128),
            MixedStates(device, (2, 4), 64, 128),
            KimiDeltaAttention(device, (32, 32), 128, 128),
            EightBitChannels(device, (8, 8), 128, 128),
            BoundedGates(device, (8, 8), 128, 128),
            Mamba(device, 5120, 16),
            Mamba2(device, 64, 64, 128, 8),
        ]
    return [
        GatedDeltaNet(device, (1, 2), 64, 16),
        SixteenBitStates(device, (2, 2), 64, 24),
        EightBitStates(device, (1, 2), 64, 16),
        MixedStates(device, (2, 2), 64, 24),
        KimiDeltaAttention(device, (2, 2), 64, 16),
        EightBitChannels(device, (1, 2), 64, 16),
        BoundedGates(device, (1, 2), 64, 16),
        Mamba(device, 24, 16),
        Mamba2(device, 4, 16, 64, 2),
    ]


LOADS = {"cpu": Load(300, 40, 400, 12, steps=25), "cuda": Load(4000, 150, 8192, 40, arrivals=0.9, steps=20)}


@dataclass
class Soak:
    device: str
    only: str | None = None  # the name of a layer
    load: Load | None = None
    by_kernels: bool = False  # on a CPU, in the emulator
    layers: list[Layer] | None = None
    engines: list[Engine] = field(default_factory=list)
    oracles: list[Oracle] = field(default_factory=list)
    memory: list[int] = field(default_factory=list)  # bytes in use after each epoch
    failures: dict[str, str] | None = None  # by layer, or of memory: these fail no epoch, and their layers stop

    def __post_init__(self) -> None:
        chosen = [layer for layer in self.layers or layers(self.device) if self.only in (None, layer.name)]
        self.engines = [Engine(layer, self.load or LOADS[self.device], self.device == "cuda") for layer in chosen]
        self.oracles = [Oracle(layer, self.by_kernels or self.device == "cuda") for layer in chosen]
        self.streams = Streams(self.device)

    def epoch(self, seed: int) -> None:
        for engine in self.engines:
            engine.reset(seed)
        while not all(self.is_over(engine) for engine in self.engines):
            for engine, oracle in zip(self.engines, self.oracles, strict=True):
                self.attempt(engine, seed, lambda: self.step(engine, oracle))  # noqa: B023
        for engine in self.engines:
            self.attempt(engine, seed, engine.close)
        self.measure()

    def attempt(self, engine: Engine, seed: int, action: Callable[[], None]) -> None:
        name = engine.layer.name
        if name in (self.failures or ()):
            return
        try:
            action()
        except Exception as error:
            again = f"python tests/soak/soak.py --device {self.device} --seed {seed} --epochs 1 --layer '{name}'"
            failure = f"{name}, seed {seed}, step {engine.now}: {again}\n{error}"
            if self.failures is None:
                raise AssertionError(failure) from error
            self.failures[name] = failure

    def is_over(self, engine: Engine) -> bool:
        return engine.idle or engine.layer.name in (self.failures or ())

    def step(self, engine: Engine, oracle: Oracle) -> None:
        if engine.idle:
            return
        for request in engine.step(self.streams):
            if request.seat is not None and request.seat.mode != "plain":
                engine.leave(request)
            oracle.check(request, request.number % LITERAL[self.device] == 0, engine.counts)
            engine.end(request)

    def measure(self) -> None:
        gc.collect()
        if self.device == "cuda":
            torch.cuda.synchronize()
            self.memory.append(torch.cuda.memory_allocated())
        else:
            self.memory.append(int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize())
        grown = self.memory[-1] - self.memory[min(WARM, len(self.memory)) - 1]
        found = f"memory after each epoch, bytes: expected no growth after the first {WARM}, got {self.memory}"
        if grown > GROWTH[self.device] and not self.failures:  # requests of a layer that failed keep theirs
            if self.failures is None:
                raise AssertionError(found)
            self.failures["memory"] = found

    def run(self, seconds: float, seed: int, least: int = 1) -> int:
        """How many epochs it has taken: `least`, and more while there is time."""
        end, done = time.monotonic() + seconds, 0
        while done < least or time.monotonic() < end:
            begin = time.monotonic()
            self.epoch(seed + done)
            done += 1
            if self.failures is not None:
                print(f"seed {seed + done - 1}: {time.monotonic() - begin:.1f} s", file=sys.stderr, flush=True)
        return done

    def counts(self) -> dict[str, Counts]:
        return {f"{engine.layer.name}: {engine.layer.operators}": engine.counts for engine in self.engines}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cpu", choices=list(GROWTH))
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--epochs", type=int, help="so many, in place of the time")
    parser.add_argument("--layer", help="this one alone")
    given = parser.parse_args()
    soak, begin = Soak(given.device, given.layer, failures={}), time.monotonic()
    epochs = soak.run(0 if given.epochs else given.seconds, given.seed, given.epochs or 1)
    memory = ", ".join(f"{soak.memory[at] / 2**20:.1f}" for at in (0, min(WARM, epochs) - 1, -1))
    print(f"Seeds {given.seed} to {given.seed + epochs - 1}, {time.monotonic() - begin:.0f} s;", end=" ")
    print(f"MiB after the first epoch, the second and the last: {memory}.\n\n{table(soak.counts())}")
    for failure in (soak.failures or {}).values():
        print(f"\n{failure}")
    sys.exit(1 if soak.failures else 0)


if __name__ == "__main__":
    with torch.no_grad():
        main()
