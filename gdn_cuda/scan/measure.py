"""Benchmarks, tunable operators and compute-sanitizer calls of scans."""

from . import measure_selective, measure_tune  # noqa: F401  (each declares its own)
