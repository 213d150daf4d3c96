"""Mamba-2's scan, with one decay for each head (SSD). Not public yet: what exists is `ssd/prefill` for Hopper without gradients
(scan.py), and the mathematics in plain torch (reference.py)."""
