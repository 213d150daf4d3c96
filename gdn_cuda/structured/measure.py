"""What is measured of structured matrices: sums, Toeplitz systems, what can be tuned, and what compute-sanitizer runs."""

from . import measure_sums, measure_toeplitz, measure_tune, sanitize  # noqa: F401  (each declares its own)
