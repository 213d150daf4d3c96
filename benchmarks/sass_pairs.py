"""Pairs the configurations of two trees: the same kernel with the same values of the same fields, whatever their names."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

Fields = dict[str, str]
Listing = Mapping[str, list[str]]  # kernel ("gdn/prefill") -> its configurations ("{.head_k = 128, .io = DType::bf16}")
Default = Callable[[str, str], "str | None"]  # (kernel, field) -> the value of an omitted field; None: unknown


@dataclass(frozen=True)
class Renames:
    """Old names to new ones."""

    kernels: Mapping[str, str] = field(default_factory=dict)
    fields: Mapping[str, str] = field(default_factory=dict)
    values: Mapping[str, str] = field(default_factory=dict)  # enumerators


@dataclass(frozen=True)
class Pair:
    """One configuration; None where a tree lacks it. `kernel` has its new name."""

    kernel: str
    before: tuple[str, str] | None  # kernel and configuration, as the tree has them
    after: tuple[str, str] | None


def fields_of(configuration: str) -> Fields:
    """ "{.head_k = 128, .io = DType::f32}" as {"head_k": "128", "io": "f32"}."""
    found = re.findall(r"\.(\w+)\s*=\s*([^,{}]+)", configuration)
    return {name: text.strip().rpartition("::")[2] for name, text in found}


def pairs(
    before: Listing, after: Listing, renames: Renames, default_before: Default, default_after: Default
) -> tuple[list[Pair], list[str]]:
    """All pairs, and the fields that only one tree has. Raises ValueError for a rename that renames nothing, and for a field
    that only one tree has and whose default is unknown."""
    _require_used(before, after, renames)
    renamed = {renames.kernels.get(kernel, kernel): kernel for kernel in before}
    if len(renamed) < len(before):
        raise ValueError("kernels: expected different names, got two of BEFORE with the same new name")
    found: list[Pair] = []
    said: list[str] = []
    for kernel in dict.fromkeys([*renamed, *after]):
        old = renamed.get(kernel)
        was = [(_renamed(fields_of(text), renames), text) for text in before.get(old, [])] if old else []
        now = [(fields_of(text), text) for text in after.get(kernel, [])]
        if was and now:
            old_names = {new: name for name, new in renames.fields.items()}
            said += _fill(kernel, "BEFORE", was, now, lambda name, kernel=kernel: default_after(kernel, name))
            said += _fill(
                kernel, "AFTER", now, was, lambda name, old=old, names=old_names: default_before(old, names.get(name, name))
            )
        by_values = {_key(values): (kernel, text) for values, text in now}
        for values, text in was:
            found.append(Pair(kernel, (str(old), text), by_values.pop(_key(values), None)))
        found += [Pair(kernel, None, left) for left in by_values.values()]
    return found, said


def _key(values: Fields) -> frozenset[tuple[str, str]]:
    return frozenset(values.items())


def _renamed(values: Fields, renames: Renames) -> Fields:
    result = {renames.fields.get(name, name): renames.values.get(value, value) for name, value in values.items()}
    if len(result) < len(values):
        raise ValueError(f"fields: expected different names, got two of {', '.join(values)} with the same new name")
    return result


def _fill(
    kernel: str,
    side: str,
    lacking: list[tuple[Fields, str]],
    having: list[tuple[Fields, str]],
    default: Callable[[str], str | None],
) -> list[str]:
    """Gives the configurations of one side the defaults of fields that only the other has."""
    said = []
    present = {name for values, _ in lacking for name in values}
    for name in dict.fromkeys(name for values, _ in having for name in values):
        if name in present:
            continue
        value = default(name)
        if value is None:
            raise ValueError(
                f"{kernel}: expected a default of the field {name}, which {side} lacks, got none: --default {name}=…"
            )
        for values, _ in lacking:
            values[name] = value
        said.append(f"{kernel}: {side} lacks the field {name}, which counts as {value}")
    return said


def _require_used(before: Listing, after: Listing, renames: Renames) -> None:
    def names(listing: Listing) -> tuple[set[str], set[str], set[str]]:
        every = [fields_of(text) for texts in listing.values() for text in texts]
        return set(listing), {name for each in every for name in each}, {value for each in every for value in each.values()}

    for what, table, old, new in zip(
        ("kernel", "field", "value"),
        (renames.kernels, renames.fields, renames.values),
        names(before),
        names(after),
        strict=True,
    ):
        for was, now in table.items():
            if was not in old or now not in new:
                raise ValueError(f"renamed {what}: expected {was} in BEFORE and {now} in AFTER, got none in one of them")


def default_of(headers: str, struct: str, member: str) -> str | None:
    """The value of a member that an initialiser of the struct leaves out, from the text of C++ headers. None: not found, or not
    a literal."""
    body = _body(headers, rf"\bstruct\s+(?:alignas\([^)]*\)\s*)?{re.escape(struct)}\s*(?:final\s*)?\{{")
    if body is None:
        return None
    for kind, declared in re.findall(
        r"(?:^|[;{}])\s*((?:[\w:]+\s+)*[\w:]+)\s+(\w+(?:\s*=[^;,]*)?(?:,\s*\w+(?:\s*=[^;,]*)?)*)\s*(?=;)", body
    ):
        if "static" in kind.split() or "using" in kind.split():
            continue
        for one in declared.split(","):
            name, _, value = (part.strip() for part in one.partition("="))
            if name != member:
                continue
            if value:
                return (
                    value.rpartition("::")[2]
                    if re.fullmatch(r"-?\d+|[A-Za-z_][\w:]*", value) and not _is_constant(value)
                    else None
                )
            return _zero(headers, kind.split()[-1])
    return None


def _is_constant(value: str) -> bool:
    return re.fullmatch(r"k[A-Z]\w*", value.rpartition("::")[2]) is not None


def _zero(headers: str, kind: str) -> str | None:
    if kind == "bool":
        return "false"
    if re.fullmatch(r"int|unsigned|long|short|char|(std::)?u?int\d+_t|i\d+|u\d+|(std::)?size_t", kind):
        return "0"
    body = _body(headers, rf"\benum\s+(?:class\s+)?{re.escape(kind.rpartition('::')[2])}\b[^{{;]*\{{")
    first = re.match(r"\s*(\w+)", body or "")
    return first[1] if first else None


def _body(headers: str, start: str) -> str | None:
    """The text between the braces that `start` opens, without comments and inner braces."""
    text = re.sub(r"//[^\n]*|/\*.*?\*/", "", headers, flags=re.DOTALL)
    opening = re.search(start, text)
    if opening is None:
        return None
    depth, body = 1, ""
    for at in range(opening.end(), len(text)):
        depth += {"{": 1, "}": -1}.get(text[at], 0)
        if depth == 0:
            return body
        if depth == 1:
            body += text[at]
    return None
