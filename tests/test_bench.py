"""The counts and comparisons of benchmarks, without a GPU: calls are not timed, and the peers are fakes."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path
from typing import Any

import bench_fakes
import pytest
import torch

import gdn_cuda
from gdn_cuda.cli import bench, bench_columns, bench_measure, bench_peers, bench_table, bench_timing
from gdn_cuda.cli.bench_targets import FILE, Targets
from gdn_cuda.gdn import measure_gates, measure_prefill
from gdn_cuda.gdn.measure_prefill import Shape
from gdn_cuda.operators import measure as measures
from gdn_cuda.operators.registration import SCHEMAS

# B×T, Hk/Hv and the roof in ms, computed independently of this code
ROOFS_MS = {
    "1×1024 16/32": 0.007,
    "1×4096 16/32": 0.030,
    "1×8192 16/32": 0.060,
    "1×32768 16/32": 0.239,
    "1×131072 16/32": 0.956,
    "8×4096 16/32": 0.239,
    "32×1024 16/32": 0.239,
    "64×512 16/32": 0.239,
    "1×8192 4/8": 0.015,
    "1×32768 4/8": 0.060,
    "1×32768 2/4": 0.030,
    "1×8192 16/64": 0.119,
    "1×32768 16/48": 0.358,
    "8×2048 16/16": 0.063,
    "packed 24, 51721 16/32": 0.38,
}
BENCHES = bench.benches()
PREFILL = bench.chosen("chunked_forward", "cuda", None)
GPU_SHAPES = list(measure_prefill.gpu_shapes())
H200 = "NVIDIA H200"
CEILINGS = measures.NOMINAL_CEILINGS[H200]


def test_the_prefill_table_has_these_rows_and_roofs() -> None:
    roofs = {
        case.row: measures.roof_us(shape.bytes, shape.flops, CEILINGS) / 1e3
        for case, shape in zip(PREFILL, GPU_SHAPES, strict=True)
    }
    assert set(ROOFS_MS) < set(roofs)
    for name, expected in ROOFS_MS.items():
        assert abs(roofs[name] - expected) < (0.005 if "packed" in name else 0.001), (name, roofs[name])


def test_the_bytes_of_prefill_are_those_of_its_tokens() -> None:
    x = measure_prefill.prefill_work(shape := Shape(2, 4, (3,), key_dim=64, value_dim=32), "cpu").inputs
    assert shape.bytes == measures.size(*(x[name] for name in ("query", "key", "value", "value", "beta", "gate")))


def test_every_prefill_row_has_three_kinds_of_gates_timed_as_graph_and_as_call() -> None:
    rows = dict.fromkeys(case.row for case in PREFILL)
    assert [(case.row, case.kind) for case in PREFILL] == [
        (row, f"{kind} gates") for row in rows for kind in ("fast", "init", "mixed")
    ]
    assert all(case.captured and case.called for case in PREFILL)


def reaches(operator: str) -> dict[tuple[str, str], float | None]:
    """Targets by row and kind, if row n takes n microseconds, from 1 on, and the roof is 100."""
    targets, rows, found = Targets(operator, H200), list[dict[str, Any]](), {}
    for number, case in enumerate(bench.chosen(operator, "cuda", None), 1):
        found[case.row, case.kind] = targets.reach_us(case.row, case.kind, 100.0, rows)
        rows.append({"row": case.row, "kind": case.kind, "time_us": float(number)})
    return found


def test_the_prefill_rows_without_a_target_are_known() -> None:
    assert {row for (row, _), us in reaches("chunked_forward").items() if us is None} == {
        *("1×2048 16/32", "1×16384 16/32", "1×65536 16/32", "1×2048 4/8", "1×4096 4/8"),
        *("1×4096 2/4", "1×8192 2/4", "1×32768 2/4", "1×8192 8/16", "1×32768 8/16"),
        *("8×4096 16/32, deterministic", "8×32768 4/8, deterministic"),
        *("1×8192 16/32 dk=192 dv=192", "8×2048 16/32 dk=192 dv=192", "1×8192 4/8 dk=256 dv=256"),
        *("1×8192 16/32 dk=256 dv=128", "8×2048 16/32 dk=256 dv=128", "8×2048 16/32 dk=256 dv=256"),
    }


def test_a_target_that_refers_to_a_row_of_the_same_kind_uses_its_measured_time() -> None:
    """The factors for head dimensions are 1.3 times the ratio of the roofs."""
    found = reaches("chunked_forward")
    time_us = {(case.row, case.kind): float(number) for number, case in enumerate(PREFILL, 1)}
    roofs = {
        case.row: measures.roof_us(shape.bytes, shape.flops, CEILINGS) for case, shape in zip(PREFILL, GPU_SHAPES, strict=True)
    }
    plain, full = "1×8192 16/32", "8×4096 16/32"
    factors = {(f"{plain}, l2 norm inside", plain): 1.03, (f"{plain}, deterministic", plain): 1.15} | {
        (row, like): 1.3 * roofs[row] / roofs[like]
        for row, like in (
            (f"{plain} dk=64 dv=64", plain),
            ("1×8192 30/30 dk=96 dv=192", plain),
            ("8×2048 30/30 dk=96 dv=192", full),
            (f"{plain} dk=256 dv=256", plain),
        )
    }
    for kind in ("fast gates", "init gates", "mixed gates"):
        for (row, like), factor in factors.items():
            assert found[row, kind] == pytest.approx(factor * time_us[like, kind]), (row, kind)


@pytest.mark.parametrize("operator", BENCHES)
def test_every_target_is_of_a_row(operator: str) -> None:
    """No rule has a text that matches no row, or a kind that its rows lack; targets of backward refer to a forward row."""
    cases, found = bench.chosen(operator, "cuda", None), reaches(operator)
    for rule in Targets(operator, H200).rules:
        matched = [case for case in cases if fnmatchcase(case.row, rule["row"])]
        assert matched, rule
        figures = [rule.get("reach_us"), rule.get("roof_us"), *rule.get("peers_us", {}).values()]
        assert {kind for each in figures if isinstance(each, dict) for kind in each} <= {case.kind for case in matched}, rule
        if "reach_of" in rule:
            assert all(found[case.row, case.kind] is not None for case in matched), rule


def test_operators_with_targets_are_measured() -> None:
    assert set(json.loads(FILE.read_text())["targets"]) - set(BENCHES) == {"million_tokens"}


def test_gates_have_the_decays_of_their_names() -> None:
    torch.manual_seed(0)
    kept = {kind: measure_gates.gates(kind, (1000,), 32, "cpu").exp() for kind in measure_gates.KINDS}
    assert 0.36 < kept["fast"].min() < 0.4 and kept["fast"].max() <= 1
    assert torch.equal(kept["init"][0], kept["init"][999])
    assert 0.2 < kept["init"].min() < 0.5 and 0.99 < kept["init"].max() < 0.999
    assert kept["mixed"][:, ::2].min() > 0.999 - 1e-6 and kept["mixed"][:, ::2].max() < 0.99999 + 1e-6
    assert kept["mixed"][:, 1::2].min() < 0.4


def test_the_packed_row_has_the_sizes_of_its_name() -> None:
    packed = next(shape for shape in GPU_SHAPES if shape.packed)
    assert (len(packed.lengths), packed.tokens, min(packed.lengths), max(packed.lengths)) == (24, 51721, 50, 4000)


def test_the_curve_is_one_sequence_of_growing_length() -> None:
    lengths = [case.curve[1] for case in PREFILL if case.curve and case.kind == "mixed gates"]
    assert lengths == [1024, 2048, 4096, 8192, 16384, 32768, 65536, 131072]


def test_the_option_only_selects_the_shapes_that_contain_its_text() -> None:
    names = [case.shape for case in bench.chosen("chunked_forward", "cuda", "1x8192")]
    assert names == [shape.name for shape in GPU_SHAPES if shape.lengths == (8192,)]
    with pytest.raises(ValueError, match=r"--only: expected a part of one of 1×1024 16/32 fast gates; .*got 7/9"):
        bench.chosen("chunked_forward", "cuda", "7/9")


# ---- Peers


def work_of(operator: str, number: int) -> measures.Work:
    return bench.chosen(operator, "cpu", None)[number].prepare()


IN_TORCH = [(operator, peer) for operator, declared in BENCHES.items() for peer in declared.peers if "torch" in peer]
MEASURED = [
    ("fused_decode", "FlashInfer", 3),
    ("fused_decode", "FlashInfer", 4),
    ("fused_decode", "FLA", 3),
    ("recurrent_forward", "FLA", 2),
    *(("selective_scan", "mamba-ssm", number) for number in (0, 1, 4, 5, 8, 9)),
    ("selective_state_update", "mamba-ssm", 0),
    ("selective_state_update", "mamba-ssm", 5),
    *(("chunked_forward", peer, number) for peer in ("FLA", "FlashInfer", "FlashQLA") for number in (0, 1, 2)),
]


@pytest.mark.parametrize(("operator", "peer", "number"), MEASURED)
def test_an_adapter_converts_to_the_layout_of_its_peer(
    operator: str, peer: str, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench_fakes.install(monkeypatch)
    work = work_of(operator, number)
    adapted = BENCHES[operator].peers[peer](work.checked)
    expected = work.outcome(work.checked)
    assert max(bench_peers.errors(expected, adapted.read(adapted.call()))) < 5e-3


@pytest.mark.parametrize(("operator", "peer"), IN_TORCH)
@pytest.mark.parametrize("number", [0, 1])
def test_torch_computes_the_same_outputs_and_gradients(operator: str, peer: str, number: int) -> None:
    cases = bench.chosen(operator, "cpu", None)
    work = cases[number % len(cases)].prepare()
    adapted = BENCHES[operator].peers[peer](work.checked)
    assert max(bench_peers.errors(work.outcome(work.checked), adapted.read(adapted.call()))) < 1e-5


WITH_SCIPY = [name for name, declared in BENCHES.items() if "SciPy" in declared.peers]


@pytest.mark.parametrize("operator", WITH_SCIPY)
def test_scipy_computes_the_same_outputs(operator: str) -> None:
    pytest.importorskip("scipy", reason="SciPy is not installed")
    work = bench.chosen(operator, "cpu", None)[0].prepare()
    adapted = BENCHES[operator].peers["SciPy"](work.checked)
    (error,) = bench_peers.errors(work.outcome(work.checked), adapted.read(adapted.call()))
    assert error < 1e-5


SUMS = ("cauchy_conj", "cauchy_kernel", "log_vandermonde")


def test_only_operators_are_measured() -> None:
    """Public functions, and operators that have none, as they are what autograd calls."""
    assert not {name for name in BENCHES if not inspect.isfunction(getattr(gdn_cuda, name, None)) and name not in SCHEMAS}


def forward_rows(operator: str) -> list[str]:
    return [case.shape for case in bench.chosen(operator, "cuda", None) if "backward" not in case.shape]


def test_points_are_where_their_rows_say() -> None:
    for case in bench.chosen("cauchy_conj", "cpu", "forward"):
        z = case.prepare().inputs["z"]
        assert (z.real == 0).all() == (case.kind == "imaginary axis")
        assert ((z.abs() - 1).abs() < 1e-6).all() == (case.kind == "unit circle")
    for case in bench.chosen("log_vandermonde", "cpu", "forward"):
        assert (case.prepare().inputs["x"].real == 0).all() == (case.kind == "unit circle")


def test_the_structured_tables_have_these_rows() -> None:
    rows = {operator: list(dict.fromkeys(case.row for case in bench.chosen(operator, "cuda", "forward"))) for operator in SUMS}
    assert rows == {
        "cauchy_conj": ["1024×32×16384 forward", "1024×64×4096 forward"],
        "cauchy_kernel": ["16×4096×4096 forward", "1024×32×16384 forward"],
        "log_vandermonde": ["1024×32×16384 forward", "1024×64×4096 forward"],
    }
    kinds = {operator: list(dict.fromkeys(case.kind for case in bench.chosen(operator, "cuda", "x32x"))) for operator in SUMS}
    assert kinds["cauchy_conj"] == kinds["cauchy_kernel"] == ["imaginary axis", "unit circle", "anywhere"]
    assert kinds["log_vandermonde"] == ["decaying", "unit circle", "anywhere"]
    assert forward_rows("toeplitz_matvec") == ["4×256", "64×1024"]
    general = ["4×256 eager", "4×256 graph", "64×1024 eager", "64×1024 graph", "1×8192 eager"]
    assert forward_rows("toeplitz_solve") == general
    symmetric = [f"{size} {mode}" for size in ("4×64", "4×256", "64×1024", "1×2048", "1×8192") for mode in ("eager", "graph")]
    hard = ["1×2048 eager, steps do not end", "1×8192 eager, steps do not end"]
    assert sorted(forward_rows("toeplitz_solve_symmetric")) == sorted(symmetric + hard)
    for operator in ("toeplitz_matvec", "toeplitz_solve", "toeplitz_solve_symmetric"):
        cases = bench.chosen(operator, "cuda", None)
        assert len(cases) == 2 * len(forward_rows(operator)), "forward and backward"
        assert all(case.captured != ("eager" in case.shape) for case in cases)
    forward, backward = (work_of("log_vandermonde", number) for number in (0, 1))
    assert (forward.bytes, backward.bytes) == (8 * 16 * 8 * 2 + 8 * 256 * 4, 2 * 8 * 16 * 8 * 2 + 8 * 256 * 4)


def test_the_scan_table_has_these_rows() -> None:
    rows = [case.shape for case in bench.chosen("selective_scan", "cuda", "forward")]
    tokens = ["1×5120×4096", "8×5120×2048", "8×1536×2048", "1×8192×32768", "1×256×131072", "8×1536×2048 fp32",
              "8×1024×2048 complex", "8×5120×2048 N=64", "1×1536×512", "1×2048×4096", "8×1536×2047", "8×1536×2048 trained",
              "1×1536×16384 packed"]  # fmt: skip
    mixed = ["8×1536×2048 mixed", "1×2048×4096 mixed", "1×1536×16384 packed mixed"]
    assert rows == [f"{name} forward" for name in (*tokens, *(f"{name} transposed" for name in tokens), *mixed)]
    kinds = [case.kind for case in bench.chosen("selective_scan", "cuda", "8x1536x2048")]
    assert kinds == 6 * ["contiguous"] + 6 * ["transposed"] + 2 * ["mixed"]
    assert len(bench.chosen("selective_scan", "cuda", "backward")) == len(rows)
    forward = work_of("selective_scan", 0)
    assert forward.bytes == 2 * (4 * 2 * 8 * 70 + 2 * 2 * 16 * 70) + 4 * (8 * 16 + 2 * 8)


def test_a_scan_is_measured_as_its_row_says() -> None:
    layouts = {}
    for case in bench.chosen("selective_scan", "cpu", "forward"):
        x = case.prepare().inputs
        layouts[case.shape.removesuffix(" forward")] = [x[name].stride(-1) == 1 for name in ("u", "delta", "z", "B")]
        assert ("cu_seqlens" in x) == ("packed" in case.shape)
        if "packed" in case.shape:
            with pytest.raises(measures.Absent, match="no packed sequences"):
                BENCHES["selective_scan"].peers["mamba-ssm"](x)
    assert layouts == {
        "2×8×70": [True] * 4,
        "1×8×40 packed trained": [True] * 4,
        "2×8×70 transposed": [False, False, False, True],
        "1×8×40 packed trained transposed": [False, False, False, True],
        "1×16×9 mixed": [True, False, False, False],
    }


def parameter_names(function: Callable[..., Any]) -> set[str]:
    return set(inspect.signature(function).parameters)


REAL = [
    ("fla.ops.gated_delta_rule", "chunk_gated_delta_rule", bench_fakes.chunk_gated_delta_rule),
    ("fla.ops.gated_delta_rule", "fused_recurrent_gated_delta_rule", bench_fakes.fused_recurrent_gated_delta_rule),
    ("flash_qla", "chunk_gated_delta_rule", bench_fakes.chunk_gated_delta_rule),
    ("flashinfer.gdn_prefill", "chunk_gated_delta_rule", bench_fakes.flashinfer_chunk_gated_delta_rule),
    ("flashinfer.gdn_decode", "gated_delta_rule_decode_pretranspose", bench_fakes.gated_delta_rule_decode_pretranspose),
    ("mamba_ssm.ops.selective_scan_interface", "selective_scan_fn", bench_fakes.selective_scan_fn),
    ("mamba_ssm.ops.triton.selective_state_update", "selective_state_update", bench_fakes.selective_state_update),
]


@pytest.mark.parametrize(("module", "name", "fake"), REAL)
def test_the_fake_peers_have_the_parameters_of_the_real_ones(module: str, name: str, fake: Callable[..., Any]) -> None:
    try:
        real = measures.import_peer(module, name)
    except measures.Absent as why:
        pytest.skip(str(why))
    assert parameter_names(fake) <= parameter_names(real)


def test_a_peer_that_lacks_the_head_dimensions_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    bench_fakes.install(monkeypatch)
    work = measure_prefill.prefill_work(Shape(2, 2, (8,), key_dim=96, value_dim=192), "cpu")
    for peer in ("FlashInfer", "FlashQLA"):
        with pytest.raises(measures.Absent, match="head dimensions are 128"):
            BENCHES["chunked_forward"].peers[peer](work.inputs)


@pytest.mark.parametrize("found", [(0.1, 0.0), (0.0, 0.1), (float("nan"), 0.0), (0.0, float("nan"))])
def test_a_large_error_or_nan_is_a_disagreement(found: tuple[float, float]) -> None:
    with pytest.raises(bench_peers.Disagreement):
        bench_peers.Disagreement.unless_small(found)
    bench_peers.Disagreement.unless_small((4e-3, 4e-3))


# ---- How often a call is measured, with a simulated clock


class Clock:
    """Time, and the parts of torch.cuda that a Timer uses."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch):
        self.seconds = 0.0
        self.calls = 0
        clock = self

        class Event:
            def __init__(self, enable_timing: bool):
                self.at = 0.0

            def record(self) -> None:
                self.at = clock.seconds

            def elapsed_time(self, end: Event) -> float:
                return (end.at - self.at) * 1e3

        monkeypatch.setattr(torch.cuda, "Event", Event)
        monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
        monkeypatch.setattr("time.perf_counter", lambda: clock.seconds)
        monkeypatch.setattr("time.perf_counter_ns", lambda: int(clock.seconds * 1e9))

    def call_of(self, seconds: float) -> Callable[[], None]:
        def call() -> None:
            self.seconds += seconds
            self.calls += 1

        return call


