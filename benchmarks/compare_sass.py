"""Compares the machine code of two checkouts, configuration by configuration; needs no GPU.

    python benchmarks/compare_sass.py BEFORE AFTER [--kernels 'gdn/prefill*'] [--nvcc] [--arch sm_90a] [--jobs N] [--diff]

BEFORE and AFTER are folders of this repository, built by ./develop.sh. If one of them is not built, the other's library
compiles its include/, which needs the same kernels with the same fields. Configurations are paired by kernel and values.
Where only one tree has a field, the other's configurations count as having its default. Renames are options:

    --renamed-kernel gdn/old=gdn/new            a kernel that moved
    --renamed-kernel gdn/old=gdn/new:field=1    the same; gdn/new has a field more, which tells it from another old kernel
    --renamed-field old=new                     a field of every kernel
    --renamed-field 'gdn/*:old=new'             a field of kernels whose new names match a pattern
    --renamed-value old=new                     an enumerator

@FILE reads options from a file, one a line: benchmarks/renames_since_3c2f0d9.txt has those of a release.

identical: the same bytes. same opcodes: the same instructions in the same order with other operands, offsets or stalls, which
counts as unchanged. The exit status is 1 if one is changed, is missing or does not compile. --diff shows instructions in place.
What was compiled before comes from the cache of compiled kernels.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from fnmatch import fnmatch
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

from sass_code import Verdict, compare
from sass_pairs import Listing, Pair, Renames, default_of, pairs, require_used

CHILD = Path(__file__).with_name("sass_child.py")
COLUMNS = ("identical", "same opcodes", "changed", "missing before", "missing after", "failed")
GOOD = {"identical", "same opcodes"}
Equations = list[tuple[str, str]]
MESSAGE_LINES = 20  # of a failed compile's message: the first errors, not the whole source


class Child:
    """A process that has imported one tree."""

    def __init__(self, tree: Tree):
        self._process = subprocess.Popen(
            tree.command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=tree.environment, cwd=tree.library, text=True
        )
        self.about = self._answer()

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit(f"compare_sass: {' '.join(map(str, self._process.args))} ended")  # type: ignore[arg-type]
        answer: dict[str, Any] = json.loads(line)
        return answer

    def ask(self, *question: str) -> dict[str, Any]:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(question) + "\n")
        self._process.stdin.flush()
        return self._answer()

    def close(self) -> None:
        self._process.communicate()


class Tree:
    def __init__(self, path: Path, library: Path, arch: str, nvcc: bool):
        self.path, self.library = path, library
        python = library / ".venv/bin/python"
        headers = [str(path / "include")] if library != path else []
        self.command = [str(python) if python.exists() else sys.executable, str(CHILD), arch, *headers]
        self.environment = {
            name: value for name, value in os.environ.items() if name not in ("GDN_JIT_PREBUILT_DIR", "GDN_JIT_DISABLE")
        }
        self.environment["PYTHONPATH"] = os.pathsep.join([str(library), os.environ.get("PYTHONPATH", "")])
        self.environment["GDN_JIT_USE_NVCC"] = str(int(nvcc))
        self._first = Child(self)
        about = self._first.about
        if Path(about["package"]) != library / "gdn_cuda":
            raise SystemExit(f"compare_sass: expected a Python that imports {library / 'gdn_cuda'}, got {about['package']}")
        self.listing: Listing = about["listing"]
        self.structs: dict[str, str] = about["structs"]
        self.compiler: str = about["compiler"]

    def default(self, kernel: str, field: str) -> str | None:
        headers = sorted((self.path / "include/gdn_cuda/kernels").rglob("*.cuh"))
        return default_of("\n".join(header.read_text() for header in headers), self.structs[kernel], field)

    def compiled(self, work: Iterable[tuple[str, str]], jobs: int, folder: Path) -> dict[tuple[str, str], Path | str]:
        """The cubin of each configuration, or the compiler's message. Ends the tree's processes."""
        todo: SimpleQueue[tuple[str, str]] = SimpleQueue()
        for each in work:
            todo.put(each)
        done: dict[tuple[str, str], Path | str] = {}

        def run(index: int) -> None:
            child = Child(self) if index else self._first
            try:
                while True:
                    each = todo.get_nowait()
                    answer = child.ask(*each, str(folder))
                    done[each] = answer["error"] if "error" in answer else next(folder.glob(f"*{answer['key']}*.cubin"))
            except Empty:
                child.close()

        start, count = time.monotonic(), todo.qsize()
        with ThreadPoolExecutor(jobs) as pool:
            list(pool.map(run, range(max(1, min(jobs, count)))))
        print(f"{self.path}: {count} configurations in {time.monotonic() - start:.1f} s", file=sys.stderr)
        return done


class OptionsParser(argparse.ArgumentParser):
    def convert_arg_line_to_args(self, line: str) -> list[str]:
        """A file's lines are options; empty ones, and those that start with #, are not."""
        return [] if line.startswith("#") or not line.strip() else [line.strip()]


def renames_of(kernels: Equations, fields: Equations, values: Equations) -> Renames:
    """The renames that the options say; see the top of this file."""
    added: dict[str, dict[str, str]] = {}
    for old, new in kernels:
        for more in new.split(":")[1:]:
            added.setdefault(old, {}).update([_equation(more)])
    return Renames(
        kernels={old: new.partition(":")[0] for old, new in kernels},
        fields=[(old.rpartition(":")[0] or "*", old.rpartition(":")[2], new) for old, new in fields],
        values=dict(values),
        added=added,
    )


