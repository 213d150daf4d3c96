"""`explain`: every operator, on any device, and without one."""

from __future__ import annotations

import inspect
import json
import re

import pytest
import torch
from processes import run
from torch.overrides import _get_current_function_mode_stack
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

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
# A window in L2, views and buffers launch no kernel; commit_replay is replay_decode without tokens, and so is that of ssd.
LAUNCHES_NOTHING = {
    "cauchy_pin_l2",
    "commit_replay",
    "replay_buffers",
    "ring_buffers",
    "split_projections",
    "ssd_commit_replay",
    "ssd_replay_buffers",
}


def launches(explanation: Explanation) -> list[tuple[str, str]]:
    return [(step["kernel"], step["configuration"]) for step in explanation.steps if step["kernel"]]


def says_something(explanation: Explanation) -> bool:
    """Every launch has a registered configuration and a reason; without launches, torch's operators are named."""
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
    assert all(torch.equal(given[key].nan_to_num(), x.nan_to_num()) for key, x in kept.items()), "no argument is written"


def test_every_public_operator_has_a_typical_call() -> None:
    public = {
        *gdn_cuda.conv.__all__,
        *gdn_cuda.gdn.__all__,
        *gdn_cuda.layers.__all__,
        *gdn_cuda.scan.__all__,
        *gdn_cuda.ssd.__all__,
        *gdn_cuda.structured.__all__,
    }
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


def test_between_two_explained_benchmarks_calls_run_as_usual() -> None:
    rows = benchmarks("fused_gdn_gating", device_of("h200"))
    next(rows)
    assert torch.zeros(2, device="cpu").tolist() == [0, 0] and not _get_current_dispatch_mode_stack()
    assert len(_get_current_function_mode_stack()) == 0
    rows.close()


# ---- Choices depend on the same properties as for CUDA tensors


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

    assert kernels("h200") == {"gdn/prefill_ahead"} and kernels("a100") == kernels("sm_120") == {"gdn/prefill_mma"}
    few = explained(function, device="h200", multiprocessors=8, **given)
    assert launches(few) != launches(explained(function, device="h200", **given))
    with pytest.raises(RuntimeError, match="got a device of sm_75"):
        explained(function, device="sm_75", **given)


def test_calls_that_may_follow_are_explained_too() -> None:
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


def test_an_explanation_leaves_no_state() -> None:
    given = calls.arguments(gdn_cuda.fused_gdn_gating, [])
    before = _C.load_events()
    with pytest.raises(ValueError, match="fused_gdn_gating: b: expected the shape of a"):
        explained(gdn_cuda.fused_gdn_gating, **given | {"b": given["b"][:, 1:]})
    beta, _ = gdn_cuda.fused_gdn_gating(**given)
    assert beta.is_meta and _C.load_events() == before
    with _C.Explaining(device_of("h200")) as context:
        assert context.steps() == []


def test_a_pool_with_a_history_is_explained_and_a_leaf_refused_as_in_a_call() -> None:
    """A call with an input that requires a gradient gives the pool a grad_fn."""
    rows = torch.randn(1, 1, 2, 64).bfloat16()
    arguments = rows.requires_grad_(), rows, rows, torch.rand(1, 1, 2), torch.rand(1, 1, 2), torch.rand(2), torch.rand(2)
    slots = torch.zeros(1, dtype=torch.int32)
    pool = torch.zeros(4, 2, 64, 64)
    gdn_cuda.fused_decode(*arguments, pool, slots)
    assert pool.grad_fn is not None
    found = explained(gdn_cuda.fused_decode, *arguments, pool, slots, device="h200")
    assert [kernel for kernel, _ in launches(found)] == ["gdn/decode"]
    leaf = torch.zeros(4, 2, 64, 64, requires_grad=True)
    for call in (gdn_cuda.fused_decode, explained):
        given = (gdn_cuda.fused_decode,) if call is explained else ()
        with pytest.raises(
            ValueError, match="state_pool: expected memory that requires no gradient, as it is written, got a leaf"
        ):
            call(*given, *arguments, leaf, slots)


def test_the_backward_of_chunked_forward_is_explained() -> None:
    rows = torch.empty(1, 200, 2, 64, dtype=torch.bfloat16, device="meta", requires_grad=True)
    gates = torch.empty(1, 200, 2, device="meta")

    def step(value: torch.Tensor, query: torch.Tensor | None = None) -> None:
        out, _ = gdn_cuda.chunked_forward(rows.detach() if query is None else query, rows.detach(), value, gates, gates)
        torch.autograd.grad(out.sum(), [x for x in (value, query) if x is not None])

    both, alone = (
        [kernel for kernel, _ in launches(explained(step, *given, device="a100"))] for given in ((rows, rows), (rows,))
    )
    passes = ["gdn/backward_mma_states", "gdn/backward_mma_states", "gdn/backward_mma_gradients", "gdn/chunk_gates_backward"]
    assert both[-4:] == passes
    assert alone == both[:-3]


