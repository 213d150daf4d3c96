"""benchmarks/compare_sass.py: which configurations of two trees are paired, and what counts as a change; with made-up
listings."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from compare_sass import OptionsParser, chosen, renames_of, table
from sass_code import Code, Verdict, code_of, difference, opcode
from sass_pairs import Pair, Renames, default_of, fields_of, pairs, require_used

from gdn_cuda import runtime

ROOT = Path(__file__).resolve().parents[1]
PREFILL = "{.head_k = 128, .io = DType::bf16, .linked = false}"
LINKED = "{.head_k = 128, .io = DType::bf16, .linked = true}"


def unknown(kernel: str, field: str) -> str | None:
    return None


def paired(before: dict, after: dict, renames: Renames | None = None, default_before=unknown, default_after=unknown):  # type: ignore[no-untyped-def, type-arg]
    found, said = pairs(before, after, renames or Renames(), default_before, default_after)
    return [(pair.before, pair.after) for pair in found], said


def test_configurations_that_one_tree_lacks_are_missing() -> None:
    found, said = paired({"gdn/prefill": [PREFILL]}, {"gdn/prefill": [LINKED]})
    assert found == [(("gdn/prefill", PREFILL), None), (None, ("gdn/prefill", LINKED))]
    assert said == []


def test_kernels_that_one_tree_lacks_are_missing() -> None:
    found, _ = paired({"gdn/prefill": [PREFILL]}, {"gdn/other": [PREFILL]})
    assert found == [(("gdn/prefill", PREFILL), None), (None, ("gdn/other", PREFILL))]


def test_the_order_and_the_types_of_fields_do_not_matter() -> None:
    moved = "{.linked = false, .io = common::DType::bf16, .head_k = 128}"
    found, _ = paired({"gdn/prefill": [PREFILL]}, {"gdn/prefill": [moved]})
    assert found == [(("gdn/prefill", PREFILL), ("gdn/prefill", moved))]


def test_a_new_field_counts_as_its_default() -> None:
    forward, reverse = "{.head_k = 64, .reverse = false}", "{.head_k = 64, .reverse = true}"
    found, said = paired({"k": ["{.head_k = 64}"]}, {"k": [reverse, forward]}, default_after=lambda kernel, name: "false")
    assert found == [(("k", "{.head_k = 64}"), ("k", forward)), (None, ("k", reverse))]
    assert said == ["k: BEFORE lacks the field reverse, which counts as false"]


def test_a_field_that_went_counts_as_its_default() -> None:
    plain, special = "{.head_k = 64, .stages = 2}", "{.head_k = 64, .stages = 3}"
    found, said = paired({"k": [plain, special]}, {"k": ["{.head_k = 64}"]}, default_before=lambda kernel, name: "2")
    assert found == [(("k", plain), ("k", "{.head_k = 64}")), (("k", special), None)]
    assert said == ["k: AFTER lacks the field stages, which counts as 2"]


def test_a_field_without_a_known_default_is_refused() -> None:
    with pytest.raises(ValueError, match=r"k: expected a default of the field reverse, which BEFORE lacks, got none"):
        paired({"k": ["{.head_k = 64}"]}, {"k": ["{.head_k = 64, .reverse = false}"]})


def test_renamed_kernels_fields_and_values_are_paired() -> None:
    now = "{.head_k = 128, .io = DType::half, .chained = true}"
    renames = Renames({"gdn/prefill": "chunked/prefill"}, [("*", "linked", "chained")], {"bf16": "half"})
    found, said = paired({"gdn/prefill": [LINKED]}, {"chunked/prefill": [now]}, renames)
    assert found == [(("gdn/prefill", LINKED), ("chunked/prefill", now))]
    assert said == []


def test_a_renamed_kernel_asks_for_defaults_by_the_names_that_a_tree_has() -> None:
    asked: list[tuple[str, str]] = []

    def default(kernel: str, name: str) -> str:
        asked.append((kernel, name))
        return "false"

    renames = Renames({"old": "new"}, [("*", "was", "now")])
    before = {"old": ["{.a = 1, .was = false}"], "other": ["{.now = 1}"]}
    after = {"new": ["{.a = 1}"], "other": ["{.now = 1}"]}
    found, _ = paired(before, after, renames, default_before=default)
    assert found[0] == (("old", "{.a = 1, .was = false}"), ("new", "{.a = 1}"))
    assert asked == [("old", "was")]


def test_a_field_is_renamed_in_the_kernels_that_a_pattern_names() -> None:
    """A pattern is matched with new names; elsewhere the old name of the field still has its meaning."""
    before = {"gdn/cauchy": ["{.lines = 2}"], "gdn/decode": ["{.lines = 2}"], "scan/sums": ["{.lines = 4}"]}
    after = {"structured/cauchy": ["{.outputs = 2}"], "gdn/decode": ["{.outputs = 2}"], "scan/sums": ["{.lines = 4}"]}
    renames = Renames(
        {"gdn/cauchy": "structured/cauchy"}, [("structured/*", "lines", "outputs"), ("gdn/*", "lines", "outputs")]
    )
    require_used(before, after, renames)
    found, said = paired(before, after, renames)
    assert found == [
        (("gdn/cauchy", "{.lines = 2}"), ("structured/cauchy", "{.outputs = 2}")),
        (("gdn/decode", "{.lines = 2}"), ("gdn/decode", "{.outputs = 2}")),
        (("scan/sums", "{.lines = 4}"), ("scan/sums", "{.lines = 4}")),
    ]
    assert said == []


TWO = {"conv/back": ["{.io = f32}", "{.io = bf16}"], "conv/back_any": ["{.io = f32}", "{.io = bf16}"]}
ONE = {"conv/back": [f"{{.io = {io}, .sequences = {sequences}}}" for io in ("f32", "bf16") for sequences in ("false", "true")]}


def test_two_kernels_that_became_one_are_told_apart_by_a_field() -> None:
    renames = Renames({"conv/back_any": "conv/back"}, added={"conv/back_any": {"sequences": "true"}})
    require_used(TWO, ONE, renames)
    found, said = paired(TWO, ONE, renames, default_after=lambda kernel, name: "false")
    assert found == [
        (("conv/back", "{.io = f32}"), ("conv/back", "{.io = f32, .sequences = false}")),
        (("conv/back", "{.io = bf16}"), ("conv/back", "{.io = bf16, .sequences = false}")),
        (("conv/back_any", "{.io = f32}"), ("conv/back", "{.io = f32, .sequences = true}")),
        (("conv/back_any", "{.io = bf16}"), ("conv/back", "{.io = bf16, .sequences = true}")),
    ]
    assert said == ["conv/back: BEFORE lacks the field sequences, which counts as false"]


def test_two_kernels_that_became_one_are_refused_without_such_a_field() -> None:
    with pytest.raises(
        ValueError, match=r"conv/back: expected different configurations of conv/back and conv/back_any, got {\.io = f32}"
    ):
        paired({name: ["{.io = f32}"] for name in TWO}, {"conv/back": ["{.io = f32}"]}, Renames({"conv/back_any": "conv/back"}))
    renames = Renames({"conv/back_any": "conv/back"}, added={"conv/back_any": {"io": "f32"}})
    with pytest.raises(ValueError, match="fields: expected different names, got two of io, io of conv/back_any"):
        paired(TWO, ONE, renames, default_after=lambda kernel, name: "false")


@pytest.mark.parametrize(
    "renames",
    [
        Renames({"gdn/prefil": "gdn/prefill"}),
        Renames(fields=[("*", "linked", "chained")]),
        Renames(fields=[("scan/*", "linked", "linked")]),
        Renames(values={"bf16": "f8"}),
        Renames({"gdn/prefill": "gdn/prefill"}, added={"gdn/prefill": {"linked": "true"}}),
    ],
)
def test_a_rename_that_renames_nothing_is_refused(renames: Renames) -> None:
    with pytest.raises(ValueError, match=r"renamed (kernel|field( of scan/\*)?|value): expected .*"):
        require_used({"gdn/prefill": [PREFILL]}, {"gdn/prefill": [PREFILL]}, renames)


def test_two_fields_do_not_become_one() -> None:
    with pytest.raises(ValueError, match="fields: expected different names"):
        paired({"a": ["{.x = 1, .y = 2}"]}, {"a": ["{.y = 1}"]}, Renames(fields=[("*", "x", "y")]))


def test_options_say_renames_and_kernels_are_chosen_by_either_name() -> None:
    renames = renames_of(
        [("conv/back_any", "conv/back:sequences=true"), ("scan/copy", "common/copy")],
        [("linked", "chained"), ("conv/*:lines", "outputs")],
        [("f32", "fp32")],
    )
    assert renames == Renames(
        {"conv/back_any": "conv/back", "scan/copy": "common/copy"},
        [("*", "linked", "chained"), ("conv/*", "lines", "outputs")],
        {"f32": "fp32"},
        {"conv/back_any": {"sequences": "true"}},
    )
    before = {"conv/back": [], "conv/back_any": [], "scan/copy": [], "scan/other": []}  # type: dict[str, list[str]]
    after = {"conv/back": [], "common/copy": [], "scan/other": []}  # type: dict[str, list[str]]
    for pattern in ("conv/back", "conv/back_any"):
        assert [list(each) for each in chosen(before, after, renames, [pattern])] == [
            ["conv/back", "conv/back_any"],
            ["conv/back"],
        ]
    assert [list(each) for each in chosen(before, after, renames, ["scan/*"])] == [
        ["scan/copy", "scan/other"],
        ["common/copy", "scan/other"],
    ]


def test_fields_of_a_configuration() -> None:
    assert fields_of(PREFILL) == {"head_k": "128", "io": "bf16", "linked": "false"}
    assert fields_of("{}") == {}


def test_options_in_a_file_are_read_without_its_comments(tmp_path: Path) -> None:
    file = tmp_path / "renames.txt"
    file.write_text("# Where A is an old commit.\n\n--renamed-kernel=conv/a=conv/b:x=true\n--renamed-field=gdn/*:old=new\n")
    parser = OptionsParser(fromfile_prefix_chars="@")
    for name in ("--renamed-kernel", "--renamed-field"):
        parser.add_argument(name, action="append")
    options = parser.parse_args([f"@{file}"])
    assert (options.renamed_kernel, options.renamed_field) == (["conv/a=conv/b:x=true"], ["gdn/*:old=new"])


HEADERS = """
enum class Direction { forward, backward };
struct PrefillConfigs { int head_k = 7; };
struct alignas(16) ChunkedConfig {
    static constexpr int tile = 64;  // int stages = 9;
    int head_k = 128, stages = 3, width;
    bool linked;
    bool persistent = true;
    DType io;
    Direction direction = Direction::backward;
    Direction other;
    int depth = kDepth;
    int computed = 2 * 3;
    GDN_FIELDS(head_k, stages)
    constexpr int threads() const { int inner = 5; return inner; }
};
enum class DType : int { f32, bf16 };
"""


@pytest.mark.parametrize(
    ("member", "value"),
    [
        ("head_k", "128"), ("stages", "3"), ("width", "0"), ("linked", "false"), ("persistent", "true"), ("io", "f32"),
        ("direction", "backward"), ("other", "forward"), ("depth", None), ("computed", None), ("inner", None), ("tile", None),
        ("nothing", None),
    ],
)  # fmt: skip
def test_defaults_are_read_from_headers(member: str, value: str | None) -> None:
    assert default_of(HEADERS, "ChunkedConfig", member) == value
    assert default_of(HEADERS, "Prefill", member) is None


def code(text: bytes, registers: int = 32, **data: bytes) -> Code:
    return Code(text, registers, {f".nv.{name}": table for name, table in data.items()})


def test_other_operands_with_the_same_opcodes_are_unchanged() -> None:
    was, now = ["MOV R1, c[0x0][0x28];", "@P0 LDG.E.128 R4, [R2];"], ["MOV R1, c[0x0][0x30];", "@!P1 LDG.E.128 R8, [R2+0x10];"]
    assert difference(was, now, code(b"a"), code(b"b")) == Verdict("same opcodes", 2, 2)
    assert difference(was, now, code(b"a", 32), code(b"b", 40)).detail == "32 registers, now 40"


@pytest.mark.parametrize(
    ("now", "detail"),
    [
        (["MOV R1, R2;"], "1 lines changed; -1 LDG.E.128"),
        (["MOV R1, R2;", "LDG.E.64 R4, [R2];"], "1 lines changed; -1 LDG.E.128, +1 LDG.E.64"),
        (["LDG.E.128 R4, [R2];", "MOV R1, R2;"], "1 lines changed; the same opcodes in another order"),
        (["MOV R1, R2;", "@P0 LDG.E.128 R4, [R2];"], "1 lines changed; +1 @LDG.E.128, -1 LDG.E.128"),
    ],
)
def test_other_instructions_are_a_change(now: list[str], detail: str) -> None:
    was = ["MOV R1, R2;", "LDG.E.128 R4, [R2];"]
    assert difference(was, now, code(b"a"), code(b"b")) == Verdict("changed", 2, len(now), detail)


def test_other_tables_of_constants_are_a_change() -> None:
    lines = ["MOV R1, c[0x3][0x0];"]
    was, now = code(b"a", constant3=b"1").reading(lines), code(b"a", constant3=b"2").reading(lines)
    assert difference(lines, lines, was, now).outcome == "changed"


def test_tables_that_no_instruction_reads_do_not_count() -> None:
    """A header's constants are in memory, with addresses in bank 4, whether they are used or not."""
    tables = {"constant4": b"address", "global.init": b"value", "constant2": b"jumps"}
    assert code(b"a", **tables).reading(["MOV R1, c[0x0][0x28];"]) == code(b"a")
    assert code(b"a", **tables).reading(["LDC R1, c[0x2][R2+0x84];"]) == code(b"a", constant2=b"jumps")
    through_an_address = code(b"a", **tables).reading(["LDC.64 R2, c[0x4][0x8];"])
    assert set(through_an_address.data) == {".nv.constant4", ".nv.global.init"}


