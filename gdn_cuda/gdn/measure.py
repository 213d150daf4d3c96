"""Benchmarks and compute-sanitizer calls of the Gated Delta Net."""

from . import measure_decode, measure_pieces, measure_prefill, measure_replay, sanitize  # noqa: F401  (each declares its own)
