"""Timing of benchmarks: device time between two events after an L2 flush, host time by the host's clock."""

from __future__ import annotations

import statistics
import time

import torch

from ..operators.measure import Call

FLUSH_BYTES = 256 << 20  # several times any L2
COPY_BYTES = 2 << 30
MATMUL_SIZE = 8192

BUDGET_S = 0.07  # per measurement; a row with three peers then takes about 0.3 s
WARM_UP_S = 0.02  # GPU clocks drop while a peer compiles
LEAST_REPEATS = 3
QUEUED_CALLS = 100  # they fit in the driver's launch queue


class Timer:
    """Times calls on one CUDA device. `repeats` is a maximum: slow calls are repeated less often, within the budget."""

    def __init__(self, repeats: int):
        self.repeats = repeats
        self._flush = torch.empty(FLUSH_BYTES, dtype=torch.int8, device="cuda")
        self.side = torch.cuda.Stream()  # where graphs are captured

    def graph_us(self, call: Call) -> float:
        """Median device time of one CUDA-graph replay of `call`, L2 flushed."""
        return self.stream_us(self.capture(call).replay)

    def capture(self, call: Call) -> torch.cuda.CUDAGraph:
        self.side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.side):
            for _ in range(3):  # compiles, and lets allocators settle
                call()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=self.side):  # waits for the device first
            call()
        return graph

    def stream_us(self, call: Call) -> float:
        """Median device time of a call between two events, L2 flushed before it: what triton's do_bench measures."""
        self._spans_ms(call, 1)  # compiles
        start = time.perf_counter()
        self._spans_ms(call, 1)
        once_s = time.perf_counter() - start
        self._spans_ms(call, _count(WARM_UP_S / once_s, 0, self.repeats))
        return statistics.median(self._spans_ms(call, _count(BUDGET_S / once_s, LEAST_REPEATS, self.repeats))) * 1e3

    def _spans_ms(self, call: Call, repeats: int) -> list[float]:
        events = [(torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)) for _ in range(repeats)]
        torch.cuda.synchronize()
        for start, end in events:
            # The flush also keeps the GPU busy while the host queues the three calls after it: host time is measured only where
            # it exceeds the flush.
            self._flush.zero_()
            start.record()
            call()
            end.record()
        torch.cuda.synchronize()
        return [start.elapsed_time(end) for start, end in events]

    def host_us(self, call: Call, device_us: float) -> float:
        """Median host time of a warm call that takes `device_us`, over runs of calls so short that none waits for the GPU."""
        most = BUDGET_S * 1e6 / device_us
        samples = _count(most, LEAST_REPEATS, max(self.repeats // 5, LEAST_REPEATS))
        calls = _count(most / samples, 1, QUEUED_CALLS)
        times = []
        for _ in range(samples + 1):  # the first one warms up
            torch.cuda.synchronize()
            start = time.perf_counter_ns()
            for _ in range(calls):
                call()
            times.append((time.perf_counter_ns() - start) / calls * 1e-3)
        torch.cuda.synchronize()
        return statistics.median(times[1:])

    # ---- Ceilings of the device, measured in the same run

    def copy_ceiling(self) -> float:
        """Bytes a second, read and written, of a large device copy."""
        source = torch.zeros(COPY_BYTES, dtype=torch.int8, device="cuda")
        target = torch.empty_like(source)
        # Not in a graph, where a copy runs on the copy engines at two thirds of the speed.
        return 2 * COPY_BYTES / (self.stream_us(lambda: target.copy_(source)) * 1e-6)

    def matmul_ceiling(self) -> float:
        """FLOP a second of a large bf16 matrix product."""
        left = torch.randn(MATMUL_SIZE, MATMUL_SIZE, dtype=torch.bfloat16, device="cuda")
        right = torch.randn_like(left)
        out = torch.empty_like(left)
        return 2 * MATMUL_SIZE**3 / (self.graph_us(lambda: torch.mm(left, right, out=out)) * 1e-6)

    def floor_us(self) -> float:
        """The shortest time that can be measured: the replay of a one-element kernel."""
        one = torch.zeros(1, device="cuda")
        return self.graph_us(lambda: one.add_(1))

    def in_place_us(self, byte_count: int) -> float:
        """Time of an in-place add that reads and writes `byte_count` bytes in total."""
        values = torch.zeros(max(byte_count // 8, 1), device="cuda")
        return self.graph_us(lambda: values.add_(1))


def cpu_us(call: Call, repeats: int) -> float:
    """Median time of a call on CPU tensors."""
    call()
    samples = []
    for _ in range(repeats):
        start = time.perf_counter_ns()
        call()
        samples.append((time.perf_counter_ns() - start) * 1e-3)
    return statistics.median(samples)


def _count(wanted: float, least: int, most: int) -> int:
    return max(least, min(most, int(wanted)))
