"""Reports of benchmarks as files, tables and plots; all times are made up."""

from __future__ import annotations

import importlib.util
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any
from xml.etree import ElementTree

import pytest

from gdn_cuda.cli import bench, bench_columns, bench_markdown, bench_plot, bench_report

ROOT = Path(__file__).resolve().parents[1]


def invented_row(shape: str, time_us: float, **others: Any) -> dict[str, Any]:
    return {
        "shape": shape,
        "row": shape,
        "kind": "",
        "curve": None,
        "timed": "replay",
        "time_us": time_us,
        "call_us": None,
        "host_us": 8.0,
        "bytes": 43_000_000,
        "flops": 0,
        "roof_us": 10.0,
        "reach_us": None,
        "in_place_us": 12.5,
        "published_us": {},
        "peers_us": {},
        "peers_call_us": {},
        "peers_errors": {},
        "peers_disagree": [],
    } | others


def invented_report(*rows: dict[str, Any], **others: Any) -> dict[str, Any]:
    speeds = {"copy_bytes_per_s": 4.3e12, "bf16_flop_per_s": 7.9e14}
    return {
        "operator": "fused_gdn_gating",
        "device": "a GPU",
        "driver": "1",
        "torch": "2",
        "cuda": "13",
        "gdn_cuda": "0",
        "commit": "0123456789",
        "date": "2026-11-26",
        "command": "python -m gdn_cuda bench fused_gdn_gating",
        "repeats": 20,
        "ceilings": speeds | {"floor_us": 4.0},
        "roof": speeds,
        "rows": list(rows),
        "peer_versions": {},
        "peers_absent": [],
        "peers_disagree": False,
    } | others


def by_gates(row: str, times: dict[str, float], **others: Any) -> list[dict[str, Any]]:
    return [invented_row(f"{row} {kind}", time, row=row, kind=kind, **others) for kind, time in times.items()]


def curve_report() -> dict[str, Any]:
    rows = [
        row
        | {"peers_us": {"another": 3.0 * row["time_us"]}, "call_us": 2.0 * row["time_us"], "peers_call_us": {"another": 90.0}}
        for length in (1024, 2048)
        for row in by_gates(
            f"1×{length}", {"fast gates": length / 50, "mixed gates": length / 20}, curve=["tokens", length], flops=10**9
        )
    ]
    return invented_report(*rows)


# ---- Files


def test_a_report_is_written_with_a_line_for_each_row(tmp_path: Path) -> None:
    report = invented_report(invented_row("1×1", 5.123456789), invented_row("2×2", 6.0))
    bench_report.write([report], str(tmp_path / "one.json"))
    lines = (tmp_path / "one.json").read_text().splitlines()
    assert sum('"shape"' in line for line in lines) == 2
    (read,) = bench_report.read([str(tmp_path / "one.json")])
    assert read == report | {"rows": [report["rows"][0] | {"time_us": 5.1235}, report["rows"][1]]}


def test_a_folder_gets_a_file_for_each_operator(tmp_path: Path) -> None:
    reports = [invented_report(invented_row("1×1", 5.0), operator=operator) for operator in ("a", "b")]
    bench_report.write(reports, str(tmp_path))
    assert [json.loads((tmp_path / f"{each['operator']}.json").read_text()) for each in reports] == reports
    bench_report.write(reports, str(tmp_path / "both.json"))
    assert bench_report.read([str(tmp_path / "both.json")]) == reports


def test_parts_of_a_report_are_joined(tmp_path: Path) -> None:
    parts = [[invented_row("1×1", 5.0), invented_row("2×2", 6.0)], [invented_row("2×2", 7.0), invented_row("3×3", 8.0)]]
    files = [str(tmp_path / f"{number}.json") for number in range(2)]
    for number, (file, rows) in enumerate(zip(files, parts, strict=True)):
        bench_report.write([invented_report(*rows, command=f"part {number}")], file)
    (joined,) = bench_report.read(files)
    assert [(row["shape"], row["time_us"]) for row in joined["rows"]] == [("1×1", 5.0), ("2×2", 7.0), ("3×3", 8.0)]
    assert joined["command"] == "part 0\npart 1"
    bench_report.write([invented_report(invented_row("1×1", 5.0), device="another GPU")], files[1])
    with pytest.raises(ValueError, match="fused_gdn_gating: expected parts of one device, got a GPU and another GPU"):
        bench_report.read(files)