def timer(repeats: int) -> bench_timing.Timer:
    made = object.__new__(bench_timing.Timer)  # its buffer would be on a GPU
    made.repeats, made._flush = repeats, torch.empty(1)
    return made


@pytest.mark.parametrize(("seconds", "most_calls"), [(1e-5, 500), (2.5e-3, 40), (0.3, 6)])
def test_a_measurement_keeps_to_its_budget(seconds: float, most_calls: int, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    assert timer(200).stream_us(clock.call_of(seconds)) == pytest.approx(seconds * 1e6)
    assert 5 <= clock.calls <= most_calls


@pytest.mark.parametrize(("seconds", "most_calls"), [(1e-5, 4100), (2.5e-3, 50), (0.3, 4)])
def test_a_measurement_of_host_time_keeps_to_its_budget(
    seconds: float, most_calls: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock(monkeypatch)
    assert timer(200).host_us(clock.call_of(seconds), seconds * 1e6) == pytest.approx(seconds * 1e6)
    assert 3 <= clock.calls <= most_calls


# ---- The report, with invented times


class InventedTimes:
    """Replaces bench_timing.Timer."""

    side = None

    def __init__(self, repeats: int):
        self.repeats = repeats

    def copy_ceiling(self) -> float:
        return 4e12

    def matmul_ceiling(self) -> float:
        return 7e14

    def floor_us(self) -> float:
        return 4.0

    def stream_us(self, call: Callable[[], object]) -> float:
        call()
        return 100.0

    graph_us = stream_us

    def host_us(self, call: Callable[[], object], device_us: float) -> float:
        return 8.0

    def in_place_us(self, byte_count: int) -> float:
        return 6.0


@pytest.fixture
def measure(monkeypatch: pytest.MonkeyPatch) -> Callable[..., dict[str, Any]]:
    monkeypatch.setattr("gdn_cuda.cli.bench_timing.Timer", InventedTimes)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "NVIDIA H200")

    def run(
        operator: str, cases: list[measures.Case] | None = None, check_peers: bool = True, peers: list[str] | None = None
    ) -> dict[str, Any]:
        made_on = {
            "operator": operator,
            "device": "a CPU",
            "driver": None,
            "torch": "2",
            "cuda": "13",
            "gdn_cuda": "0",
            "commit": "",
        }
        chosen = cases or bench.chosen(operator, "cpu", None)
        *_, measured = bench_measure.measure_gpu(operator, chosen, 20, check_peers, peers)
        return made_on | measured

    return run


def curve_cases() -> list[measures.Case]:
    shapes = (Shape(16, 32, (4,)), Shape(16, 32, (8,)))
    return [
        measures.Case(
            shape.name, partial(measure_prefill.prefill_work, shape, "cpu"), called=True, curve=shape.curve, kind=shape.kind
        )
        for shape in shapes
    ]


@pytest.mark.parametrize("operator", BENCHES)
def test_a_report_without_peers(
    operator: str, measure: Callable[..., dict[str, Any]], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    bench_fakes.hide(monkeypatch)
    report = measure(operator)
    bench_table.print_report(report)
    printed = capsys.readouterr().out
    assert "roof: copy 4.30 TB/s, bf16 product 790 TFLOP/s" in printed
    assert "in this run: copy 4.00 TB/s, bf16 product 700 TFLOP/s" in printed
    for peer in BENCHES[operator].peers:
        always_there = "torch" in peer or peer == "operators"  # our own operators, one after another
        assert (f"{peer} was not measured:" not in printed) if always_there else (f"{peer} was not measured" in printed)
    assert not report["peers_disagree"]


@pytest.mark.parametrize("operator", ["fused_decode", "chunked_forward"])
def test_a_report_with_peers(
    operator: str,
    measure: Callable[..., dict[str, Any]],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    bench_fakes.install(monkeypatch)
    monkeypatch.setenv("COLUMNS", "10000")  # a table, however wide
    report = measure(operator, curve_cases() if operator == "chunked_forward" else None)
    assert not report["peers_disagree"]
    for row in report["rows"]:
        assert row["peers_us"]["FlashInfer"] == (None if has_no_peer(row["shape"]) else 100.0)
    bench_table.print_report(report)
    printed = capsys.readouterr().out
    assert "FlashInfer against ours, the largest relative RMS: output " in printed
    unmeasured = [line.split(" at ")[1] for line in printed.splitlines() if line.startswith("FlashInfer was not measured")]
    assert all(map(has_no_peer, unmeasured)) and (not unmeasured or operator == "fused_decode")
    assert ("calls as they come" in printed) == (operator == "chunked_forward")


def has_no_peer(shape: str) -> bool:
    return "gate per channel" in shape or "int8 state" in shape


def test_only_chosen_peers_are_measured(measure: Callable[..., dict[str, Any]], monkeypatch: pytest.MonkeyPatch) -> None:
    bench_fakes.install(monkeypatch)
    for chosen in (["FLA"], ["-"]):
        row = measure("chunked_forward", curve_cases()[:1], peers=chosen)["rows"][0]
        assert list(row["peers_us"]) == list(row["peers_call_us"]) == [name for name in chosen if name != "-"]


def test_a_peer_that_a_graph_cannot_capture_keeps_its_direct_calls(
    measure: Callable[..., dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    bench_fakes.install(monkeypatch)
    captured = InventedTimes.graph_us

    def graph_us(self: InventedTimes, call: Callable[[], object]) -> float:
        if "flashinfer" in getattr(call, "__qualname__", ""):
            raise RuntimeError("operation not permitted when stream is capturing")
        return captured(self, call)

    monkeypatch.setattr(InventedTimes, "graph_us", graph_us)
    report = measure("chunked_forward", curve_cases()[:1], check_peers=False)
    (row,) = report["rows"]
    assert row["peers_us"]["FlashInfer"] is None and row["peers_call_us"]["FlashInfer"] == 100.0
    assert [gap["peer"] for gap in report["peers_absent"]] == ["FlashInfer"]


INVENTED = {
    "device": H200,
    "launch_us": 4,
    "targets": {
        "fused_gdn_gating": [
            {"row": "plain", "reach_us": {"a": 7.0}, "peers_us": {"another": 9.0, "others": {"b": 8.0}}},
            {"row": "plain, *", "reach_of": [", times", "", 1.5]},
            {"row": "share", "reach_share": 0.5},
            {"row": "exponentials", "roof_us": 50.0},
        ]
    },
}


@pytest.mark.parametrize(("device", "written"), [(H200, True), ("NVIDIA H100", True), (H200, False)])
def test_targets_hold_on_the_device_that_they_were_set_for(
    device: str, written: bool, measure: Callable[..., dict[str, Any]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: device)
    monkeypatch.setattr("gdn_cuda.cli.bench_targets.FILE", tmp_path / "targets.json")
    if written:
        (tmp_path / "targets.json").write_text(json.dumps(INVENTED))
    holds = written and device == H200
    work = partial(measures.Work, lambda: None, 43_000_000, 0)
    shapes = [
        ("plain a", "a"),
        ("plain b", "b"),
        ("plain a, times", "a"),
        ("plain c, times", "c"),
        ("share", ""),
        ("exponentials", ""),
    ]
    report = measure("fused_gdn_gating", [measures.Case(shape, work, kind=kind) for shape, kind in shapes])
    rows = {row["shape"]: row for row in report["rows"]}
    reach = {shape: row["reach_us"] for shape, row in rows.items() if row["reach_us"] is not None}
    assert reach == ({"plain a": 7.0, "plain a, times": 150.0, "share": 24.0} if holds else {})
    assert rows["exponentials"]["roof_us"] == pytest.approx(50.0 if holds else 10.0 if device == H200 else 10.75)
    assert rows["plain a"]["published_us"] == ({"another": 9.0} if holds else {})
    assert rows["plain b"]["published_us"] == ({"another": 9.0, "others": 8.0} if holds else {})
    names = {column.name for columns in bench_columns.tables(report).values() for column in columns}
    assert names & {"reach", "÷ reach", "another", "others"} == ({"reach", "÷ reach", "another", "others"} if holds else set())


def test_a_peer_that_computes_something_else_is_not_timed(
    measure: Callable[..., dict[str, Any]], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def untransposed(*args: Any, initial_state: torch.Tensor, **others: Any) -> tuple[torch.Tensor, torch.Tensor]:
        state = initial_state.transpose(-1, -2).contiguous()
        return bench_fakes.chunk_gated_delta_rule(*args, initial_state=state, **others)

    bench_fakes.install(monkeypatch)
    monkeypatch.setattr("flash_qla.chunk_gated_delta_rule", untransposed)
    report = measure("chunked_forward", curve_cases())
    assert report["peers_disagree"]
    assert [row["peers_us"]["FlashQLA"] for row in report["rows"]] == [None, None]
    assert [row["peers_us"]["FLA"] for row in report["rows"]] == [100.0, 100.0]
    bench_table.print_report(report)
    printed = capsys.readouterr().out
    assert "FlashQLA was not measured" in printed and ": its result differs from ours: relative RMS " in printed
