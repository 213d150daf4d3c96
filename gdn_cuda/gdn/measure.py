"""What is measured of the Gated Delta Net, and what compute-sanitizer runs."""

from . import measure_decode, measure_pieces, measure_prefill, sanitize  # noqa: F401  (each declares its own)
