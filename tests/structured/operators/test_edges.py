"""Overflow, powers beyond the last step, infinities and NaN in the structured operators on CPU tensors."""

from structured_edges import StructuredEdges


class TestCpu(StructuredEdges):
    device = "cpu"
