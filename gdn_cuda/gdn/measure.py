"""Benchmarks and compute-sanitizer calls of the Gated Delta Net."""

from . import (  # noqa: F401  (each declares its own)
    measure_channel_training,
    measure_chunk_steps,
    measure_decode,
    measure_prefill,
    measure_replay,
    measure_training,
    measure_tune,
    sanitize,
)
