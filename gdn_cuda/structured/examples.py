"""Examples of the structured operators."""

from . import examples_sums, examples_toeplitz

CASES = {case.name: case for module in (examples_sums, examples_toeplitz) for case in module.cases()}
