"""Benchmarks, tunable operators and compute-sanitizer calls of structured matrices."""

from . import measure_sums, measure_toeplitz, measure_tune, sanitize  # noqa: F401  (each declares its own)
