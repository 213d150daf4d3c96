"""A pytest plugin that runs other libraries' tests on gdn_cuda: `tests/gpu_session.sh OUT peers` unpacks the pack of pack.py,
and loads this plugin. The tests' text is unchanged. A module beside this one has, for each library,

    prepare()         makes the library's modules that the tests import, and installs our integration; before tests are imported
    adapt(module)     makes names of an imported test module call the integration
    EXCLUDED          tests that do not test gdn_cuda, by name, name[case] or Class.name, with the reason why they are skipped
    ONE_OF            for a large test, n: one of n cases is run
    is_repeat(item)   whether a case makes the same calls as another one; it is left out
    importing()       a context in which test modules are imported
    running(item)     a context in which a test runs
    COUNTED_AS        the integration that counts its calls, where that is not named as the module

A call that gdn_cuda declines runs the library's own kernel if the pack has it (FLA, vLLM, SGLang), and otherwise skips the
test. The summary has, for each library, how many tests passed, failed and were skipped, why, and which calls ran where.

PEERS_ALL=1 runs the cases that ONE_OF leaves out. PEERS_DEVICE=cpu tries the plugin without a GPU.
"""

from __future__ import annotations

import importlib
import os
import zlib
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from types import ModuleType
from typing import Any

import peers_cpu
import pytest
import torch

from gdn_cuda import integrations
from gdn_cuda.integrations import counted

SUITES = (
    *("fla", "fla_cp", "fla_kda", "flashqla", "flashkda", "flashinfer", "flashinfer_kda", "flashinfer_mamba"),
    *("vllm", "vllm_kda", "sglang", "sglang_kda", "sglang_mamba", "causal_conv1d", "mamba_ssm"),
)
_suites: dict[str, ModuleType] = {}
_adapted: set[ModuleType] = set()
_left_out: Counter[str] = Counter()
notes: Counter[str] = Counter()  # other counts of a suite, "suite: …"
_reports: dict[str, list[Any]] = defaultdict(list)
_workers: list[dict[str, Any]] = []


def pytest_configure(config: pytest.Config) -> None:
    root = Path(config.rootpath)
    for name in SUITES:
        if (root / f"peer_{name}").is_dir():
            _suites[name] = importlib.import_module(f"peers_{name}")
    for marker in ("gpu: FlashQLA's", "slow: FlashQLA's", "long_running: FlashInfer's"):
        config.addinivalue_line("markers", marker)
    if hasattr(config, "workerinput") or not config.getoption("numprocesses", None):
        for suite in _suites.values():
            suite.prepare()
        integrations.reset_calls()


def _suite_of(path: str | Path) -> str:
    return next(part.removeprefix("peer_") for part in Path(path).parts if part.startswith("peer_"))


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector: pytest.Collector) -> Iterator[None]:
    if not isinstance(collector, pytest.Module):
        return (yield)
    suite = _suites[_suite_of(collector.path)]
    with getattr(suite, "importing", nullcontext)(), peers_cpu.importing():
        return (yield)


@pytest.hookimpl(tryfirst=True)
def pytest_pycollect_makeitem(collector: pytest.Collector) -> None:
    """Adapts a module after its import and before its tests are made, which copy the module's marks."""
    if isinstance(collector, pytest.Module) and collector.obj not in _adapted:
        _adapted.add(collector.obj)
        _suites[_suite_of(collector.path)].adapt(collector.obj)
        peers_cpu.adapt(collector.obj)


