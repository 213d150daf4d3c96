"""Machine code of a compiled kernel, and how it differs from another's."""

from __future__ import annotations

import difflib
import re
import shutil
import struct
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

# A section's header in a 64-bit ELF file: name, type, flags, address, offset, size, ...
SECTION = struct.Struct("<IIQQQQIIQQ")
# An attribute in .nv.info: format, name, and its value or, in the format of sized ones, how many bytes of value follow.
ATTRIBUTE = struct.Struct("<BBH")
SIZED, REGISTERS = 4, 0x2F  # REGISTERS: a function's symbol, and its registers
DATA = re.compile(r"\.nv\.(constant[1-9]|global\.init)")  # constant0 has the parameters


@dataclass(frozen=True)
class Code:
    """The executable parts of a cubin: the bytes of its code, the registers of a thread, its tables of constants by section."""

    text: bytes
    registers: int
    data: dict[str, bytes]

    def reading(self, lines: list[str]) -> Code:
        """Without the tables that these instructions do not read. Every constant of a header has a place and an address in
        them (bank 4), whether it is used or not."""
        banks = {int(bank, 16) for line in lines for bank in re.findall(r"\bc\[(0x[0-9a-f]+)\]", line)}
        kept = {f".nv.constant{bank}" for bank in banks} | ({".nv.global.init"} if 4 in banks else set())
        return Code(self.text, self.registers, {name: data for name, data in self.data.items() if name in kept})


@dataclass(frozen=True)
class Verdict:
    """`outcome`: "identical" (the same bytes), "same opcodes" (other operands, offsets or stalls) or "changed"."""

    outcome: str
    before: int = 0  # instructions; not counted if the code is identical
    after: int = 0
    detail: str = ""


def code_of(image: bytes, name: str = "cubin") -> Code:
    """The code of a cubin; the cache's trailer after the ELF file is ignored."""
    (headers,), (size, count, names_index) = struct.unpack_from("<Q", image, 40), struct.unpack_from("<HHH", image, 58)
    sections = [SECTION.unpack_from(image, headers + i * size) for i in range(count)]
    names = sections[names_index][4]
    text, registers, data = b"", 0, {}
    for at, _, _, _, offset, length, *_ in sections:
        section = image[names + at : image.index(b"\0", names + at)].decode()
        if section.startswith(".text."):
            text += image[offset : offset + length]
        elif section == ".nv.info":
            registers = most_registers(image[offset : offset + length])
        elif table := DATA.match(section):
            data[table[0]] = data.get(table[0], b"") + image[offset : offset + length]
    if not text:
        raise SystemExit(f"{name}: expected a section .text.*, got none")
    return Code(text, registers, data)


def most_registers(attributes: bytes) -> int:
    """The most registers that a function of a cubin uses."""
    most = at = 0
    while at < len(attributes):
        form, name, size = ATTRIBUTE.unpack_from(attributes, at)
        at += ATTRIBUTE.size
        if form == SIZED:
            if name == REGISTERS:
                most = max(most, struct.unpack_from("<II", attributes, at)[1])
            at += size
    return most


def compare(before: Path, after: Path, show: bool = False) -> Verdict:
    was, now = (code_of(path.read_bytes(), str(path)) for path in (before, after))
    if was == now:
        return Verdict("identical")
    lines = instructions(before), instructions(after)
    was, now = was.reading(lines[0]), now.reading(lines[1])
    if was == now:
        return Verdict("identical")
    if show:
        print("\n".join(difflib.unified_diff(*lines, str(before), str(after), lineterm="", n=2)))
    return difference(*lines, was, now)


def difference(lines_before: list[str], lines_after: list[str], before: Code, after: Code) -> Verdict:
    """The verdict on two disassemblies whose bytes differ."""
    counts = len(lines_before), len(lines_after)
    other = []
    if before.registers != after.registers:
        other.append(f"{before.registers} registers, now {after.registers}")
    if before.data != after.data:
        other.append("other constants in memory")
    if [opcode(line) for line in lines_before] == [opcode(line) for line in lines_after]:
        return Verdict("changed" if before.data != after.data else "same opcodes", *counts, ", ".join(other))
    lines = list(difflib.unified_diff(lines_before, lines_after, lineterm="", n=0))[2:]
    gone, came = (Counter(opcode(line[1:]) for line in lines if line.startswith(sign)) for sign in "-+")
    balance = {name: came[name] - gone[name] for name in sorted(came | gone)}
    changes = ", ".join(f"{count:+d} {name}" for name, count in balance.items() if count) or "the same opcodes in another order"
    return Verdict("changed", *counts, "; ".join([f"{sum(gone.values())} lines changed", *other, changes]))


def opcode(line: str) -> str:
    """The instruction with its modifiers; "@" before it where a predicate guards it."""
    guard, name = re.match(r"\s*(@!?U?P\w+\s+)?(\S+)", line).groups()  # type: ignore[union-attr]
    return ("@" if guard else "") + name.rstrip(";")


def instructions(cubin: Path) -> list[str]:
    with tempfile.NamedTemporaryFile(suffix=".cubin") as plain:
        plain.write(cubin.read_bytes())
        plain.flush()
        text = subprocess.run([disassembler(), "-c", plain.name], capture_output=True, text=True, check=True).stdout
    return list(with_own_labels(re.findall(r"/\*[0-9a-f]{4,}\*/\s+(.*?;)", text)))


def with_own_labels(lines: list[str]) -> Iterator[str]:
    """Labels numbered in the order of their first use."""
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
