"""Mamba-2's scan, with one decay for each head (SSD). So far its mathematics in plain torch alone, for what is built next."""
