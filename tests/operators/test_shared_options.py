"""Options that several operators take are declared once in C++, in gdn_cuda/options.hpp, and read in one place."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
OPTIONS = ROOT / "include/gdn_cuda/options.hpp"
# Other operators have tensors of these names that are not options of gates.
ALSO_TENSORS = ("A_log", "dt_bias")


def declared(header: Path) -> list[str]:
    """The arguments of all structs of a header."""
    return re.findall(r"\w+", " ".join(re.findall(r"GDN_FIELDS\((.*?)\)", header.read_text(), re.DOTALL)))


def test_no_operator_declares_an_option_that_others_share() -> None:
    shared = set(declared(OPTIONS)) - set(ALSO_TENSORS)
    assert {"num_accepted_tokens", "step_states", "step_slots", "allow_negative_eigenvalues", "beta_is_logit"} <= shared
    headers = [header for header in OPTIONS.parent.glob("*.hpp") if header != OPTIONS]
    again = {header.name: sorted(shared & set(declared(header))) for header in headers}
    assert len(again) > 5 and not any(again.values()), again


@pytest.mark.parametrize("option", ["num_accepted_tokens", "allow_negative_eigenvalues"])
def test_one_source_reads_the_option(option: str) -> None:
    sources = [path for folder in ("csrc", "include") for path in (ROOT / folder).rglob("*.*") if path != OPTIONS]
    naming = [str(path.relative_to(ROOT)) for path in sources if re.search(rf"\b{option}\b", path.read_text())]
    assert len(naming) == 1, naming