def test_registers_are_those_that_the_compiler_reports(tmp_path: Path) -> None:
    compiled = runtime.compile(None, "gdn/chunk_gates", "sm_90a", tmp_path, force=True)
    assert [code_of(cubin.read_bytes()).registers for cubin in tmp_path.glob("*.cubin")] == [compiled[0].registers]


def test_opcodes_keep_their_modifiers() -> None:
    assert [opcode(line) for line in ("@!UP0 BRA .L0;", "  EXIT;", "IMAD.WIDE R2, R3, R4, R5;")] == [
        "@BRA",
        "EXIT",
        "IMAD.WIDE",
    ]


def test_the_table_counts_every_outcome_of_a_kernel() -> None:
    pair = Pair("gdn/prefill", None, None)
    outcomes = ["identical", "identical", "same opcodes", "missing before", "missing after", "failed"]
    judged = [(pair, Verdict(outcome)) for outcome in outcomes] + [
        (pair, Verdict("changed", 10, 12)),
        (pair, Verdict("changed", 5, 4)),
    ]
    assert table(judged).splitlines()[1].split() == ["gdn/prefill", "2", "1", "2", "1", "1", "1", "15", "->", "16"]


def test_a_tree_against_changed_headers(tmp_path: Path) -> None:
    """The whole command, on two kernels of one configuration: one is identical, the other has another body."""
    shutil.copytree(ROOT / "include", tmp_path / "include")
    header = tmp_path / "include/gdn_cuda/kernels/gdn/chunk_gates.cuh"
    text = header.read_text()
    opening = text.index("{", text.index("__global__"))
    header.write_text(f"{text[: opening + 1]}\n    if (threadIdx.x == 77) __trap();\n{text[opening + 1 :]}")
    options = ["--kernels", "gdn/chunk_gates", "--kernels", "scan/simplified_step", "--jobs", "1"]
    command = [sys.executable, str(ROOT / "benchmarks/compare_sass.py"), str(ROOT), str(tmp_path), *options]
    done = subprocess.run(command, capture_output=True, text=True)
    rows = {row.split()[0]: row.split()[1:4] for row in done.stdout.splitlines()[-3:]}
    assert rows["gdn/chunk_gates"] == ["0", "0", "1"] and rows["scan/simplified_step"] == ["1", "0", "0"], done
    assert done.returncode == 1 and "BPT.TRAP" in done.stdout
