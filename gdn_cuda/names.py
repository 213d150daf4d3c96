"""Errors about a name that is none of the known ones: the nearest of them where one is near, else all."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

_MOST = 3  # suggestions
_LONGEST = 80  # characters of a name that is repeated
_SHORT = 12  # a list that is read at a glance


def shortened(text: str) -> str:
    """What a user gave, as an error repeats it."""
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"


def unknown(name: str, known: Iterable[str]) -> str:
    """`expected …, got …`, the end of an error. Of "family/kernel", the part after the slash is compared too."""
    names = {each: each for each in known}
    spelled = names | {each.rpartition("/")[2]: each for each in names}
    near = difflib.get_close_matches(name.lower(), spelled, _MOST) if len(names) > _SHORT and len(name) <= _LONGEST else []
    got = shortened(name) or "nothing"
    if near:
        meant = dict.fromkeys(spelled[each] for each in near)
        return f"expected one of {len(names)} names, got {got}; did you mean {' or '.join(meant)}?"
    return f"expected one of {', '.join(names) or '(none registered)'}, got {got}"
