"""Compares the machine code of two folders of prebuilt kernels, configuration by configuration.

    python -m gdn_cuda compile --arch sm_90a --out BEFORE    # in one checkout
    python -m gdn_cuda compile --arch sm_90a --out AFTER     # in another
    python benchmarks/compare_sass.py BEFORE AFTER [--diff]

A kernel is identical when its code has the same bytes, and the same when the instructions are, with stalls and addresses aside.
Of the others it lists how many instructions came and went, by opcode; --diff shows them in place. Fails when one differs.
"""

from __future__ import annotations

import argparse
import difflib
import re
import shutil
import struct
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

SECTION = struct.Struct("<IIQQQQIIQQ")  # of a 64-bit ELF file: name, type, flags, address, offset, size, ...


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("before", type=Path)
    parser.add_argument("after", type=Path)
    parser.add_argument("--kernel", default="", help="only those whose file name starts so, such as gdn-prefill-")
    parser.add_argument("--diff", action="store_true", help="show each difference")
    arguments = parser.parse_args()
    before, after = (kernels_in(folder, arguments.kernel) for folder in (arguments.before, arguments.after))
    counts: Counter[str] = Counter()
    for kernel in sorted(before.keys() | after.keys()):
        verdict = compare(before.get(kernel), after.get(kernel), arguments.diff)
        counts[verdict.partition(":")[0]] += 1
        if not verdict.startswith(("identical", "same")):
            print(f"{' '.join(kernel)}\n    {verdict}")
    print(", ".join(f"{count} {verdict}" for verdict, count in counts.most_common()) or "no kernels")
    return 0 if counts.keys() <= {"identical", "same"} else 1


def kernels_in(folder: Path, prefix: str) -> dict[tuple[str, str], Path]:
    """By file name without the key, and the name of the code's section, which holds kernel and configuration."""
    found = {}
    for path in folder.glob(f"{prefix}*.cubin"):
        flags = path.read_bytes()[48:52].hex()  # e_flags: the architecture
        found[f"{path.stem.rpartition('-')[0]} {flags}", code_of(path)[0]] = path
    return found


def code_of(cubin: Path) -> tuple[str, bytes]:
    """Name and bytes of the one section of code. What follows the ELF file, the cache's trailer, does not matter."""
    image = cubin.read_bytes()
    (table,), (size, count, names_index) = struct.unpack_from("<Q", image, 40), struct.unpack_from("<HHH", image, 58)
    sections = [SECTION.unpack_from(image, table + i * size) for i in range(count)]
    names = sections[names_index][4]
    for name, _, _, _, offset, length, *_ in sections:
        text = image[names + name : image.index(b"\0", names + name)].decode()
        if text.startswith(".text."):
            return text.removeprefix(".text."), image[offset : offset + length]
    raise SystemExit(f"{cubin}: expected a section .text.*, got none")


def compare(before: Path | None, after: Path | None, show: bool) -> str:
    if before is None or after is None:
        return f"missing: only in {(before or after or Path()).parent}"
    if code_of(before)[1] == code_of(after)[1]:
        return "identical"
    was, now = instructions(before), instructions(after)
    if was == now:
        return "same"
    if show:
        print("\n".join(difflib.unified_diff(was, now, str(before), str(after), lineterm="", n=2)))
    lines = list(difflib.unified_diff(was, now, lineterm="", n=0))[2:]
    gone, came = (Counter(opcode(line[1:]) for line in lines if line.startswith(sign)) for sign in "-+")
    balance = {name: came[name] - gone[name] for name in sorted(came | gone)}
    changes = ", ".join(f"{count:+d} {name}" for name, count in balance.items() if count)
    return f"differs: {len(was)} instructions, now {len(now)}; {sum(gone.values())} lines changed; {changes or 'same opcodes'}"


def opcode(line: str) -> str:
    return re.sub(r"^\s*(@!?U?P\w+\s+)?", "", line).split()[0].rstrip(";")


def instructions(cubin: Path) -> list[str]:
    """Labels are numbered as they come."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as plain:
        plain.write(cubin.read_bytes())
        plain.flush()
        text = subprocess.run([disassembler(), "-c", plain.name], capture_output=True, text=True, check=True).stdout
    return list(with_own_labels(re.findall(r"/\*[0-9a-f]{4,}\*/\s+(.*?;)", text)))


def with_own_labels(lines: list[str]) -> Iterator[str]:
    labels: dict[str, str] = {}
    for line in lines:
        yield re.sub(r"\.L_x_\d+", lambda label: labels.setdefault(label[0], f".L{len(labels)}"), " ".join(line.split()))


def disassembler() -> str:
    for folder in [*sys.path, "/usr/local/cuda"]:
        for place in ("nvidia/cu13/bin/nvdisasm", "bin/nvdisasm"):
            if (tool := Path(folder) / place).is_file():
                return str(tool)
    found = shutil.which("nvdisasm")
    if found is None:
        raise SystemExit("nvdisasm: pip install nvidia-cuda-nvdisasm")
    return found


if __name__ == "__main__":
    sys.exit(main())