SHORT_CHUNKS = ["gdn/kda_backward_prepare", *2 * ["gdn/kda_backward_states"], "gdn/kda_backward_gradients"]
WIDE_CHUNKS = ["gdn/kda_prepare", *2 * ["gdn/backward_chain"], "gdn/kda_gradients"]


@pytest.mark.parametrize("device, passes", [("a100", SHORT_CHUNKS), ("h100", WIDE_CHUNKS)])
def test_the_backward_with_a_gate_for_every_channel_is_explained(device: str, passes: list[str]) -> None:
    rows = torch.empty(1, 200, 2, 64, dtype=torch.bfloat16, device="meta", requires_grad=True)
    beta = torch.empty(1, 200, 2, device="meta")

    def step(gate: torch.Tensor) -> None:
        out, _ = gdn_cuda.chunked_forward(rows.detach(), rows.detach(), rows.detach(), beta, gate)
        torch.autograd.grad(out.sum(), gate)

    names = [kernel for kernel, _ in launches(explained(step, rows, device=device))]
    assert names[-4:] == passes


@pytest.mark.parametrize("heads, dk, dv", [((1, 2), 64, 64), ((2, 2), 136, 64), ((2, 2), 64, 136)])
def test_the_backward_of_what_wide_chunks_do_not_take_is_by_short_ones(heads: tuple[int, int], dk: int, dv: int) -> None:
    rows, value, gate = (
        torch.empty(1, 200, *sizes, dtype=torch.bfloat16, device="meta")
        for sizes in ((heads[0], dk), (heads[1], dv), (heads[1], dk))
    )
    beta = torch.empty(1, 200, heads[1], device="meta")

    def step(gate: torch.Tensor) -> None:
        out, _ = gdn_cuda.chunked_forward(rows, rows, value, beta, gate)
        torch.autograd.grad(out.sum(), gate)

    names = [kernel for kernel, _ in launches(explained(step, gate.requires_grad_(), device="h100"))]
    assert names[-4:] == SHORT_CHUNKS


def test_segments_are_explained() -> None:
    rows = torch.empty(1, 32768, 4, 128, dtype=torch.bfloat16, device="meta")
    given = rows, rows, rows, torch.empty(1, 32768, 4, device="meta"), torch.empty(1, 32768, 4, 128, device="meta")
    split = explained(gdn_cuda.chunked_forward, *given, device="h200")
    assert [kernel for kernel, _ in launches(split)][1:] == ["gdn/kda_own", "gdn/kda_fold", "gdn/kda_own"]
    assert "9 segments of a sequence of 512 chunks in a window, at most 57 chunks each" in str(split)
    whole = explained(gdn_cuda.chunked_forward, *given, device="h200", deterministic=True)
    assert [kernel for kernel, _ in launches(whole)] == ["gdn/kda_prepare", "gdn/kda_own"]


def test_one_launch_for_prefill_with_gates_of_channels_is_explained() -> None:
    def found(heads: int, deterministic: bool) -> Explanation:
        rows = torch.empty(1, 8192, heads, 128, dtype=torch.bfloat16, device="meta")
        beta, gate = torch.empty(1, 8192, heads, device="meta"), torch.empty(1, 8192, heads, 128, device="meta")
        return explained(gdn_cuda.chunked_forward, rows, rows, rows, beta, gate, device="h200", deterministic=deterministic)

    for deterministic in (False, True):
        one = found(24, deterministic)
        assert [kernel for kernel, _ in launches(one)] == ["gdn/kda_ahead"]
        assert "84 blocks prepare 3072 records; 48 own 48 work tiles of 64 rows" in str(one)
        assert [kernel for kernel, _ in launches(found(34, deterministic))] == ["gdn/kda_prepare", "gdn/kda_own"]


def test_heads_of_long_sequences_fit_the_default_workspace() -> None:
    rows = torch.empty(1, 32768, 32, 128, dtype=torch.bfloat16, device="meta")
    beta, gate = torch.empty(1, 32768, 32, device="meta"), torch.empty(1, 32768, 32, 128, device="meta", requires_grad=True)

    def step(gate: torch.Tensor) -> None:
        torch.autograd.grad(gdn_cuda.chunked_forward(rows, rows, rows, beta, gate)[0].sum(), gate)

    names = [kernel for kernel, _ in launches(explained(step, gate, device="h200"))]
    assert names[-4:] == WIDE_CHUNKS and names.count("gdn/kda_gradients") == 1