def _is_sampled(item: pytest.Function, of: int) -> bool:
    return os.environ.get("PEERS_ALL") == "1" or zlib.crc32(item.name.encode()) % of == 0


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Function]) -> None:
    kept, dropped = [], []
    for item in items:
        name = _suite_of(item.path)
        suite, test = _suites[name], item.originalname or item.name
        name_in_class = f"{item.cls.__name__}.{test}" if item.cls else test
        for excluded in {test, name_in_class, item.name} & set(suite.EXCLUDED):
            item.add_marker(pytest.mark.skip(reason=suite.EXCLUDED[excluded]))
        if hasattr(item, "callspec") and getattr(suite, "is_repeat", lambda item: False)(item):
            _left_out[f"{name}: cases that differ from others only in what has no meaning here"] += 1
            dropped.append(item)
        elif test in suite.ONE_OF and not _is_sampled(item, suite.ONE_OF[test]):
            _left_out[f"{name}: cases of {test}: one of {suite.ONE_OF[test]} was drawn, by its name's checksum"] += 1
            dropped.append(item)
        else:
            kept.append(item)
    items[:] = kept
    config.hook.pytest_deselected(items=dropped)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Function) -> Iterator[None]:
    suite = _suites[_suite_of(item.path)]
    with getattr(suite, "running", lambda item: nullcontext())(item), peers_cpu.running():
        try:
            return (yield)
        finally:
            torch.set_default_device(None)  # vLLM's tests set it
            if torch.cuda.is_available() and torch.cuda.memory_reserved() > 2**31:
                torch.cuda.empty_cache()  # the other workers use the same GPU


def note_comparison(suite: str, of_gradients: bool) -> None:
    notes[f"{suite}: comparisons of {'gradients' if of_gradients else 'outputs and states'}"] += 1


_count = counted.count
_last_reason: dict[str, str] = {}


def _remembered(name: str, reason: str = counted._OURS) -> None:
    _last_reason[name] = reason
    _count(name, reason)


counted.count = _remembered


def declined(name: str) -> Any:
    """A stand-in for a kernel that is not in the pack: it skips the test. Its calls are counted under `name`."""

    def skip(*args: Any, **kwargs: Any) -> None:
        pytest.skip(f"gdn_cuda leaves the call to the library, whose kernel is not here: {_last_reason[name]}")

    return skip


# ---- The summary


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    part_of_a_test = hasattr(report, "context")  # unittest's subTest; the test has a report besides
    if (report.when == "call" or not report.passed) and not part_of_a_test:
        _reports[_suite_of(report.nodeid.split("::")[0])].append(report)


def _outcome() -> dict[str, Any]:
    return {"calls": integrations.calls(), "left_out": dict(_left_out), "notes": dict(notes)}


def pytest_sessionfinish(session: pytest.Session) -> None:
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["peers"] = _outcome()
    elif not session.config.getoption("numprocesses", None):
        _workers.append(_outcome())


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any, error: Any) -> None:
    if "peers" in getattr(node, "workeroutput", {}):
        _workers.append(node.workeroutput["peers"])


def _reason(report: pytest.TestReport) -> str:
    if hasattr(report, "wasxfail"):
        return f"xfail: {report.wasxfail}"
    return str(report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr).removeprefix("Skipped: ")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    line = terminalreporter.write_line
    calls: dict[str, Counter[str]] = defaultdict(Counter)
    noted: Counter[str] = Counter()
    for worker in _workers:
        noted.update(worker["notes"])
        for name, count in worker["calls"].items():
            calls[name].update(count)
    left_out = _workers[0]["left_out"] if _workers else {}
    terminalreporter.section("peers")
    for suite in sorted(_reports):
        reports = _reports[suite]
        outcomes = Counter(report.outcome for report in reports)
        line(f"{suite}: {outcomes['passed']} passed, {outcomes['failed']} failed, {outcomes['skipped']} skipped")
        for reason, count in Counter(_reason(report) for report in reports if report.skipped).most_common():
            line(f"    {count} skipped: {reason}")
        for text, count in sorted({**left_out, **noted}.items()):
            if text.startswith(f"{suite}: "):
                line(f"    {count} {text.partition(': ')[2]}" + (" (not run)" if text in left_out else ""))
        counted_as = getattr(_suites[suite], "COUNTED_AS", suite)
        if counted_as != suite and counted_as in _reports:
            counted_as = suite  # the other suite's lines have the calls of both
        for name in sorted(calls):
            if name.startswith(f"{counted_as}."):
                here = calls[name].pop(counted._OURS, 0)
                line(f"    {name.partition('.')[2]}: {here} calls on gdn_cuda, {calls[name].total()} declined")
                for reason, count in calls[name].items():
                    line(f"        {count}: {reason}")
