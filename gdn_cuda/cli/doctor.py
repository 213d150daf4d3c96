"""doctor: what gdn_cuda needs, found or missing, with a fix for each problem."""

from __future__ import annotations

import argparse
import os
import platform
import re
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .cache import memory_only
from .output import console, human_bytes, print_json, show, table

if TYPE_CHECKING:
    from .._C import Finding
    from ..hosts.verified import Host


@dataclass
class Check:
    """`ok`: found. `note`: missing or unusual, but not needed here. `problem`: calls on this machine will fail."""

    what: str
    status: str
    found: str
    fix: str = ""


def add_parser(commands: Any) -> None:
    parser = commands.add_parser("doctor", help="what is found and what is missing, with the fix for each problem")
    parser.add_argument("--json", action="store_true")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    checks = examine()
    problems = [check for check in checks if check.status == "problem"]
    if arguments.json:
        print_json({"ok": not problems, "checks": [asdict(check) for check in checks]})
        return 1 if problems else 0
    from rich.text import Text

    styles = {"ok": "green", "note": "yellow", "problem": "bold red"}
    listing = table("", "what", "found")
    for check in checks:
        listing.add_row(Text(check.status, style=styles[check.status]), check.what, check.found)
    terminal = console()
    show(terminal, listing)
    for check in checks:
        if check.fix and check.status != "ok":
            terminal.print(f"{check.what}: {check.fix}", soft_wrap=True)
    terminal.print(f"{len(problems)} problem{'' if len(problems) == 1 else 's'}", style="bold red" if problems else "green")
    return 1 if problems else 0


def examine() -> list[Check]:
    checks: list[Check] = []
    sections: tuple[Callable[[], Iterator[Check]], ...]
    sections = (_torch, _library, _variables, _driver, _toolchain, _cache, _prebuilt, _integrations)
    for section in sections:
        try:
            checks.extend(section())
        except RuntimeError as error:  # a malformed variable makes every call of the core fail; it is reported once
            if not any(check.status == "problem" and check.found == str(error) for check in checks):
                checks.append(Check(section.__name__.lstrip("_"), "problem", str(error)))
    return checks


def _torch() -> Iterator[Check]:
    import torch

    new_enough = tuple(int(part) for part in re.findall(r"\d+", torch.__version__)[:2]) >= (2, 10)
    build = f"CUDA {torch.version.cuda}" if torch.version.cuda else "a build without CUDA"
    yield Check("Python", "ok", platform.python_version())
    yield Check(
        "torch",
        "ok" if new_enough else "problem",
        f"{torch.__version__}, {build}",
        "" if new_enough else "pip install 'torch>=2.10'",
    )


def _library() -> Iterator[Check]:
    from .. import __version__
    from ..runtime import library_path

    yield Check("gdn_cuda", "ok", f"{__version__}, {library_path()}")


def _variables() -> Iterator[Check]:
    from .. import _C

    known = {variable["name"] for variable in _C.variables()}
    for name in sorted(os.environ):
        if name in known:
            yield Check("variable", "ok", f"{name}={os.environ[name]}")
        elif name.startswith("GDN_") and not name.startswith("GDN_TEST_") and name != "GDN_SANITIZE":  # as the library warns
            yield Check("variable", "note", f"{name} is not read by gdn_cuda", f"known variables: {', '.join(sorted(known))}")
    try:
        _C.env()
    except RuntimeError as error:
        yield Check("variables", "problem", str(error), "correct or unset it")


def _driver() -> Iterator[Check]:
    import torch

    from .. import _C

    driver = _C.driver()
    if not driver["available"]:
        has_gpu = Path("/proc/driver/nvidia/version").exists()
        status = "problem" if has_gpu else "note"
        fix = "make libcuda.so.1 reachable (in a container: the NVIDIA container toolkit)" if has_gpu else ""
        yield Check("driver", status, driver["why_not"], fix or "compiling, and running on CPU tensors, needs none")
        return
    yield Check("driver", "ok", f"for CUDA {driver['version'] // 1000}.{driver['version'] % 1000 // 10}")
    if not driver["devices"]:
        yield Check("device", "note", "the driver lists no device", "CUDA_VISIBLE_DEVICES may hide them")
    for traits in driver["devices"]:
        supported = traits["capability"] >= 80
        found = f"{traits['ordinal']}: {traits['name']}, {traits['arch']}, {traits['multiprocessors']} multiprocessors"
        yield Check("device", "ok" if supported else "problem", found, "" if supported else "gdn_cuda needs sm_80 or newer")
    if driver["devices"] and not torch.version.cuda:
        yield Check("torch and device", "problem", "this torch cannot use the GPU", "install a CUDA build of torch")
    compiler = _nvrtc_major()
    if driver["devices"] and compiler and compiler > driver["version"] // 1000:
        yield Check(
            "driver and NVRTC",
            "problem",
            f"the driver is for CUDA {driver['version'] // 1000}, NVRTC of CUDA {compiler}: its code will not load",
            f"update the driver, or install the wheels of CUDA {driver['version'] // 1000}",
        )