def backward_of_long_sequences(device: str) -> list[Explanation]:
    """Of values and gates, and of values alone."""
    rows = torch.empty(1, 20000, 2, 64, dtype=torch.bfloat16, device="meta", requires_grad=True)
    beta = torch.empty(1, 20000, 2, device="meta")

    def step(value: torch.Tensor, gate: torch.Tensor) -> None:
        out, _ = gdn_cuda.chunked_forward(rows.detach(), rows.detach(), value, beta, gate)
        torch.autograd.grad(out.sum(), [x for x in (value, gate) if x.requires_grad])

    return [explained(step, rows, gate, device=device) for gate in (rows, rows.detach())]


def test_segments_of_wide_chunks_are_explained() -> None:
    both, alone = ([kernel for kernel, _ in launches(each)] for each in backward_of_long_sequences("h100"))
    chains = 2 * ["gdn/backward_chain"]
    assert both[-7:] == ["gdn/kda_prepare", *chains, "gdn/backward_links", *chains, "gdn/kda_gradients"]
    assert alone[-4:] == ["gdn/kda_prepare", chains[0], "gdn/backward_links", chains[0]]


def test_segments_of_the_backward_of_long_sequences_are_explained() -> None:
    both, alone = backward_of_long_sequences("a100")
    chains, folds = 2 * ["gdn/kda_backward_states"], 2 * ["gdn/fold_states"]
    names = [kernel for kernel, _ in launches(both)]
    assert names[-8:] == ["gdn/kda_backward_prepare", *chains, *folds, *chains, "gdn/kda_backward_gradients"]
    assert [kernel for kernel, _ in launches(alone)][-5:] == [names[-8], *chains, *folds[:1], *chains[:1]]
    counts = {n for each in (both, alone) for step in each.steps for n in re.findall(r", (\d+) segments", step["reason"])}
    assert len(counts) == 1 and int(counts.pop()) > 1


def test_a_call_that_cannot_be_explained_is_refused_in_a_sentence() -> None:
    x = torch.rand(2, 8)
    for wrong, expected in (
        ({"multiprocessors": 12.5}, "multiprocessors: expected 1 to 1024, got 12.5"),
        ({"multiprocessors": "12"}, "multiprocessors: expected 1 to 1024, got 12"),
        ({"multiprocessors": True}, "multiprocessors: expected 1 to 1024, got True"),
        ({"device": torch.device("cuda")}, "device: expected one of a100, .*, got cuda"),
        ({"device": 0}, "device: expected one of a100, .*, got 0"),
    ):
        with pytest.raises(ValueError, match=f"explain: {expected}"):
            gdn_cuda.explain("toeplitz_matvec", x, x, x, **wrong)
    with pytest.raises(ValueError, match="explain: function: expected a function of gdn_cuda or its name, got NoneType"):
        gdn_cuda.explain(None)
    with pytest.raises(ValueError, match=r"expected strided tensors outside torch.func transforms, got one of layout"):
        gdn_cuda.explain("toeplitz_matvec", x.to_sparse(), x, x)
    with pytest.raises(ValueError, match=r"expected strided tensors outside torch.func transforms, got one inside"):
        torch.vmap(lambda x: gdn_cuda.explain("toeplitz_matvec", x, x, x))(x)


def test_the_function_of_the_package_takes_a_name_or_a_function() -> None:
    given = calls.arguments(gdn_cuda.fused_gdn_gating, [])
    text = gdn_cuda.explain("fused_gdn_gating", **given, device="h100", multiprocessors=114)
    assert text == gdn_cuda.explain(gdn_cuda.fused_gdn_gating, **given, device="h100", multiprocessors=114)
    assert text.startswith("fused_gdn_gating on NVIDIA H100 (sm_90a, 114 multiprocessors)\n  layers/gating {.io = DType::bf16")
    for wrong in ({"device": "h300"}, {"device": "sm_9x"}, {"multiprocessors": 0}):
        with pytest.raises((ValueError, RuntimeError), match="expected"):
            gdn_cuda.explain("fused_gdn_gating", **given, **wrong)


# ---- The command


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("nope", "explain: OP: expected one of fused_decode, "),
        ("chunked_forward B", "explain: B: expected NAME=VALUE, each name once, got B"),
        ("chunked_forward B=1 B=2", "explain: B=2: expected NAME=VALUE, each name once, got B=2"),
        ("chunked_forward Q=1", "explain: Q: expected an axis (B, Hk, Hv, N, T, dk, dv, slots), dtype, or an argument of"),
        ("chunked_forward T=many", "explain: T: expected a size, got many"),
        ("chunked_forward T=1 N=1", "explain: axes: expected those of one form, (B, Hk, Hv, T, dk, dv) or "),
        ("chunked_forward state=:f33", "explain: state: expected one of f32, "),
        ("chunked_forward scale=abc", "explain: scale: expected a number, got abc"),
        ("chunked_forward checkpoint_every=64.0", "explain: checkpoint_every: expected an integer, got 64.0"),
        ("chunked_forward deterministic=2", "explain: deterministic: expected true or false, got 2"),
        ("chunked_forward T=", "explain: T: expected a size, got nothing"),
        ("chunked_forward B=99999999999 T=99999999999", "explain: sizes: expected fewer than 2^59 elements, got 99999999999x"),
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
    message = capsys.readouterr().err
    assert message.startswith(expected) and message.count("\n") == 1


