"""Benchmarks and compute-sanitizer calls of the Gated Delta Net."""

from . import measure_chunk_steps, measure_decode, measure_prefill, measure_replay, measure_training, sanitize  # noqa: F401  (each declares its own)
