"""Calls load the kernels that their explanations name; in a new process, in which every kernel is cold."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch


def test_calls_load_what_they_are_explained_to_launch() -> None:
    child = [sys.executable, str(Path(__file__).resolve())]
    done = subprocess.run(child, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "explained and launched" in done.stdout


def on_gpu(x: torch.Tensor) -> torch.Tensor:
    """A CUDA tensor in place of a meta tensor, with values that no operator refuses: offsets and slots are 0; matrices may be
    singular."""
    return torch.ones_like(x, device="cuda") if x.is_floating_point() or x.is_complex() else torch.zeros_like(x, device="cuda")


def every_call() -> Iterator[tuple[str, Callable[..., Any], dict[str, Any]]]:
    """The examples, which are small, and the typical calls, which are large."""
    from gdn_cuda.operators import calls, examples
    from gdn_cuda.operators.explain import function_called

    for name, case in examples.load().items():
        given = case.make(2, 5, 0)
        yield name, case.function, {key: x.cuda() if isinstance(x, torch.Tensor) else x for key, x in given.items()}
    for name, call in calls.load().items():
        for form in call.forms:
            given = calls.arguments(function_called(name), [f"{axis}={call.axes[axis]}" for axis in form.axes])
            given = {key: on_gpu(x) if isinstance(x, torch.Tensor) else x for key, x in given.items()}
            yield f"typical {name}", function_called(name), given


def main() -> int:
    from gdn_cuda import _C
    from gdn_cuda.operators.explain import explained

    certain, wrong = set(), []
    for name, function, given in every_call():
        steps = explained(function, **given).steps
        launches = [(step["kernel"], step["configuration"]) for step in steps]
        expected = {launch for launch in launches if launch[0]}
        unless = next((n for n, step in enumerate(steps) if step["reason"].startswith("then, where")), len(steps))
        certain |= expected & set(launches[:unless])
        before = len(_C.load_events())
        with contextlib.suppress(torch.linalg.LinAlgError):  # raised after all its launches
            function(**given)
        torch.cuda.synchronize()
        if others := {(event["kernel"], event["configuration"]) for event in _C.load_events()[before:]} - expected:
            wrong.append(f"{name}: launched {others}, explained {expected}")
    loaded = {(event["kernel"], event["configuration"]) for event in _C.load_events()}
    wrong += [f"{one} was explained, and never launched" for one in certain - loaded]
    print("\n".join(wrong) or f"{len(loaded)} configurations explained and launched")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
