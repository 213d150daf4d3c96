"""Mamba-2's scan (SSD), with one decay for each head: by kernels of its own from sm_80 on; gradients by kernels on
Hopper, elsewhere by selective_scan."""

from .replay import SsdReplayBuffers, ssd_commit_replay, ssd_replay_buffers, ssd_replay_decode
from .scan import ssd_scan, ssd_summary

__all__ = [
    "SsdReplayBuffers",
    "ssd_commit_replay",
    "ssd_replay_buffers",
    "ssd_replay_decode",
    "ssd_scan",
    "ssd_summary",
]
