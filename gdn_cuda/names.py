"""Errors about an unknown name: they suggest the nearest known names, or list all if none is near."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

_MOST = 3  # suggestions
_LONGEST = 80  # characters of a name that an error repeats
_SHORT = 12  # names in a list that is always given in full


def shortened(text: str) -> str:
    """The user's text in the length that errors repeat."""
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
