"""csrc/jit compiles, stores and loads kernels without naming any kernel, family, operator, engine or variable of theirs."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from gdn_cuda import _C, compat, integrations
from gdn_cuda.operators.declare import DECLARATIONS

JIT = Path(__file__).resolve().parents[2] / "csrc" / "jit"


def known_elsewhere() -> dict[str, str]:
    """Regular expressions of names that must not occur, by description. A name of several words is searched for as a whole
    word; a single word, which may be English (`decode`), only as a path, a namespace or a string."""
    kernels = _C.kernels()
    names = {kernel["name"]: "kernel" for kernel in kernels} | {kernel["family"]: "family" for kernel in kernels}
    del names["common"]  # kernels/common is below the JIT
    names |= dict.fromkeys(DECLARATIONS, "operator")
    found = {}
    for name, what in names.items():
        one_word = rf'\b{name}(?:/|::)|"{name}"' + (rf"|/{name}\b" if what == "kernel" else "")
        found[f"{what} {name}"] = rf"\b{name}\b" if "_" in name else one_word
    found |= {f"host {name}": rf"(?i)\b{name}\b" for name in (*integrations.NAMES, *compat.INSTALLS)}
    found |= {f"variable {name}": rf"\b{name}\b" for name in _C.env()["settings"]}
    return found


@pytest.mark.parametrize("path", sorted(JIT.iterdir()), ids=lambda path: path.name)
def test_names_no_kernel_engine_or_variable_of_others(path: Path) -> None:
    text = path.read_text()
    assert not [what for what, pattern in known_elsewhere().items() if re.search(pattern, text)]


def test_the_patterns_find_forbidden_names() -> None:
    """They find lines that csrc/jit once had."""
    known = known_elsewhere()
    for what, text in (
        ("variable GDN_PREFILL", '{"GDN_PREFILL", "auto"},'),
        ("variable GDN_SCAN_PIECES", "int scan_pieces;  // GDN_SCAN_PIECES, 0: auto"),
        ("variable GDN_INTEGRATIONS", 'integrations("GDN_INTEGRATIONS")'),
        ("host vllm", 'if (word != "vllm" && word != "sglang")'),
        ("family gdn", 'std::string family;  // "gdn"'),
        ("operator chunked_forward", "the kernel of chunked_forward where it can run"),
        ("kernel recurrent", 'std::string name;  // "recurrent"'),
    ):
        assert re.search(known[what], text), what
    assert not re.search(known["kernel decode"], "std::uint64_t decode(bytes);")
