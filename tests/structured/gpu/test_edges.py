"""Overflow, what lies beyond the last step, and what is no number, of the structured operators on the GPU."""

from structured_edges import StructuredEdges


class TestGpu(StructuredEdges):
    device = "cuda"
