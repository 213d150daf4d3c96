"""kernels: the registry."""

from __future__ import annotations

import argparse
from typing import Any

from .output import console, human_bytes, print_json, show, table


def add_parser(commands: Any) -> None:
    parser = commands.add_parser("kernels", help="every kernel with its configurations and architectures")
    parser.add_argument("name", nargs="?", metavar="NAME", help="a family or a kernel, for --family or --kernel")
    parser.add_argument("--family", help="only this family")
    parser.add_argument("--kernel", help="only this kernel; lists its configurations")
    parser.add_argument("--json", action="store_true")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    from .. import _C
    from ..runtime import architectures, select

    registered = _C.kernels()
    family, kernel = arguments.family, arguments.kernel
    if arguments.name is not None:
        if family or kernel:
            raise ValueError(f"NAME: expected none with --family or --kernel, got {arguments.name}")
        families = {entry["family"] for entry in registered}
        family, kernel = (arguments.name, None) if arguments.name in families else (None, arguments.name)
    wanted = {choice.kernel for choice in select(family, kernel)}
    kernels = [entry for entry in registered if f"{entry['family']}/{entry['name']}" in wanted]
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
    if kernel:
        details = table("configuration", ">threads", ">shared memory")
        for entry in kernels:
            for listed in entry["configurations"]:
                details.add_row(listed["configuration"], str(listed["threads"]), human_bytes(listed["shared_bytes"]))
        terminal.print()
        show(terminal, details)
    return 0
