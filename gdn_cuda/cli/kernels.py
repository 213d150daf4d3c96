"""kernels: the registry."""

from __future__ import annotations

import argparse
from typing import Any

from .output import console, human_bytes, print_json, show, table


def add_parser(commands: Any) -> None:
    parser = commands.add_parser("kernels", help="every kernel with its configurations and architectures")
    parser.add_argument("--family", help="only this family")
    parser.add_argument("--kernel", help="only this kernel; lists its configurations")
    parser.add_argument("--json", action="store_true")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    from .. import _C
    from ..runtime import architectures, select

    wanted = {choice.kernel for choice in select(arguments.family, arguments.kernel)}
    kernels = [entry for entry in _C.kernels() if f"{entry['family']}/{entry['name']}" in wanted]
    if arguments.json:
        print_json(kernels)
        return 0
    listing = table("kernel", ">configurations", "architectures", "what it does")
    for entry in kernels:
        listing.add_row(
            f"{entry['family']}/{entry['name']}",
            str(len(entry["configurations"])),
            architectures(entry["min_capability"], entry["max_capability"]),
            entry["summary"],
        )
    terminal = console()
    show(terminal, listing)
    if arguments.kernel:
        details = table("configuration", ">threads", ">shared memory")
        for entry in kernels:
            for listed in entry["configurations"]:
                details.add_row(listed["configuration"], str(listed["threads"]), human_bytes(listed["shared_bytes"]))
        terminal.print()
        show(terminal, details)
    return 0