def _nvrtc_major() -> int | None:
    from .. import _C

    found = " ".join(finding["found"] or "" for finding in _C.toolchain()["findings"])
    match = re.search(r"libnvrtc\.so\.(\d+)", found)
    return int(match[1]) if match else None


def _toolchain() -> Iterator[Check]:
    from .. import _C

    tools = _C.toolchain()
    compiles_here = not _C.env()["disable"]
    for finding in tools["findings"]:
        if finding["found"]:
            yield Check(finding["what"], "ok", finding["found"])
            continue
        needed = finding["required"] and compiles_here
        tried = "; ".join(finding["tried"]) or "nothing"
        optional = "" if finding["required"] else " (optional)"
        yield Check(finding["what"], "problem" if needed else "note", f"missing{optional}. Tried: {tried}", finding["fix"])
    yield _cutlass_users([finding for finding in tools["findings"] if not finding["found"]], compiles_here)
    if tools["nvrtc_identity"]:
        yield Check("NVRTC build", "ok", tools["nvrtc_identity"])
    if tools["nvcc_identity"]:
        release = re.search(r"release [\d.]+, V[\d.]+", tools["nvcc_identity"])
        yield Check("nvcc build", "ok", release[0] if release else tools["nvcc_identity"])
    if tools["library_digest"]:
        yield Check("kernel headers' digest", "ok", tools["library_digest"][:16])


def _cutlass_users(missing: list[Finding], compiles_here: bool) -> Check:
    from .. import _C

    kernels = {f"{kernel['family']}/{kernel['name']}": kernel["uses_cutlass"] for kernel in _C.kernels()}
    users = [name for name, uses_cutlass in kernels.items() if uses_cutlass]
    lacking = [finding["what"] for finding in missing if finding["what"].startswith(("CUTLASS", "libcu++"))]
    found = f"{', '.join(users) or 'none'}; the other {len(kernels) - len(users)} kernels compile without"
    if not (lacking and users):
        return Check("need CUTLASS and libcu++", "ok", found)
    return Check("need CUTLASS and libcu++", "problem" if compiles_here else "note", f"{found}; missing: {', '.join(lacking)}")


def _cache() -> Iterator[Check]:
    from .. import _C

    directory, refusals = _C.cache_directory(), _C.cache_refusals()
    for refusal in refusals:
        yield Check("cache", "note", f"passed over {refusal}", "make it yours with mode 0700, or set GDN_JIT_CACHE_DIR")
    if not directory:
        yield Check("cache", "note", memory_only(refusals), "every process compiles again; set GDN_JIT_CACHE_DIR")
        return
    entries = _C.cache_list(True)
    broken = [entry["file"] for entry in entries if entry["problem"]]
    size = human_bytes(sum(entry["bytes"] for entry in entries))
    limit = human_bytes(_C.env()["cache_max_bytes"])
    yield Check("cache", "ok", f"{directory}: {len(entries)} entries, {size} of {limit}")
    if broken:
        yield Check("cache", "note", f"broken: {', '.join(broken)}", "gdn_cuda replaces its own when needed; remove the others")


def _prebuilt() -> Iterator[Check]:
    from .. import _C

    folders = _C.prebuilt_folders()
    if not folders and _C.env()["disable"]:
        yield Check("prebuilt", "note", "GDN_JIT_DISABLE=1 and no GDN_JIT_PREBUILT_DIR: only cached kernels will run")
    for folder in folders:
        path, refusal = folder["path"], folder["refusal"]
        if refusal:
            fix = "only you and root may be able to change it"
            yield Check("prebuilt", "problem", f"{path} is passed over: {refusal}", fix)
            continue
        count = sum(1 for _ in Path(path).glob("*.cubin"))
        fix = "" if count else "fill it with `compile --out`"
        yield Check("prebuilt", "ok" if count else "note", f"{path}: {count} entries", fix)


def _integrations() -> Iterator[Check]:
    """For each library whose functions gdn_cuda replaces: whether they have the verified parameters, and what switches the
    replacement on."""
    from .. import compat, integrations
    from ..integrations.requested import PLUGINS, requested

    try:
        asked = [name for name in PLUGINS if requested(name)]
    except RuntimeError:  # a malformed variable, reported on its own line
        asked = []
    for name in integrations.NAMES:
        switch = f"on: gdn_cuda.integrations.{name}.install()"
        if name in PLUGINS:
            switch = "on by GDN_INTEGRATIONS" if name in asked else f"off; GDN_INTEGRATIONS={name} switches it on"
        yield _host(f"integration {name}", getattr(integrations, name).HOST, switch, name in asked)
    for name, call in compat.INSTALLS.items():
        yield _host(f"compat {name}", getattr(compat, name).HOST, f"on: gdn_cuda.compat.{name}.{call}()")


def _host(what: str, host: Host, switch: str, is_requested: bool = False) -> Check:
    finding = host.examine()
    if finding.status == "absent":
        return Check(what, "note", f"{finding.text}; {switch}" if is_requested else finding.text)
    if finding.status == "refused":
        fix = f"pip install '{host.package}=={host.newest}'; with this version {host.module} runs its own kernels"
        return Check(what, "problem", finding.text, fix)
    return Check(what, "ok" if finding.status == "verified" else "note", f"{finding.text}; {switch}")