@pytest.mark.parametrize("text", ["", "[1]", "{}", '{"rows": []}'])
def test_other_files_are_refused(text: str, tmp_path: Path) -> None:
    (tmp_path / "no.json").write_text(text)
    with pytest.raises(ValueError, match=r"no\.json: expected a report that --json wrote"):
        bench_report.read([str(tmp_path / "no.json")])


def run_bench(*arguments: object) -> int:
    from gdn_cuda.cli import parse

    chosen = parse(["bench", *map(str, arguments)])
    return int(chosen.run(chosen))


def test_bench_prints_selects_draws_and_joins_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib")
    bench_report.write([curve_report()], str(tmp_path / "a.json"))
    (tmp_path / "out").mkdir()
    plot = tmp_path / "picture.svg"
    assert run_bench(tmp_path / "a.json", "--only", "1x1024", "--plot", plot, "--json", tmp_path / "out") == 0
    assert "1×1024 fast gates" in (printed := capsys.readouterr().out) and "1×2048" not in printed
    assert plot.stat().st_size > 1000 and (tmp_path / "picture_lengths.svg").stat().st_size > 1000
    assert len(json.loads((tmp_path / "out/fused_gdn_gating.json").read_text())["rows"]) == 2
    assert run_bench(tmp_path / "a.json", "--markdown") == 0
    assert "| 1×1024 | **" in capsys.readouterr().out
    for wrong in (("fused_decode", tmp_path / "a.json"), ("fused_decode", "--cpu", "--peers", "nobody")):
        with pytest.raises(
            ValueError, match=r"OP: expected operators or files, got both|--peers: expected some of .*got nobody"
        ):
            run_bench(*wrong)


def test_what_is_measured_is_written_row_by_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> Any:
        yield {"rows": [invented_row("1×1", 5.0)]}
        raise KeyboardInterrupt

    monkeypatch.setattr(bench, "_has_gpu", lambda: True)
    monkeypatch.setattr("gdn_cuda.cli.bench_measure.measure_gpu", interrupted)
    monkeypatch.setattr("gdn_cuda.cli.bench_environment.environment", lambda operator, cpu: {"operator": operator})
    with pytest.raises(KeyboardInterrupt):
        run_bench("fused_gdn_gating", "--json", tmp_path / "half.json")
    assert [row["shape"] for row in json.loads((tmp_path / "half.json").read_text())["rows"]] == ["1×1"]


# ---- Tables


def cells_of(table: str) -> dict[str, dict[str, str]]:
    """The cells of the first table of a page, by row and column."""
    lines = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines() if line.startswith("|")]
    return {line[0]: dict(zip(lines[0][1:], line[1:], strict=True)) for line in lines[2:]}


def test_a_table_compares_with_peers_roof_and_reach() -> None:
    peers = {"peers_us": {"a": 40.0, "b": None}, "published_us": {"b": 30.0}, "reach_us": 16.0}
    found = cells_of(bench_markdown.page(invented_report(invented_row("1×1", 20.0, **peers), invented_row("2×2", 25.0))))
    assert found["1×1"] == {
        "µs": "**20.0**",
        "a": "40.0",
        "b": "30.0 †",
        "best peer ÷ ours": "1.50",
        "in-place add": "12.5",
        "÷ add": "1.60",
        "roof": "10.0",
        "share": "50 %",
        "reach": "16.0",
        "÷ reach": "1.25",
    }
    assert found["2×2"]["a"] == found["2×2"]["reach"] == found["2×2"]["best peer ÷ ours"] == ""


def test_kinds_are_side_by_side() -> None:
    rows = [*by_gates("1×1", {"fast": 20.0, "mixed": 40.0}, reach_us=16.0), *by_gates("2×2", {"mixed": 1500.0})]
    found = cells_of(bench_markdown.page(invented_report(*rows, invented_row("3×3", 5.0))))
    assert [row["ms, fast / mixed"] for row in found.values()] == ["**0.020 / 0.040**", "**1.500**", "**0.0050**"]
    assert found["1×1"]["reach"] == "0.016" and found["1×1"]["÷ reach"] == "1.25 / 2.50"


