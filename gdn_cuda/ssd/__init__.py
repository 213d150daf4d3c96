"""Mamba-2's scan (SSD), with one decay for each head: by kernels of its own from sm_80 on; gradients by kernels on
Hopper, elsewhere by selective_scan."""

from .scan import ssd_scan, ssd_summary

__all__ = ["ssd_scan", "ssd_summary"]
