"""cache: list, verify and clear the disk cache."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from .output import console, human_age, human_bytes, print_json, show, table


def add_parser(commands: Any) -> None:
    parser = commands.add_parser("cache", help="list, verify or clear the compiled kernels on disk")
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    for name, meaning in (
        ("ls", "every entry: size, time since last use, kernel"),
        ("verify", "checks every entry against its digest; exits 1 when one is broken"),
        ("clear", "removes every entry that gdn_cuda wrote, but not the results of `tune`"),
        ("path", "prints the folder"),
    ):
        action = actions.add_parser(name, help=meaning)
        action.add_argument("--json", action="store_true")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    from .. import _C

    directory = _C.cache_directory()
    if arguments.action == "path":
        if arguments.json:
            print_json({"directory": directory or None, "refusals": _C.cache_refusals()})
        else:
            print(directory or memory_only(_C.cache_refusals()))
        return 0 if directory else 1
    if arguments.action == "clear":
        removed = _C.cache_clear()
        left = [entry["file"] for entry in _C.cache_list()]
        # Tuned winners are measurements, which only `tune --clear` removes.
        tuned = len(list((Path(directory) / "tuned").glob("*.tuned"))) if directory else 0
        if arguments.json:
            print_json({"directory": directory or None, "removed": removed, "left": left, "tuned_kept": tuned})
        else:
            print(f"removed {removed} entries from {directory or 'memory: there is no cache folder'}")
            if left:
                print(f"not removed, as they are not entries despite their names: {', '.join(left)}")
            if tuned:
                print(f"kept the results of `tune` ({tuned}), which `python -m gdn_cuda tune --clear` removes")
        return 0
    return _list(directory, verify=arguments.action == "verify", as_json=arguments.json)


def _list(directory: str, verify: bool, as_json: bool) -> int:
    from .. import _C

    entries = _C.cache_list(verify)
    broken = [entry for entry in entries if entry["problem"]]
    if as_json:
        print_json({"directory": directory or None, "entries": entries, "verified": verify})
        return 1 if verify and broken else 0
    terminal = console()
    shown = broken if verify else sorted(entries, key=lambda entry: entry["age_seconds"])
    if shown:
        listing = table("kernel", ">size", ">last used", "problem" if verify else "file")
        for entry in shown:
            listing.add_row(
                kernel_of(entry["file"]),
                human_bytes(entry["bytes"]),
                human_age(entry["age_seconds"]),
                f"{entry['file']}: {entry['problem']}" if verify else entry["file"],
            )
        show(terminal, listing)
    where = directory or memory_only(_C.cache_refusals())
    if verify:
        terminal.print(f"{len(entries) - len(broken)} sound, {len(broken)} broken in {where}", soft_wrap=True)
        return 1 if broken else 0
    total = human_bytes(sum(entry["bytes"] for entry in entries))
    terminal.print(f"{len(entries)} entries, {total} in {where}", soft_wrap=True)
    return 0


def kernel_of(file: str) -> str:
    """The kernel in a file name, <kernel>-<key>.cubin."""
    return file.removesuffix(".cubin").rpartition("-")[0] or file


def memory_only(refusals: list[str]) -> str:
    reasons = "; ".join(refusals) or "no usable folder"
    return f"memory only ({reasons})"
