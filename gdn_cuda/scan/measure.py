"""Benchmarks and compute-sanitizer calls of scans."""

from . import measure_selective  # noqa: F401  (declares its own)
