"""Mamba-2's scan (SSD), with one decay for each head: on Hopper by kernels of its own, elsewhere by selective_scan."""

from .scan import ssd_scan, ssd_summary

__all__ = ["ssd_scan", "ssd_summary"]
