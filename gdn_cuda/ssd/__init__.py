"""Mamba-2's scan, with one decay for each head (SSD). Not public yet: what exists is the scan with its gradients by kernels
(scan.py, gradients.py), for GPUs other than Hopper without gradients, and the mathematics in plain torch (reference.py)."""