def test_direct_calls_have_a_table_of_their_own() -> None:
    page = bench_markdown.page(curve_report())
    first, second = page.split("Calls as they come:")
    assert cells_of(second)["1×1024"]["best peer ÷ ours"] == "2.20 / 0.88"
    assert "Replays of a CUDA graph of one call" in first and "commit 0123456" in first


def test_a_page_says_what_was_not_measured() -> None:
    gap = {"peer": "a", "reason": "it is shy", "shapes": ["1×1", "2×2"]}
    rows = [invented_row(shape, 5.0, published_us={"b": 6.0}) for shape in ("1×1", "2×2", "3×3")]
    page = bench_markdown.page(invented_report(*rows, peers_absent=[gap], peer_versions={"a": "1.2"}))
    assert "- a was not measured at 1×1 and 1 more: it is shy" in page
    assert "- † measured on another day" in page and "CUDA 13, a 1.2, 2026-11-26" in page


def test_a_column_without_figures_is_left_out() -> None:
    (columns,) = bench_columns.tables(invented_report(invented_row("1×1", 5.0))).values()
    assert [column.name for column in columns if not column.detail] == ["µs", "in-place add", "÷ add", "roof", "share"]


# ---- Plots


@pytest.mark.parametrize(
    "report",
    [
        curve_report(),
        invented_report(
            invented_row("1×1", 5.0, published_us={"another": 9.0}), *by_gates("2×2", {"fast": 6.0, "mixed": 7.0}, reach_us=3.0)
        ),
        {"operator": "a", "device": "CPU", "torch": "2", "cuda": None, "rows": [{"shape": "1×1", "time_us": 5.0}]},
        {"device": "two", "rows": [{"operator": "a", "shape": "1×1", "before": {"time_us": 5.0}, "after": {"time_us": 6.0}}]},
    ],
    ids=["curve", "rows", "CPU", "two trees"],
)
def test_a_plot_is_the_same_bytes_again(report: dict[str, Any], tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    drawn = [bench_plot.draw(report, str(tmp_path / f"{number}.svg")) for number in range(2)]
    curve = any(row.get("curve") for row in report["rows"])
    assert [Path(file).name for file in drawn[0]] == ["0.svg", "0_lengths.svg"][: 1 + curve]
    for first, second in zip(*drawn, strict=True):
        assert Path(first).read_bytes() == Path(second).read_bytes()


# ---- Pages


def script(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, ROOT / f"benchmarks/{name}.py")
    assert spec and spec.loader
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def filler() -> ModuleType:
    """The module fill_pages, with `plots`, which it imports."""
    return script("fill_pages")


def test_pages_have_the_tables_of_their_reports() -> None:
    fill_pages = filler()
    for path in fill_pages.pages(ROOT):
        text = path.read_text()
        assert text == fill_pages.filled(path, ROOT), f"{path}: run benchmarks/fill_pages.py"
        assert text.count("<!-- bench: ") == text.count("<!-- end -->") == len(fill_pages.BLOCK.findall(text)), path


def test_blocks_of_a_page_are_filled_where_there_are_reports(tmp_path: Path) -> None:
    fill_pages = filler()
    data, page = tmp_path / fill_pages.DATA, tmp_path / "docs/benchmarks/page.md"
    data.mkdir(parents=True)
    bench_report.write([curve_report()], str(data))
    blocks = {name: f"<!-- {name} -->\nby hand\n<!-- end -->\n" for name in ("bench: fused_gdn_gating", "bench: absent")}
    page.write_text(f"# A page\n{blocks['bench: fused_gdn_gating']}words\n{blocks['bench: absent']}")
    text = fill_pages.filled(page, tmp_path)
    page.write_text(text)
    assert text == fill_pages.filled(page, tmp_path), "filled again, it stays"
    assert text.startswith("# A page\n<!-- bench: fused_gdn_gating -->\n") and text.endswith(
        f"words\n{blocks['bench: absent']}"
    )
    assert text.count("by hand") == 1 and "| 1×1024 | **" in text
    assert "<!-- plot: fused_gdn_gating -->" in text and "<!-- plot: fused_gdn_gating_lengths -->" in text


def test_operators_of_the_pages_are_measured() -> None:
    fill_pages = filler()
    named = {
        name
        for path in fill_pages.pages(ROOT)
        for _, names, _ in fill_pages.BLOCK.findall(path.read_text())
        for name in names.split()
    }
    scripts = {"host_times", "kda_peers", "million_tokens", "prefill_mma"}
    assert named - scripts == set(bench.benches())


def test_benchmark_pages_begin_with_a_sentence_and_a_plot() -> None:
    for path in sorted((ROOT / "docs/benchmarks").glob("*.md")):
        _, sentence, after, *_ = path.read_text().split("\n\n")
        assert re.fullmatch(r"[A-Z](?:[^.]|\.(?=\w))*\.", sentence), path
        assert after.startswith(("<!-- plot: ", "![")) or path.stem in {"host", "soak", "state_formats"}, path


def test_a_column_of_a_pages_tables_is_drawn(tmp_path: Path) -> None:
    filler()
    plots = sys.modules["plots"]
    page = tmp_path / "conv.md"
    page.write_text(
        "## `one`\n\n| | µs | share |\n|---|---|---|\n| B=1 | **3** | 50 % / 25 % |\n| B=1 backward | **3** | 20 % |\n\n"
        "## Others\n\n| | µs |\n|---|---|\n| `two` | **3** |\n\n"
        "| | share |\n|---|---|\n| `three()` | 7 % |\n| B=2 |  |\n| B=3 | 8.5 % |\n"
    )
    expected = {"one": [50, 25], "one, backward": [20], "three": [7, 8.5]}
    assert plots.points(page.read_text(), "share") == expected
    pytest.importorskip("matplotlib")
    plots.draw_column(page, tmp_path / "conv.svg")
    assert "three" in (tmp_path / "conv.svg").read_text()


def test_pages_whose_reports_are_not_kept_have_the_column_of_their_plot() -> None:
    filler()
    plots = sys.modules["plots"]
    for name, column in plots.COLUMNS.items():
        assert plots.points((ROOT / plots.PAGES / f"{name}.md").read_text(), column), name


def test_every_plot_of_the_pages_is_drawn(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    fill_pages = filler()
    plots = sys.modules["plots"]
    drawn = {path.stem for path in plots.draw_all(tmp_path) if path.stat().st_size > 1000}
    shown = {
        name for path in fill_pages.pages(ROOT) for pair in fill_pages.SHOWN.findall(path.read_text()) for name in pair if name
    }
    assert drawn == shown, "a plot that no page shows, or a page that shows a plot of nothing"


def test_the_committed_plot_is_of_its_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    filler()
    plots = sys.modules["plots"]
    committed = (ROOT / plots.README_PLOT).read_text()
    assert plots.digest(plots.readme_report()) in committed, "run benchmarks/fill_pages.py"
    pytest.importorskip("matplotlib")
    data = tmp_path / plots.readme_report().relative_to(ROOT)
    data.parent.mkdir(parents=True)
    shutil.copyfile(plots.readme_report(), data)
    monkeypatch.setattr(plots, "ROOT", tmp_path)
    plots.draw_readme_plot()
    svg = (tmp_path / plots.README_PLOT).read_text()
    assert [path.name for path in (tmp_path / plots.README_PLOT).parent.iterdir()] == [plots.README_PLOT.name]
    elements = [element.tag.rpartition("}")[2] for element in ElementTree.fromstring(svg).iter()]
    assert svg.count("\n") < 400 and elements.count("text") > 40 and elements.count("use") > 100


def test_an_svg_keeps_its_elements_when_groups_are_removed() -> None:
    filler()
    svg = (
        '<?xml version="1.0"?>\n<svg>\n <metadata>\n  <a/>\n </metadata>\n <g id="b.c">\n  <path d="M 0 1 \nL 2 3 \n"/>\n'
        '  <g clip-path="url(#p)">\n   <g>\n    <use x="1"/>\n   </g>\n  </g>\n </g>\n</svg>\n'
    )
    assert sys.modules["plots"].compact(svg, "said") == (
        '<?xml version="1.0"?>\n<!-- said -->\n<svg>\n'
        '<path d="M 0 1 L 2 3 "/>\n<g clip-path="url(#p)">\n<use x="1"/>\n</g>\n</svg>\n'
    )


def test_plots_and_long_reports_are_not_committed() -> None:
    """Plots are built with the website, and a report has one line per row; a longer file is generated."""
    if not (ROOT / ".git").exists():
        pytest.skip("not a checkout")
    listed = subprocess.run(
        ["git", "-C", str(ROOT), "ls-files"], capture_output=True, text=True, check=True
    ).stdout.splitlines()
    data = [ROOT / name for name in listed if name.endswith((".svg", ".json")) and (ROOT / name).exists()]
    assert [path.name for path in data if path.suffix == ".svg"] == ["chunked_forward_lengths.svg"]
    long = {path.name: lines for path in data if (lines := path.read_bytes().count(b"\n")) > 400}
    assert data and not long, "write a row a line: python -m gdn_cuda bench FILE.json --json FILE.json"


@pytest.mark.parametrize("indent", [None, 1])
def test_a_report_is_read_in_either_form(indent: int | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Reports of today, and of releases that indented every value, are printed and written with one line per row."""
    report = json.loads(bench_report.dumps(curve_report()))
    (tmp_path / "old.json").write_text(json.dumps(report, indent=indent) if indent else bench_report.dumps(report))
    assert bench_report.read([str(tmp_path / "old.json")]) == [report]
    assert run_bench(tmp_path / "old.json", "--json") == 0
    printed = capsys.readouterr().out
    assert run_bench(tmp_path / "old.json", "--json", tmp_path / "new.json") == 0
    assert (tmp_path / "new.json").read_text() == printed
    assert [line.startswith('  {"shape"') for line in printed.splitlines()].count(True) == len(report["rows"])


def test_a_comparison_of_trees_has_one_line_per_row(tmp_path: Path) -> None:
    compare_trees = script("compare_trees")
    rows = [{"operator": "µ", "shape": f"{n}×1", "before": {"time_us": 5.0}, "after": {"time_us": 6.0}} for n in range(3)]
    compare_trees.write(tmp_path / "two.json", {"device": "a GPU", "rounds": 3}, rows)
    assert bench_report.read([str(tmp_path / "two.json")]) == [{"device": "a GPU", "rounds": 3, "rows": rows}]
    assert sum('"shape"' in line for line in (tmp_path / "two.json").read_text().splitlines()) == 3


def test_a_plot_that_is_elsewhere_is_not_beside_its_table(tmp_path: Path) -> None:
    fill_pages = filler()
    data, page = tmp_path / fill_pages.DATA, tmp_path / "docs/benchmarks/page.md"
    data.mkdir(parents=True)
    bench_report.write([curve_report()], str(data))
    for first in ("<!-- plot: fused_gdn_gating -->", "![a](plots/fused_gdn_gating.svg)"):
        page.write_text(f"{first}\n\n<!-- bench: fused_gdn_gating -->\n<!-- end -->\n")
        text = fill_pages.filled(page, tmp_path)
        assert [text.count(f"fused_gdn_gating{which}") for which in (".svg", " -->", "_lengths -->")] == [
            first.startswith("!"), 1 + (not first.startswith("!")), 1
        ]  # fmt: skip


def test_a_command_on_a_page_names_no_folder_of_a_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from gdn_cuda.cli import bench_environment

    monkeypatch.setattr("sys.argv", ["gdn_cuda", "bench", "fused_decode", "--json", str(tmp_path / "out")])
    assert bench_environment._command().endswith("bench fused_decode --json out")
    fill_pages = filler()
    for data in sorted((ROOT / fill_pages.DATA).glob("*.json")):
        fill_pages.require_no_folder_of_a_machine(data)
    bad = tmp_path / "bad.json"
    bad.write_text('{"command": "python -m gdn_cuda bench x --json /root/out/main", "shape": "1/2"}', encoding="utf-8")
    with pytest.raises(ValueError, match=r"expected no absolute path in what pages are made of, got /root/out/main"):
        fill_pages.require_no_folder_of_a_machine(bad)
