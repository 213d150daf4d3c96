"""`explain`: every operator, on any device, and without one."""

from __future__ import annotations

import inspect
import json

import pytest
import torch
from processes import run

import gdn_cuda
from gdn_cuda import _C
from gdn_cuda.operators import calls, examples, measure
from gdn_cuda.operators.explain import Explanation, benchmarks, device_of, explained, function_called

EXAMPLES = examples.load()
REGISTERED = {
    (f"{entry['family']}/{entry['name']}", listed["configuration"])
    for entry in _C.kernels()
    for listed in entry["configurations"]
}
LAUNCHES_NOTHING = {"cauchy_pin_l2"}  # a window in L2 is no kernel


def launches(explanation: Explanation) -> list[tuple[str, str]]:
    return [(step["kernel"], step["configuration"]) for step in explanation.steps if step["kernel"]]


def says_something(explanation: Explanation) -> bool:
    """Every launch is of a registered configuration, with a reason; torch's operators are named where there is none."""
    assert REGISTERED.issuperset(launches(explanation))
    assert all(step["reason"] for step in explanation.steps)
    return bool(explanation.steps or explanation.of_torch)


# ---- Every operator


@pytest.mark.parametrize("name", EXAMPLES)
def test_every_example_is_explained(name: str) -> None:
    case = EXAMPLES[name]
    given = case.make(2, 5, 0)
    kept = {key: x.clone() for key, x in given.items() if isinstance(x, torch.Tensor)}
    assert says_something(explained(case.function, device="h200", **given))
    assert all(torch.equal(given[key].nan_to_num(), x.nan_to_num()) for key, x in kept.items()), "nothing is written"


def test_every_public_operator_has_a_typical_call() -> None:
    public = {*gdn_cuda.gdn.__all__, *gdn_cuda.structured.__all__}
    functions = {name for name in public if inspect.isfunction(getattr(gdn_cuda, name))}
    assert functions - LAUNCHES_NOTHING == set(calls.load()), "a typical_call for each, or a line in gdn_cuda/<family>/calls.py"


@pytest.mark.parametrize("name", calls.load())
@pytest.mark.parametrize("device", ["h200", "a100"])
def test_every_form_of_a_typical_call_is_explained(name: str, device: str) -> None:
    function, call = function_called(name), calls.load()[name]
    for form in call.forms:
        given = calls.arguments(function, [f"{axis}={call.axes[axis]}" for axis in form.axes])
        assert set(given) == {*form.tensors, *form.others}
        assert says_something(explained(function, device=device, **given))


@pytest.mark.parametrize("name", measure.load().benches)
def test_every_benchmark_is_explained(name: str) -> None:
    rows = list(benchmarks(name, device_of("h200")))
    assert [shape for shape, _ in rows] == [case.shape for case in measure.load().benches[name].cases("cuda")]
    for shape, explanation in rows:
        assert says_something(explanation), shape


# ---- What decides is what decides for CUDA tensors


def rows(*shape: int) -> torch.Tensor:
    return torch.empty(*shape, dtype=torch.bfloat16)


def decode(B: int, T: int = 1, offset: int = 0) -> Explanation:
    def shifted(*shape: int) -> torch.Tensor:
        return rows(*shape[:-1], shape[-1] + offset)[..., offset:]

    heads, gates = (shifted(B, T, 16, 128), shifted(B, T, 16, 128), shifted(B, T, 32, 128)), [rows(B, T, 32)] * 2
    per_head, pool = [torch.empty(32)] * 2, torch.empty(B, 32, 128, 128, device="meta")
    slots = torch.empty(B, *([T] if T > 1 else []), dtype=torch.int32)
    return explained(gdn_cuda.fused_decode, *heads, *gates, *per_head, pool, slots, device="h200")


def test_shapes_strides_and_alignment_decide() -> None:
    assert launches(decode(1)) != launches(decode(64)), "latency counts, or bytes"
    assert [kernel for kernel, _ in launches(decode(64))] == ["gdn/decode"]
    assert [kernel for kernel, _ in launches(decode(64, T=4))] == ["gdn/verify"]
    ((kernel, configuration),) = launches(decode(64, offset=1))
    assert kernel == "gdn/recurrent" and ".aligned = false" in configuration
    assert [kernel for kernel, _ in launches(decode(64, offset=8))] == ["gdn/decode"], "16 bytes further"


def test_the_device_decides() -> None:
    function, given = gdn_cuda.chunked_forward, calls.arguments(gdn_cuda.chunked_forward, ["T=4096"])

    def kernels(device: str) -> set[str]:
        return {kernel for kernel, _ in launches(explained(function, device=device, **given))}

    assert kernels("h200") == {"gdn/prefill"} and kernels("a100") == kernels("sm_120") == {"gdn/prefill_mma"}
    few = explained(function, device="h200", multiprocessors=8, **given)
    assert launches(few) != launches(explained(function, device="h200", **given))
    with pytest.raises(RuntimeError, match="got a device of sm_75"):
        explained(function, device="sm_75", **given)


def test_what_may_follow_is_explained_too() -> None:
    def kernels(*words: str) -> list[str]:
        function = gdn_cuda.toeplitz_solve_symmetric
        found = explained(function, device="h200", **calls.arguments(function, list(words)))
        return [step["kernel"].removeprefix("structured/toeplitz_") or step["reason"].split(",")[0] for step in found.steps]

    assert kernels("systems=100", "n=500") == ["schur", "then", "gko"]
    assert kernels("n=2000") == ["pcg", "then", "schur", "then", "generators", "eliminate"]


