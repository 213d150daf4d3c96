"""Examples of Mamba-2's operators: scan.py declares them."""

from ..operators.examples import Case
from . import scan  # noqa: F401

CASES: dict[str, Case] = {}
