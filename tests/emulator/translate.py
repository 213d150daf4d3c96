"""Translates a kernel's source for g++: inline PTX into calls of ptx.hpp, __shared__ variables into memory of the emulated
block. Line numbers stay."""

from __future__ import annotations

import re

_TOOLKIT = re.compile(r"#include <cuda_\w+\.h>")  # cuda.hpp replaces it
_DEVICE = "#ifdef __CUDACC__"
_ASM = re.compile(r"\basm\s*(?:volatile\s*)?\(")
_STRING = re.compile(r'"((?:[^"\\]|\\.)*)"')
_DYNAMIC = re.compile(r"extern __shared__ (?:__align__\((\d+)\) )?([\w ]+?) (\w+)\[\];")
_STATIC = re.compile(r"(?<!extern )__shared__ ([^;]+?) (\w+)((?:\[[^;]*\])?);")


def translated(source: str) -> str:
    source = _TOOLKIT.sub("", source).replace(_DEVICE, "#if true")
    source = _DYNAMIC.sub(_dynamic, source)
    source = _STATIC.sub(r"auto& \2 = emulator::shared_variable<\1\3>([] {});", source)
    made, at = [], 0
    while found := _ASM.search(source, at):
        parts, end = _split(source, found.end())
        made += [source[at : found.start()], _call(parts), "\n" * source.count("\n", found.start(), end)]
        at = end
    return "".join([*made, source[at:]])


def _dynamic(found: re.Match[str]) -> str:
    alignment, element, name = found.groups()
    return f"{element}* const {name} = static_cast<{element}*>(emulator::dynamic_shared({alignment or 1}));"


def _split(source: str, at: int) -> tuple[list[str], int]:
    """The parts of an asm statement between its colons, and the index after its closing parenthesis; `at` is after the opening
    one."""
    parts, depth, begin = [], 0, at
    while depth >= 0:
        if string := _STRING.match(source, at):
            at = string.end()
            continue
        depth += {"(": 1, ")": -1}.get(source[at], 0)
        if depth < 0 or (depth == 0 and source[at] == ":"):
            parts.append(source[begin:at])
            begin = at + 1
        at += 1
    return parts, at


def _call(parts: list[str]) -> str:
    template, *operands = parts
    text = "".join(_STRING.findall(template)).replace("\\n", " ")
    values = [value for part in operands[:2] for value in _values(part)]
    return f'emulator::ptx<"{" ".join(text.split())}">({", ".join(values)})'


def _values(operands: str) -> list[str]:
    """The expressions of `"=r"(x), "l"(f(y))`."""
    values, at = [], 0
    while constraint := _STRING.search(operands, at):
        begin = operands.index("(", constraint.end())
        _, at = _split(operands, begin + 1)
        values.append(operands[begin + 1 : at - 1])
    return values
