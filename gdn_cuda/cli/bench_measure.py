"""Measures the cases of an operator, and its peers, on a GPU or on the CPU."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from ..operators.measure import IMPORTED_PEERS, NOMINAL_CEILINGS, Absent, load, roof_us
from .bench_targets import Targets

if TYPE_CHECKING:
    from ..operators.measure import Bench, Call, Case, Peer, Work
    from .bench_timing import Timer

Row = dict[str, Any]
Report = dict[str, Any]
Absences = dict[tuple[str, str], list[str]]  # (peer, reason) -> shapes at which the peer was not measured

REPEATS, QUICK_REPEATS = 200, 20


def measure_gpu(
    operator: str, cases: list[Case], repeats: int, check_peers: bool = False, chosen_peers: list[str] | None = None
) -> Iterator[Report]:
    """Yields the report after every row, because a run may be interrupted."""
    import torch

    from .bench_environment import peer_versions
    from .bench_timing import Timer

    IMPORTED_PEERS.clear()
    timer = Timer(repeats)
    ceilings = {"copy_bytes_per_s": timer.copy_ceiling(), "bf16_flop_per_s": timer.matmul_ceiling()}
    roof = NOMINAL_CEILINGS.get(torch.cuda.get_device_name(), ceilings)
    ceilings |= {"floor_us": timer.floor_us()}
    bench, absent, rows = load().benches[operator], Absences(), list[Row]()
    targets = Targets(operator, torch.cuda.get_device_name())
    peers = _Peers(operator, bench, timer, check_peers, chosen_peers, absent)
    for case in cases:
        # A backward pass runs on the stream of its forward pass, which must be the one that captures the graph.
        with torch.cuda.stream(timer.side if case.captured else None):
            rows.append(_row(case, timer, roof, targets, rows, peers))
        torch.cuda.empty_cache()  # what graphs held
        yield {
            "repeats": repeats,
            "ceilings": ceilings,
            "roof": roof,
            "rows": rows,
            "peer_versions": peer_versions(),
            "peers_absent": [{"peer": peer, "reason": reason, "shapes": shapes} for (peer, reason), shapes in absent.items()],
            "peers_disagree": any(row["peers_disagree"] for row in rows),
        }


def measure_cpu(cases: list[Case], repeats: int) -> Report:
    from .bench_timing import cpu_us

    repeats = max(repeats // 20, 3)
    return {"repeats": repeats, "rows": [_named(case) | {"time_us": cpu_us(case.prepare().call, repeats)} for case in cases]}


def _named(case: Case) -> Row:
    return {"shape": case.shape, "row": case.row, "kind": case.kind, "curve": case.curve}


def _row(case: Case, timer: Timer, roof: dict[str, float], targets: Targets, before: list[Row], peers: _Peers) -> Row:
    import torch

    torch.manual_seed(0)  # the inputs of a row are the same whichever rows are measured
    work = case.prepare()
    time_us = _device_us(case.captured, timer, work.call)
    bound_us = targets.roof_us(case.row, case.kind) or roof_us(work.bytes, work.flops, roof)
    return {
        **_named(case),
        "timed": "replay" if case.captured else "call",
        "time_us": time_us,
        "call_us": timer.stream_us(work.call) if case.called else None,
        "host_us": timer.host_us(work.call, time_us),
        "bytes": work.bytes,
        "flops": work.flops,
        "roof_us": bound_us,
        "reach_us": targets.reach_us(case.row, case.kind, bound_us, before),
        "in_place_us": None if work.flops else timer.in_place_us(work.bytes),
        "published_us": targets.peers_us(case.row, case.kind),
        **peers.times(case, work),
    }


def _device_us(captured: bool, timer: Timer, call: Call) -> float:
    return timer.graph_us(call) if captured else timer.stream_us(call)


class _Peers:
    """The peers of an operator, measured on the inputs of a case. Another library's failure is a gap in its column."""

    def __init__(
        self, operator: str, bench: Bench, timer: Timer, check: bool, chosen: list[str] | None, absent: Absences
    ) -> None:
        self.operator, self.parts, self.timer, self.check, self.absent = operator, bench.parts, timer, check, absent
        self.adapters = {name: adapter for name, adapter in bench.peers.items() if chosen is None or name in chosen}

    def times(self, case: Case, work: Work) -> Row:
        from .bench_peers import Disagreement, errors

        times: dict[str, float | None] = dict.fromkeys(self.adapters)
        calls: dict[str, float] = {}
        found: dict[str, tuple[float, ...]] = {}
        disagree = []
        expected = None
        if self.check and self.adapters:
            assert work.outcome is not None, f"{self.operator}: expected an outcome to compare peers with"
            expected = work.outcome(work.checked)
        for name, adapter in self.adapters.items():
            try:
                if expected is not None:
                    peer = adapter(work.checked)
                    found[name] = errors(expected, peer.read(peer.call()))
                    Disagreement.unless_small(found[name], self.parts)
                peer = adapter(work.inputs)
                if case.called:  # first, as it works for libraries that a graph cannot capture too
                    calls[name] = self.timer.stream_us(peer.call)
                times[name] = self._time(case, peer)
            except Exception as error:
                reason = str(error) if isinstance(error, Absent) else f"{type(error).__name__}: {error}"
                self.absent.setdefault((name, reason.splitlines()[0]), []).append(case.shape)
                if isinstance(error, Disagreement):
                    disagree.append(name)
        return {"peers_us": times, "peers_call_us": calls, "peers_errors": found, "peers_disagree": disagree}

    def _time(self, case: Case, peer: Peer) -> float:
        from .bench_timing import LEAST_REPEATS, cpu_us

        if peer.on_host:
            return cpu_us(peer.call, LEAST_REPEATS)
        return _device_us(case.captured and peer.captured, self.timer, peer.call)
