"""explain: which kernels a call would launch, in which configuration and why; on any machine."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from enum import Enum
from itertools import groupby
from typing import TYPE_CHECKING, Any

from .output import console, print_json, wrap

if TYPE_CHECKING:
    from .._C import DeviceTraits
    from ..operators.explain import Explanation


def add_parser(commands: Any) -> None:
    parser = commands.add_parser(
        "explain",
        help="which kernels a call would launch, in which configuration and why",
        epilog="A call: AXIS=SIZE (B=8 T=4096), dtype=DTYPE, TENSOR=SIZExSIZE:DTYPE or TENSOR=:DTYPE (state=:bf16), "
        "ARGUMENT=VALUE (deterministic=true, state=none). Without one: every call of the operator's benchmark.",
    )
    parser.add_argument(
        "operator", metavar="OP", help="a function of gdn_cuda, such as chunked_forward, or an operator of its own"
    )
    parser.add_argument("words", nargs="*", metavar="SHAPE", help="NAME=VALUE; what is not named is as in a typical call")
    parser.add_argument("--device", metavar="NAME", help="h200, a100, sm_80 or another; default: this machine's GPU, else h200")
    parser.add_argument("--sms", type=int, metavar="N", help="multiprocessors, if not as many as this model of device has")
    parser.add_argument("--json", action="store_true")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    try:
        return _explain(arguments)
    except (ValueError, TypeError) as error:
        print(f"explain: {str(error).removeprefix('explain: ')}", file=sys.stderr)
        return 2


def _explain(arguments: argparse.Namespace) -> int:
    from ..operators.explain import device_of, device_text

    device = device_of(arguments.device, arguments.sms)
    found = dict(_calls(arguments.operator, arguments.words, device))
    if arguments.json:
        calls = [{"call": title, "steps": one.steps, "of_torch": one.of_torch} for title, one in found.items()]
        print_json({"operator": arguments.operator, "device": device, "calls": calls})
        return 0
    terminal = console()
    terminal.print(f"{arguments.operator} on {device_text(device)}", soft_wrap=True)
    # Rows of a benchmark that differ in values alone, such as gates, launch the same.
    for lines, equal in groupby(found.items(), lambda item: list(item[1].lines())):
        terminal.print("\n" + "\n".join(title for title, _ in equal), soft_wrap=True)
        for line in lines:
            text = line.lstrip(" ")
            terminal.print(wrap(terminal, text, 2 + len(line) - len(text)), soft_wrap=True)
    return 0


def _calls(operator: str, words: list[str], device: DeviceTraits) -> Iterator[tuple[str, Explanation]]:
    from ..operators.calls import arguments
    from ..operators.explain import benchmarks, function_called, recording
    from ..operators.measure import load

    if not words and operator in load().benches:
        yield from benchmarks(operator, device)
        return
    function = function_called(operator)
    given = arguments(function, words)
    with recording(device) as done:
        function(**given)
        explanation = done(operator)
    yield call_text(given), explanation


def call_text(given: dict[str, Any]) -> str:
    """The call as a user would write it, to be pasted and changed."""
    from torch import Tensor

    from ..operators.calls import DTYPES

    names = {dtype: name for name, dtype in DTYPES.items()}

    def text(value: Any) -> str:
        if value is None or isinstance(value, bool):
            return str(value).lower()
        if not isinstance(value, Tensor):
            return value.name if isinstance(value, Enum) else names.get(value, str(value))
        return "x".join(map(str, value.shape)) + f":{names[value.dtype]}"

    return " ".join(f"{name}={text(value)}" for name, value in given.items())
