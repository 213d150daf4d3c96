"""Pairs the configurations of two trees: the same kernel with the same values of the same fields, whatever their names."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import partial

Fields = dict[str, str]
Listing = Mapping[str, list[str]]  # kernel ("gdn/prefill") -> its configurations ("{.head_k = 128, .io = DType::bf16}")
Default = Callable[[str, str], "str | None"]  # (kernel, field) -> the value of an omitted field; None: unknown


@dataclass(frozen=True)
class Renames:
    """Old names to new ones. A pattern of kernels, such as "gdn/*", is matched with their new names."""

    kernels: Mapping[str, str] = field(default_factory=dict)
    fields: Sequence[tuple[str, str, str]] = ()  # pattern of kernels, old name, new name
    values: Mapping[str, str] = field(default_factory=dict)  # enumerators
    # By the old name of a kernel: fields that it lacks, and that the kernel which it has become has.
    added: Mapping[str, Fields] = field(default_factory=dict)

    def kernel(self, old: str) -> str:
        return self.kernels.get(old, old)

    def fields_in(self, kernel: str) -> Fields:
        """Old names to new ones in a kernel with this new name."""
        return {old: new for pattern, old, new in self.fields if fnmatchcase(kernel, pattern)}


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
    """All pairs, and the fields that only one tree has. Raises ValueError for a field that only one tree has and whose default
    is unknown, and for two kernels of BEFORE with configurations that become the same one."""
    olds: dict[str, list[str]] = {}
    for old in before:
        olds.setdefault(renames.kernel(old), []).append(old)
    found: list[Pair] = []
    said: list[str] = []
    for kernel in dict.fromkeys([*olds, *after]):
        renamed = renames.fields_in(kernel)
        old_names = {new: old for old, new in renamed.items()}
        now = [(fields_of(text), text) for text in after.get(kernel, [])]
        was = {old: [(_renamed(old, text, renames, renamed), text) for text in before[old]] for old in olds.get(kernel, [])}
        if now:
            for old, configurations in was.items():
                said += _fill(kernel, "AFTER", now, configurations, partial(_default_of_old, default_before, old, old_names))
            for configurations in was.values():
                said += _fill(kernel, "BEFORE", configurations, now, partial(default_after, kernel))
        by_values = {_key(values): (kernel, text) for values, text in now}
        seen: dict[frozenset[tuple[str, str]], str] = {}
        for old, configurations in was.items():
            for values, text in configurations:
                if (other := seen.setdefault(_key(values), old)) != old:
                    raise ValueError(
                        f"{kernel}: expected different configurations of {other} and {old}, got {text} of both: "
                        f"--renamed-kernel {old}={kernel}:FIELD=VALUE"
                    )
                found.append(Pair(kernel, (old, text), by_values.pop(_key(values), None)))
        found += [Pair(kernel, None, left) for left in by_values.values()]
    return found, said


def _default_of_old(default: Default, kernel: str, old_names: Fields, name: str) -> str | None:
    return default(kernel, old_names.get(name, name))


def _key(values: Fields) -> frozenset[tuple[str, str]]:
    return frozenset(values.items())


def _renamed(kernel: str, configuration: str, renames: Renames, names: Fields) -> Fields:
    """The fields of a configuration of BEFORE as AFTER names them."""
    values, added = fields_of(configuration), renames.added.get(kernel, {})
    result = {names.get(name, name): renames.values.get(value, value) for name, value in values.items()}
    if len(result | added) < len(values) + len(added):
        raise ValueError(
            f"fields: expected different names, got two of {', '.join([*values, *added])} of {kernel} with the same new name"
        )
    return result | added


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


def require_used(before: Listing, after: Listing, renames: Renames) -> None:
    """Raises ValueError for a rename that renames nothing. The listings have all kernels, whichever are compared."""

    def require(what: str, old: str, new: str, old_names: Iterable[str], new_names: Iterable[str]) -> None:
        if old not in old_names or new not in new_names:
            raise ValueError(f"renamed {what}: expected {old} in BEFORE and {new} in AFTER, got none in one of them")

    for old, new in renames.kernels.items():
        require("kernel", old, new, before, after)
    for pattern, old, new in renames.fields:
        what = "field" if pattern == "*" else f"field of {pattern}"
        old_fields = _all_fields(before, lambda kernel, pattern=pattern: fnmatchcase(renames.kernel(kernel), pattern))
        new_fields = _all_fields(after, lambda kernel, pattern=pattern: fnmatchcase(kernel, pattern))
        require(what, old, new, {name for name, _ in old_fields}, {name for name, _ in new_fields})
    values = [{value for _, value in _all_fields(listing, lambda kernel: True)} for listing in (before, after)]
    for old, new in renames.values.items():
        require("value", old, new, *values)
    for old, added in renames.added.items():
        new = renames.kernel(old)
        new_fields = {each for text in after[new] for each in fields_of(text).items()}
        for name, value in added.items():
            if (name, value) not in new_fields:
                raise ValueError(f"renamed kernel: expected .{name} = {value} in {new} of AFTER, got none")


def _all_fields(listing: Listing, chosen: Callable[[str], bool]) -> set[tuple[str, str]]:
    """Names and values of all fields in the configurations of the chosen kernels."""
    texts = [text for kernel, texts in listing.items() if chosen(kernel) for text in texts]
    return {each for text in texts for each in fields_of(text).items()}


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