def test_a_call_is_printed_with_kernel_configuration_and_reason() -> None:
    words = ("fused_decode", "B=8", "state_pool=:bf16", "scale=0.5", "--device", "h200")
    done = run("-m", "gdn_cuda", "explain", *words, COLUMNS="10000")
    assert (done.returncode, done.stderr) == (0, "")
    title, _, call, remark, launch, reason, shape = done.stdout.splitlines()
    assert title == "fused_decode on NVIDIA H200 (sm_90a, 132 multiprocessors)"
    assert call.startswith("query=8x1x16x128:bf16 key=8x1x16x128:bf16 ") and call.endswith(" scale=0.5")
    assert remark == "  one token a sequence, one state read and one written: gdn/decode"
    assert launch.startswith("  gdn/decode {.head_k = 128, .io = DType::bf16, .state = DType::bf16, ")
    assert "512 blocks of 4 steps for 132 multiprocessors" in reason
    assert shape == "      2 x 32 x 8 blocks of 128 threads, 16384 bytes of dynamic shared memory"


def test_long_lines_are_wrapped_and_a_call_is_not(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """A call stays on one line, so that it can be pasted."""
    from gdn_cuda.cli import main

    said = {}
    for columns in ("60", "10000"):
        monkeypatch.setenv("COLUMNS", columns)
        assert main(["explain", "fused_decode", "B=8", "--device", "h200"]) == 0
        said[columns] = capsys.readouterr().out
    title, empty, call, *narrow = said["60"].splitlines()
    assert said["10000"].splitlines()[:3] == [title, empty, call]
    assert max(map(len, narrow)) <= 60 and said["60"].split() == said["10000"].split()
    assert not any(line.rstrip().endswith("=") or line.lstrip().startswith("=") for line in narrow), "name = value is whole"


def test_a_long_word_is_refused_and_not_repeated(capsys: pytest.CaptureFixture[str]) -> None:
    from gdn_cuda.cli import main

    for words in (["X" * 100_000], ["chunked_forward", "A" * 100_000 + "=1"], ["chunked_forward", f"scale={'(' * 900}"]):
        assert main(["explain", *words]) == 2
        assert len(capsys.readouterr().err) < 2000


def test_json_has_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    from gdn_cuda.cli import main

    assert main(["explain", "cauchy_kernel", "rows=16", "--device", "a100", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["operator"], found["device"]["name"]) == ("cauchy_kernel", "NVIDIA A100")
    ((step,),) = (call["steps"] for call in found["calls"])
    assert step["kernel"] == "structured/cauchy_batch" and (step["kernel"], step["configuration"]) in REGISTERED


@pytest.mark.parametrize(
    "words",
    [
        "chunked_forward N=500 B=3 state_dtype=bf16 deterministic=true",
        "recurrent_forward T=4 inference_mode=SPEC_VERIFY",
        "bf16_gdn_compute_u_w T=100",
        "displacement_matvec n=8 disp_type=CYCLIC",
    ],
)
def test_a_call_as_it_is_printed_can_be_given_again(words: str, capsys: pytest.CaptureFixture[str]) -> None:
    from gdn_cuda.cli import main

    operator, *call = words.split()
    assert main(["explain", operator, *call, "--device", "h200"]) == 0
    first = capsys.readouterr().out
    again = [*first.splitlines()[2].split(), *(word for word in call if word.startswith("N="))]
    assert main(["explain", operator, *again, "--device", "h200"]) == 0
    assert capsys.readouterr().out == first


def test_words_may_follow_options(capsys: pytest.CaptureFixture[str]) -> None:
    from gdn_cuda.cli import main

    said = []
    for words in ("B=2 T=8 --device h200", "--device h200 B=2 T=8", "B=2 --device h200 T=8"):
        assert main(["explain", "fused_gdn_gating", *words.split()]) == 0
        said.append(capsys.readouterr().out)
    assert said[0] == said[1] == said[2] and "a=2x8x32:bf16" in said[0]
    for words in ("explain fused_gdn_gating B=2 --device h200 --nope", "doctor nope", "tune cauchy_conj --quick 1x2x3"):
        with pytest.raises(SystemExit) as stopped:
            main(words.split())
        assert stopped.value.code == 2 and "unrecognized arguments: " in capsys.readouterr().err
