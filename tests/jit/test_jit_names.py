"""csrc/jit compiles, keeps and loads kernels without knowing any: no kernel, family, operator, engine or variable of theirs."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from gdn_cuda import _C, compat, integrations
from gdn_cuda.operators.declare import DECLARATIONS

JIT = Path(__file__).resolve().parents[2] / "csrc" / "jit"


def known_elsewhere() -> dict[str, str]:
    """What must not occur there: a regular expression by what it is. A name of several words is looked for as it stands, and
    one word, which may be an English one (`decode`), as a path, a namespace or a text."""
    kernels = _C.kernels()
    names = {kernel["name"]: "kernel" for kernel in kernels} | {kernel["family"]: "family" for kernel in kernels}
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


def test_what_is_looked_for() -> None:
    """The patterns find what stood there once."""
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