def test_gradients_are_explained_where_they_are_computed() -> None:
    v, x = (torch.empty(8, 32, dtype=torch.complex64, device="meta", requires_grad=True) for _ in range(2))

    def step(v: torch.Tensor, x: torch.Tensor) -> None:
        torch.autograd.grad(gdn_cuda.log_vandermonde(v, x, 1000).sum(), (v, x))

    assert [kernel for kernel, _ in launches(explained(step, v, x, device="h200"))] == [
        "structured/vandermonde",
        "structured/vandermonde_moments",
    ]


def test_nothing_of_it_stays() -> None:
    given = calls.arguments(gdn_cuda.fused_gdn_gating, [])
    before = _C.load_events()
    with pytest.raises(ValueError, match="fused_gdn_gating: b: expected the shape of a"):
        explained(gdn_cuda.fused_gdn_gating, **given | {"b": given["b"][:, 1:]})
    beta, _ = gdn_cuda.fused_gdn_gating(**given)
    assert beta.is_meta and _C.load_events() == before
    with _C.Explaining(device_of("h200")) as context:
        assert context.steps() == []


def test_the_function_of_the_package_takes_a_name_or_a_function() -> None:
    given = calls.arguments(gdn_cuda.fused_gdn_gating, [])
    text = gdn_cuda.explain("fused_gdn_gating", **given, device="h100", multiprocessors=114)
    assert text == gdn_cuda.explain(gdn_cuda.fused_gdn_gating, **given, device="h100", multiprocessors=114)
    assert text.startswith("fused_gdn_gating on NVIDIA H100 (sm_90a, 114 multiprocessors)\n  gdn/gating {.io = DType::bf16")
    for wrong in ({"device": "h300"}, {"device": "sm_9x"}, {"multiprocessors": 0}):
        with pytest.raises((ValueError, RuntimeError), match="expected"):
            gdn_cuda.explain("fused_gdn_gating", **given, **wrong)


# ---- The command


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("nope", "explain: OP: expected one of fused_gdn_gating, "),
        ("chunked_forward B", "explain: B: expected NAME=VALUE, each name once, got B"),
        ("chunked_forward B=1 B=2", "explain: B=2: expected NAME=VALUE, each name once, got B=2"),
        ("chunked_forward Q=1", "explain: Q: expected an axis (B, Hk, Hv, N, T, dk, dv, slots), dtype, or an argument of"),
        ("chunked_forward T=many", "explain: T: expected a size, got many"),
        ("chunked_forward T=1 N=1", "explain: axes: expected those of one form, (B, Hk, Hv, T, dk, dv) or "),
        ("chunked_forward state=:f33", "explain: state: expected one of f32, "),
        ("chunked_forward state=2y4", "explain: state: expected a shape and a dtype such as 2x64:f32, or none, got 2y4"),
        ("chunked_forward state=1x32x128x64", "explain: chunked_forward: state: expected states of (Hv, dv, dk) = "),
        ("cauchy_backward conj=true", "explain: grad: expected a shape and a dtype such as 2x64:f32, or a value, got none"),
        ("chunked_forward B=1 --device h300", "explain: device: expected one of a100, a40, orin, l40s, h100, h200, "),
        ("chunked_forward B=1 --sms 0", "explain: multiprocessors: expected 1 to 1024, got 0"),
    ],
)
def test_bad_input_is_named(words: str, expected: str, capsys: pytest.CaptureFixture[str]) -> None:
    from gdn_cuda.cli import main

    assert main(["explain", *words.split()]) == 2
    assert capsys.readouterr().err.startswith(expected)


def test_a_call_is_printed_with_kernel_configuration_and_reason() -> None:
    done = run("-m", "gdn_cuda", "explain", "fused_decode", "B=8", "state_pool=:bf16", "scale=0.5", "--device", "h200")
    assert (done.returncode, done.stderr) == (0, "")
    title, _, call, remark, launch, reason, shape = done.stdout.splitlines()
    assert title == "fused_decode on NVIDIA H200 (sm_90a, 132 multiprocessors)"
    assert call.startswith("query=8x1x16x128:bf16 key=8x1x16x128:bf16 ") and call.endswith(" scale=0.5")
    assert remark == "  one token a sequence, one state read and one written: gdn/decode"
    assert launch.startswith("  gdn/decode {.head_k = 128, .io = DType::bf16, .state = DType::bf16, ")
    assert "512 blocks of 4 steps for 132 multiprocessors" in reason
    assert shape == "      2 x 32 x 8 blocks of 128 threads, 16384 bytes of dynamic shared memory"


def test_json_has_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    from gdn_cuda.cli import main

    assert main(["explain", "cauchy_kernel", "rows=16", "--device", "a100", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["operator"], found["device"]["name"]) == ("cauchy_kernel", "NVIDIA A100")
    ((step,),) = (call["steps"] for call in found["calls"])
    assert step["kernel"] == "structured/cauchy_batch" and (step["kernel"], step["configuration"]) in REGISTERED


def test_a_call_as_it_is_printed_can_be_given_again(capsys: pytest.CaptureFixture[str]) -> None:
    from gdn_cuda.cli import main

    assert (
        main(["explain", "chunked_forward", "N=500", "B=3", "state_dtype=bf16", "deterministic=true", "--device", "h200"]) == 0
    )
    first = capsys.readouterr().out
    assert main(["explain", "chunked_forward", *first.splitlines()[2].split(), "N=500", "--device", "h200"]) == 0
    assert capsys.readouterr().out == first