def chosen(before: Listing, after: Listing, renames: Renames, patterns: list[str]) -> tuple[Listing, Listing]:
    """Kernels of which a name, in either tree, matches a pattern."""
    matches = lambda kernel: any(fnmatch(kernel, pattern) for pattern in patterns)  # noqa: E731
    names = {renames.kernel(old) for old in before if matches(old)} | {new for new in after if matches(new)}
    return {old: texts for old, texts in before.items() if renames.kernel(old) in names}, {
        new: texts for new, texts in after.items() if new in names
    }


def judge(
    pair: Pair, before: dict[tuple[str, str], Path | str], after: dict[tuple[str, str], Path | str], show: bool
) -> Verdict:
    if pair.before is None or pair.after is None:
        return Verdict("missing before" if pair.before is None else "missing after")
    was, now = before[pair.before], after[pair.after]
    if isinstance(was, str) or isinstance(now, str):
        message = was if isinstance(was, str) else str(now)
        return Verdict("failed", detail="\n".join(message.splitlines()[:MESSAGE_LINES]))
    return compare(was, now, show)


def table(judged: list[tuple[Pair, Verdict]]) -> str:
    """A row for each kernel: how many configurations of each outcome, and the instructions of those that changed."""
    rows = [["kernel", *COLUMNS, "instructions of the changed"]]
    kernels = list(dict.fromkeys(pair.kernel for pair, _ in judged))
    for kernel in [*kernels, "all"] if len(kernels) > 1 else kernels:
        verdicts = [verdict for pair, verdict in judged if kernel in (pair.kernel, "all")]
        counts = Counter(verdict.outcome for verdict in verdicts)
        changed = [verdict for verdict in verdicts if verdict.outcome == "changed"]
        total = f"{sum(each.before for each in changed)} -> {sum(each.after for each in changed)}" if changed else ""
        rows.append([kernel, *(str(counts[outcome]) for outcome in COLUMNS), total])
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if i == 0 else cell.rjust(width) for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in rows
    )


def main() -> int:
    parser = OptionsParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, fromfile_prefix_chars="@")
    parser.add_argument("before", type=lambda folder: Path(folder).resolve())
    parser.add_argument("after", type=lambda folder: Path(folder).resolve())
    parser.add_argument(
        "--kernels", action="append", metavar="PATTERN", help="such as 'gdn/prefill*', may be repeated; default: all"
    )
    parser.add_argument("--arch", default="sm_90a")
    parser.add_argument("--nvcc", action="store_true", help="compile with nvcc instead of NVRTC")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes (default: %(default)s)")
    parser.add_argument("--diff", action="store_true", help="show each difference")
    renamed = [("kernel", "OLD=NEW[:FIELD=VALUE]"), ("field", "[PATTERN:]OLD=NEW"), ("value", "OLD=NEW")]
    for what, form in renamed:
        parser.add_argument(f"--renamed-{what}", action="append", default=[], type=_equation, metavar=form)
    parser.add_argument(
        "--default", action="append", default=[], type=_equation, metavar="FIELD=VALUE", help="where headers do not tell"
    )
    options = parser.parse_args()
    renames = renames_of(options.renamed_kernel, options.renamed_field, options.renamed_value)
    known = dict(options.default)

    paths = (options.before, options.after)
    built = [path for path in paths if list((path / "gdn_cuda").glob("_C.*.so"))]
    if not built:
        raise SystemExit(f"compare_sass: expected a built library in {paths[0]} or {paths[1]}, got none: ./develop.sh")
    before, after = (Tree(path, path if path in built else built[0], options.arch, options.nvcc) for path in paths)
    if before.compiler != after.compiler:
        raise SystemExit(f"compare_sass: expected one compiler, got {before.compiler} and {after.compiler}")

    patterns = options.kernels or ["*"]
    try:
        require_used(before.listing, after.listing, renames)
        found, said = pairs(
            *chosen(before.listing, after.listing, renames, patterns),
            renames,
            lambda kernel, field: (
                known.get(renames.fields_in(renames.kernel(kernel)).get(field, field)) or before.default(kernel, field)
            ),
            lambda kernel, field: known.get(field) or after.default(kernel, field),
        )
    except ValueError as error:
        raise SystemExit(f"compare_sass: {error}") from None
    with tempfile.TemporaryDirectory() as folder:
        places = Path(folder) / "before", Path(folder) / "after"
        both = [pair for pair in found if pair.before and pair.after]
        cubins_before = before.compiled([pair.before for pair in both if pair.before], options.jobs, places[0])
        cubins_after = after.compiled([pair.after for pair in both if pair.after], options.jobs, places[1])
        with ThreadPoolExecutor(1 if options.diff else options.jobs) as pool:
            verdicts = list(pool.map(lambda pair: judge(pair, cubins_before, cubins_after, options.diff), found))
    judged = list(zip(found, verdicts, strict=True))
    for pair, verdict in judged:
        if verdict.outcome != "identical" and (verdict.outcome not in GOOD or verdict.detail):
            kernel, configuration = pair.before or pair.after or ("", "")
            counts = f" {verdict.before} -> {verdict.after} instructions" if verdict.before else ""
            print(f"{kernel} {configuration}\n    {verdict.outcome}{counts}{': ' if verdict.detail else ''}{verdict.detail}")
    for line in said:
        print(line)
    if not judged:
        raise SystemExit(f"compare_sass: expected kernels that match {' or '.join(patterns)}, got none")
    print(table(judged))
    return 0 if all(verdict.outcome in GOOD for verdict in verdicts) else 1


def _equation(text: str) -> tuple[str, str]:
    left, equals, right = text.partition("=")
    if not (left and equals and right):
        raise argparse.ArgumentTypeError(f"expected NAME=NAME, got {text}")
    return left, right


if __name__ == "__main__":
    sys.exit(main())
