"""Overflow, powers beyond the last step, infinities and NaN in the structured operators on the GPU."""

from structured_edges import StructuredEdges


class TestGpu(StructuredEdges):
    device = "cuda"
