"""Overflow, what lies beyond the last step, and what is no number, of the structured operators on CPU tensors."""

from structured_edges import StructuredEdges


class TestCpu(StructuredEdges):
    device = "cpu"
