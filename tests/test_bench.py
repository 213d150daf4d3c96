"""What the benchmark counts and compares, without a GPU: calls are not timed, and the peers are fakes."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import bench_fakes
import pytest
import torch

import gdn_cuda
from gdn_cuda.cli import bench, bench_peers, bench_plot, bench_table, bench_timing
from gdn_cuda.gdn import measure_prefill
from gdn_cuda.gdn.measure_prefill import GPU_SHAPES, Shape
from gdn_cuda.operators import measure as measures

# B×T, Hk/Hv and the roof in ms, computed independently of this code
ROOFS_MS = {
    "1×1024 16/32": 0.007,
    "1×4096 16/32": 0.030,
    "1×8192 16/32": 0.060,
    "1×32768 16/32": 0.239,
    "1×131072 16/32": 0.956,
    "8×4096 16/32": 0.239,
    "32×1024 16/32": 0.239,
    "1×8192 4/8": 0.015,
    "1×32768 4/8": 0.060,
    "1×32768 2/4": 0.030,
    "1×8192 16/64": 0.119,
    "1×32768 16/48": 0.358,
    "8×2048 16/16": 0.063,
    "packed 24, 51721 16/32": 0.38,
}
BENCHES = bench.benches()
H200 = bench.NOMINAL_CEILINGS["NVIDIA H200"]


def roof_ms(shape: Shape) -> float:
    tokens = Shape(shape.key_heads, shape.value_heads, (1,), shape.key_dim, shape.value_dim)
    moved = measure_prefill.prefill_work(tokens, "cpu").bytes * shape.tokens
    return max(moved / H200["copy_bytes_per_s"], shape.flops / H200["bf16_flop_per_s"]) * 1e3


def test_the_prefill_table_has_these_rows_and_roofs() -> None:
    roofs = {shape.name: roof_ms(shape) for shape in GPU_SHAPES}
    assert set(ROOFS_MS) < set(roofs)
    for name, expected in ROOFS_MS.items():
        assert abs(roofs[name] - expected) < (0.005 if "packed" in name else 0.001), (name, roofs[name])


def test_the_packed_row_is_what_its_name_says() -> None:
    (packed,) = (shape for shape in GPU_SHAPES if shape.packed)
    assert (len(packed.lengths), packed.tokens, min(packed.lengths), max(packed.lengths)) == (24, 51721, 50, 4000)


def test_the_curve_is_one_sequence_of_growing_length() -> None:
    assert [shape.curve for shape in GPU_SHAPES if shape.curve] == [
        ("1×T 16/32", length) for length in (1024, 4096, 8192, 32768, 131072)
    ]


def test_the_option_only_selects_the_shapes_that_contain_its_text() -> None:
    names = [case.shape for case in bench.chosen("chunked_forward", "cuda", "1x8192")]
    assert names == [shape.name for shape in GPU_SHAPES if shape.lengths == (8192,)]
    with pytest.raises(ValueError, match=r"--only: expected a part of one of 1×1024 16/32; .*got 7/9"):
        bench.chosen("chunked_forward", "cuda", "7/9")


# ---- Peers


def work_of(operator: str, number: int) -> measures.Work:
    return bench.chosen(operator, "cpu", None)[number].prepare()


IN_TORCH = [(operator, peer) for operator, declared in BENCHES.items() for peer in declared.peers if "torch" in peer]
MEASURED = [
    ("fused_decode", "FlashInfer", 2),
    ("fused_decode", "FlashInfer", 3),
    ("fused_decode", "FLA", 2),
    ("recurrent_forward", "FLA", 2),
    *(("selective_scan", "mamba-ssm", number) for number in (0, 1, 4, 5, 8, 9)),
    ("selective_state_update", "mamba-ssm", 0),
    ("selective_state_update", "mamba-ssm", 5),
    *(("chunked_forward", peer, number) for peer in ("FLA", "FlashInfer", "FlashQLA") for number in (0, 1)),
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


def test_only_public_operators_are_measured() -> None:
    assert not {name for name in BENCHES if not inspect.isfunction(getattr(gdn_cuda, name, None))}


def test_the_structured_tables_have_these_rows() -> None:
    shapes = {operator: [case.shape for case in bench.chosen(operator, "cuda", "forward")] for operator in SUMS}
    assert shapes == {
        "cauchy_conj": ["1024×32×16384 forward", "1024×64×4096 forward"],
        "cauchy_kernel": ["16×4096×4096 forward"],
        "log_vandermonde": ["1024×32×16384 forward"],
    }
    assert [case.shape for case in bench.chosen("toeplitz_matvec", "cuda", None)] == ["4×256", "64×1024"]
    assert [case.shape for case in bench.chosen("toeplitz_solve", "cuda", "eager")] == [
        "4×256 eager", "64×1024 eager", "1×8192 eager"]  # fmt: skip
    symmetric = bench.chosen("toeplitz_solve_symmetric", "cuda", None)
    assert [case.shape for case in symmetric if case.captured] == [
        "4×64 graph", "4×256 graph", "64×1024 graph", "1×8192 graph"]  # fmt: skip
    assert len(symmetric) == 8
    forward, backward = (work_of("log_vandermonde", number) for number in (0, 1))
    assert (forward.bytes, backward.bytes) == (8 * 16 * 8 * 2 + 8 * 256 * 4, 2 * 8 * 16 * 8 * 2 + 8 * 256 * 4)


def test_the_scan_table_has_these_rows() -> None:
    rows = [case.shape for case in bench.chosen("selective_scan", "cuda", "forward")]
    tokens = ["1×5120×4096", "8×5120×2048", "8×1536×2048", "1×8192×32768", "1×256×131072", "8×1536×2048 fp32",
              "8×1024×2048 complex", "8×5120×2048 N=64", "1×1536×512", "1×2048×4096", "8×1536×2047", "8×1536×2048 trained",
              "1×1536×16384 packed"]  # fmt: skip
    mixed = ["8×1536×2048 mixed", "1×2048×4096 mixed", "1×1536×16384 packed mixed"]
    assert rows == [f"{name} forward" for name in (*tokens, *(f"{name} transposed" for name in tokens), *mixed)]
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

    def run(operator: str, cases: list[measures.Case] | None = None, check_peers: bool = True) -> dict[str, Any]:
        made_on = {
            "operator": operator,
            "device": "a CPU",
            "driver": None,
            "torch": "2",
            "cuda": "13",
            "gdn_cuda": "0",
            "commit": "",
        }
        return made_on | bench._measure_gpu(operator, cases or bench.chosen(operator, "cpu", None), 20, check_peers)

    return run


def curve_cases() -> list[measures.Case]:
    shapes = (Shape(16, 32, (64,)), Shape(16, 32, (128,)))
    return [
        measures.Case(shape.name, partial(measure_prefill.prefill_work, shape, "cpu"), captured=False, curve=shape.curve)
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
        always_there = "torch" in peer or peer == "operators"  # our own, one after the other
        assert (f"{peer} was not measured" in printed) == (not always_there)
    assert not report["peers_disagree"]


@pytest.mark.parametrize("operator", ["fused_decode", "chunked_forward"])
def test_a_report_with_peers_and_its_plot(
    operator: str,
    measure: Callable[..., dict[str, Any]],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    bench_fakes.install(monkeypatch)
    report = measure(operator, curve_cases() if operator == "chunked_forward" else None)
    assert not report["peers_disagree"]
    assert [row["peers_us"]["FlashInfer"] for row in report["rows"]] == [100.0 for _ in report["rows"]]
    bench_table.print_report(report)
    printed = capsys.readouterr().out
    assert "FlashInfer against ours, the largest relative RMS: output " in printed
    assert "FlashInfer was not measured" not in printed
    bench_plot.draw(report, str(tmp_path / "picture.png"))
    assert (tmp_path / "picture.png").stat().st_size > 1000


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
    assert "FlashQLA was not measured at 1×64 16/32: its result differs from ours: relative RMS " in capsys.readouterr().out
