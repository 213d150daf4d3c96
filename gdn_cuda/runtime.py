"""Loads the compiled library and connects it to Python; ahead-of-time compilation and warm-up."""

from __future__ import annotations

import contextlib
import functools
import importlib
import importlib.machinery
import importlib.util
import logging
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import copies, paths
from .names import unknown
from .paths import PACKAGE

if TYPE_CHECKING:
    import torch

    from . import _C

DEFAULT_ARCH = "sm_90a"  # the tensor-core kernels are written for it

package = sys.modules[__package__]  # has another name if it was loaded from a kernel repository
logger = logging.getLogger("gdn_cuda")


def load_library() -> None:
    """Registers the operators with torch and connects the core to Python. Called once, by the package's import."""
    if _in_subinterpreter():
        raise ImportError(
            "gdn_cuda: expected Python's main interpreter, got a subinterpreter; import it there, or in a process"
        )
    try:
        import torch
    except ImportError as error:
        raise ImportError("gdn_cuda needs torch >= 2.10: pip install torch") from error
    if copies.is_second(torch.ops.gdn_cuda, __package__):
        return
    _refuse_second_import()
    library = library_path()
    if library is None:
        hidden = _hidden_install()
        raise ImportError(
            f"gdn_cuda: the compiled library is not built: no {PACKAGE / 'lib' / 'libgdn_cuda.so'}. "
            + (
                f"This is the source tree, which hides {hidden}: start Python in another folder, or use the command gdn-cuda."
                if hidden
                else "In a source checkout run ./develop.sh; otherwise pip install gdn_cuda for this Python."
            )
        )
    if importlib.util.find_spec(f"{__package__}._C") is None:
        made_for = ", ".join(sorted(path.name.split(".")[1] for path in PACKAGE.glob("_C.*.so"))) or "none"
        raise ImportError(
            f"gdn_cuda: {PACKAGE} was built for another Python: "
            f"expected a _C for {sys.implementation.cache_tag}, got {made_for}. "
            f"In a source checkout run PYTHON={sys.executable} ./develop.sh; otherwise pip install gdn_cuda for this Python."
        )
    copies.require_unregistered(torch.ops.gdn_cuda, library)
    import ctypes  # not by the module: Python 3.12's refuses subinterpreters

    try:
        ctypes.CDLL(str(library))  # torch.ops.load_library would resolve links, and lose the files beside the library
        torch.ops.loaded_libraries.add(str(library))
        from . import _C

        copies.registered(torch.ops.gdn_cuda, __package__)
    except (OSError, ImportError) as error:
        raise ImportError(
            f"gdn_cuda: {library} does not load under torch {torch.__version__} (needed: torch >= 2.10): {error}. "
            "In a source checkout run ./develop.sh to rebuild it."
        ) from error
    _C.set_path_hook(paths.find_paths, paths.search_inputs)
    _C.set_log_sink(log)


def _in_subinterpreter() -> bool:
    for name in ("_interpreters", "_xxsubinterpreters"):  # Python 3.13 and newer; before
        with contextlib.suppress(ImportError):
            interpreters: Any = importlib.import_module(name)
            return interpreters.get_current() != interpreters.get_main()
    return False


def _refuse_second_import() -> None:
    """torch keeps operators until the process ends, and refuses to register them again."""
    import torch

    if f"{__package__}.operators.registration" not in sys.modules and hasattr(torch.ops.gdn_cuda, "without_gradient"):
        first = [path for path in torch.ops.loaded_libraries if Path(path).name == "libgdn_cuda.so"]
        raise ImportError(
            f"gdn_cuda: expected to be imported once in a process, got a second import: torch has its operators already, from "
            f"{first[0] if first else 'elsewhere'}. Leave its modules in sys.modules, or import it in a process of its own."
        )


def _hidden_install() -> Path | None:
    """Another gdn_cuda that this Python would import if it had been started in another folder."""
    elsewhere = [folder for folder in sys.path if isinstance(folder, str) and Path(folder).resolve() != PACKAGE.parent]
    spec = importlib.machinery.PathFinder.find_spec("gdn_cuda", elsewhere)
    return Path(spec.origin).parent if spec is not None and spec.origin is not None else None


def library_path() -> Path | None:
    """libgdn_cuda.so in lib/ beside _C: in this folder, or where an editable install put the compiled files."""
    folders = [PACKAGE]
    extension = importlib.util.find_spec(f"{__package__}._C")
    if extension is not None and extension.origin is not None:
        folders.insert(0, Path(extension.origin).parent)
    return next((path for folder in folders if (path := folder / "lib" / "libgdn_cuda.so").is_file()), None)


# ---- Messages


def log(level: int, text: str) -> None:
    _follow_log_level()
    logger.log(level, "%s", text)


@functools.cache
def _follow_log_level() -> None:
    """Shows messages from GDN_LOG_LEVEL on, even if the program has not set up logging."""
    if "GDN_LOG_LEVEL" not in os.environ:
        return
    from . import _C

    try:
        logger.setLevel(_C.env()["log_level"])
    except RuntimeError:  # a malformed variable; calls that need it raise
        return
    if not logger.hasHandlers():
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("%(name)s: %(levelname)s: %(message)s"))
        logger.addHandler(handler)


def init(library_root: str | os.PathLike[str] | None = None, cuda_home: str | os.PathLike[str] | None = None) -> None:
    """Sets where the kernel headers (`library_root`) and the CUDA toolkit (`cuda_home`) are; None: search for them.

    Optional. A repeated call with the same paths does nothing. Raises RuntimeError for a folder that lacks the expected
    files, and for other paths once kernels are loaded.

    Parameters:
        library_root: the folder that holds gdn_cuda/kernels, or include/gdn_cuda/kernels
        cuda_home: the folder of a CUDA toolkit
    """
    from . import _C

    _C.init(os.fspath(library_root) if library_root else "", os.fspath(cuda_home) if cuda_home else "")


# ---- Choosing configurations of the registry


def configuration_fields(configuration: str) -> dict[str, int | bool | str]:
    """ "{.head_k = 128, .state = DType::f32}" as {"head_k": 128, "state": "f32"}."""
    fields: dict[str, int | bool | str] = {}
    for name, text in re.findall(r"\.(\w+)\s*=\s*([^,{}]+)", configuration):
        value = text.strip()
        if value in ("true", "false"):
            fields[name] = value == "true"
        elif re.fullmatch(r"-?\d+", value):
            fields[name] = int(value)
        else:
            fields[name] = value.rpartition("::")[2]
    return fields


@dataclass(frozen=True)
class Choice:
    """One registered configuration."""

    kernel: str  # "gdn/recurrent"
    configuration: str
    min_capability: int
    max_capability: int | None

    def runs_on(self, capability: int) -> bool:
        return self.min_capability <= capability and (self.max_capability is None or capability <= self.max_capability)


def architectures(min_capability: int, max_capability: int | None) -> str:
    """The architectures of a kernel in words: "sm_80 and newer"."""
    from . import _C

    if max_capability is None:
        return f"sm_{min_capability} and newer"
    newest = _C.arch_of(max_capability)
    return newest if max_capability == min_capability else f"sm_{min_capability} to {newest}"


def select(family: str | None = None, kernel: str | None = None, **fields: Any) -> list[Choice]:
    """Registered configurations of a family and kernel whose fields have these values; one value, or several to choose from.

    Values: numbers, booleans, enumerators by name ("f32") or torch dtypes. An unknown name raises, listing the known.
    """
    from . import _C

    registered = _C.kernels()
    _require("family", family, sorted({entry["family"] for entry in registered}))
    entries = [entry for entry in registered if family in (None, entry["family"])]
    if kernel not in {entry["name"] for entry in entries}:
        _require("kernel", kernel, [f"{entry['family']}/{entry['name']}" for entry in entries])
    entries = [entry for entry in entries if kernel in (None, entry["name"], f"{entry['family']}/{entry['name']}")]

    known: dict[str, set[Any]] = {}
    choices = []
    for entry in entries:
        for listed in entry["configurations"]:
            values = configuration_fields(listed["configuration"])
            for name, value in values.items():
                known.setdefault(name, set()).add(value)
            if all(name in values and values[name] in _wanted(value) for name, value in fields.items()):
                choices.append(
                    Choice(
                        f"{entry['family']}/{entry['name']}",
                        listed["configuration"],
                        entry["min_capability"],
                        entry["max_capability"],
                    )
                )
    for name in fields:
        _require("field", name, sorted(known))
    if not choices and fields:
        have = "; ".join(f"{name}: {', '.join(sorted(map(str, known[name])))}" for name in fields)
        asked = ", ".join(f"{name}={value}" for name, value in fields.items())
        raise ValueError(f"no registered configuration has {asked}. Values that exist: {have}")
    return choices


def _require(what: str, name: str | None, known: list[str]) -> None:
    if name is not None and name not in known:
        raise ValueError(f"{what}: {unknown(name, known)}")


def _wanted(value: Any) -> set[Any]:
    from .operators.tunable import TORCH_DTYPES

    names = {dtype: name for name, dtype in TORCH_DTYPES.items()}
    values = value if isinstance(value, (list, tuple, set, frozenset)) else [value]
    return {names.get(item, item) for item in values}


# ---- Compiling ahead of use


@dataclass(frozen=True)
class CompileResult:
    """The result for one configuration. Registers and bytes are None when nothing was compiled."""

    kernel: str
    configuration: str
    arch: str
    origin: str = ""  # "compiled", "disk", "prebuilt" or "memory"
    seconds: float = 0.0
    registers: int | None = None
    shared_bytes: int | None = None
    spill_bytes: int | None = None
    stack_bytes: int | None = None  # per thread, spills included; a local array outside registers is no spill
    is_serialized: bool | None = None  # whether ptxas waits after every product of Hopper's tensor cores
    error: str | None = None


class CompileError(RuntimeError):
    """At least one configuration did not compile; `results` has the results of all."""

    def __init__(self, results: list[CompileResult]):
        failed = [result for result in results if result.error]
        lines = [f"{len(failed)} of {len(results)} configurations failed"]
        lines += [f"{result.kernel} {result.configuration} for {result.arch}: {result.error}" for result in failed]
        super().__init__("\n".join(lines))
        self.results = results


Progress = Callable[[int, int, CompileResult], None]


def compile(
    family: str | None = None,
    kernel: str | None = None,
    arch: str | Iterable[str] | None = None,
    out: str | os.PathLike[str] | None = None,
    jobs: int | None = None,
    progress: Progress | None = None,
    force: bool = False,
    **fields: Any,
) -> list[CompileResult]:
    """Compiles registered configurations ahead of use; needs no GPU.

    Raises CompileError, after all were tried, if one failed, and ValueError, before any is compiled, for an architecture that
    none of the selected kernels supports.

    Parameters:
        family, kernel: which kernels, such as "gdn" and "chunk_cumsum", or "gdn/chunk_cumsum" alone; None: all
        arch: one or several, such as "sm_90a"; None: that of this machine's GPU, or sm_90a without one
        out: a folder for the results, which can then be used as GDN_JIT_PREBUILT_DIR; None: the disk cache
        jobs: how many are compiled at the same time; None: as many as there are CPUs
        progress: called with (done, total, result) after each
        force: whether what is compiled already is compiled again
        fields: values that the configurations must have, such as head_k=128

    Example:
        >>> results = gdn_cuda.compile("gdn", "chunk_cumsum", arch="sm_90a")
        >>> [(result.kernel, result.error) for result in results]
        [('gdn/chunk_cumsum', None), ('gdn/chunk_cumsum', None)]
    """
    if jobs is not None and jobs < 1:
        raise ValueError(f"compile: jobs: expected None or a positive number, got {jobs}")
    arches = [default_arch()] if arch is None else [arch] if isinstance(arch, str) else list(dict.fromkeys(arch))
    if out is not None and not os.fspath(out):
        raise ValueError("compile: out: expected None or a folder, got an empty name")
    work = _work(select(family, kernel, **fields), arches)
    results = []
    for result in _compile_all(work, os.fspath(out) if out else "", jobs or os.cpu_count() or 1, force):
        results.append(result)
        if progress:
            progress(len(results), len(work), result)
    if any(result.error for result in results):
        raise CompileError(results)
    return results


def _work(choices: list[Choice], arches: list[str]) -> list[tuple[Choice, str]]:
    from . import _C

    if not arches:
        raise ValueError("compile: arch: expected at least one, got none")
    work = []
    for arch in arches:
        capability = capability_of(arch)
        if arch != _C.arch_of(capability):
            devices = f"devices of capability {capability // 10}.{capability % 10}"
            raise ValueError(f"compile: arch: expected {_C.arch_of(capability)}, which is what {devices} load, got {arch}")
        # NVRTC is opened for an unusual architecture alone: where every kernel is prebuilt, it may be missing.
        if capability not in {device["capability"] for device in _C.typical_devices()}:
            compiled_for = _C.capabilities()
            if compiled_for and capability not in compiled_for:
                known = ", ".join(_C.arch_of(each) for each in compiled_for)
                raise ValueError(f"compile: arch: expected one that the installed NVRTC compiles for ({known}), got {arch}")
        suited = [(choice, arch) for choice in choices if choice.runs_on(capability)]
        if not suited:
            made_for = sorted({architectures(choice.min_capability, choice.max_capability) for choice in choices})
            raise ValueError(f"compile: arch: expected what the chosen kernels are for ({' or '.join(made_for)}), got {arch}")
        work += suited
    return work


def _compile_all(work: list[tuple[Choice, str]], out: str, jobs: int, force: bool) -> Iterator[CompileResult]:
    from concurrent.futures import ThreadPoolExecutor, as_completed  # threads: the core releases the GIL while it compiles

    from . import _C

    cancellation = _C.Cancellation()
    with ThreadPoolExecutor(max_workers=jobs) as pool:
        pending = [pool.submit(_compile_one, choice, arch, out, force, cancellation) for choice, arch in work]
        try:
            for future in as_completed(pending):
                yield future.result()
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            cancellation.cancel()  # signals reach the main thread only; the pool's threads would go on compiling
            raise


def _compile_one(choice: Choice, arch: str, out: str, force: bool, cancellation: _C.Cancellation) -> CompileResult:
    from . import _C

    try:
        done = _C.compile(choice.kernel, choice.configuration, arch, out, force, cancellation)
    except RuntimeError as error:
        return CompileResult(choice.kernel, choice.configuration, arch, error=str(error))
    return CompileResult(
        choice.kernel,
        choice.configuration,
        arch,
        done["origin"],
        done["seconds"],
        done["registers"],
        done["shared_bytes"],
        done["spill_bytes"],
        done["stack_bytes"],
        done["is_serialized"],
    )


def capability_of(arch: str) -> int:
    """90 for "sm_90a"."""
    match = re.fullmatch(r"sm_(\d{2,3})[af]?", arch)
    if match is None:
        raise ValueError(f"compile: arch: expected a form like sm_90a, got {arch}")
    return int(match[1])


def default_arch() -> str:
    from . import _C

    devices = _C.driver()["devices"]
    return devices[0]["arch"] if devices else DEFAULT_ARCH


def warmup(
    family: str | None = None,
    kernel: str | None = None,
    device: int | str | torch.device | None = None,
    **fields: Any,
) -> list[CompileResult]:
    """Compiles what is missing and loads every matching configuration into this process, so that no later call has to.

    For servers, before CUDA-graph capture: a kernel that is not loaded is an error under capture.

    Parameters:
        family, kernel, fields: as in `gdn_cuda.compile`
        device: None: the current one

    Example:
        >>> if torch.cuda.is_available():
        ...     results = gdn_cuda.warmup("layers", "gating")
    """
    from . import _C

    driver = _C.driver()
    if not driver["devices"]:
        raise RuntimeError(f"warmup: expected a CUDA device, got none ({driver['why_not'] or 'the driver lists no device'})")
    ordinal = _ordinal(device)
    if not 0 <= ordinal < len(driver["devices"]):
        raise ValueError(f"warmup: device: expected 0 to {len(driver['devices']) - 1}, got {ordinal}")
    traits = driver["devices"][ordinal]
    results = compile(family, kernel, traits["arch"], **fields)
    for choice in select(family, kernel, **fields):
        if choice.runs_on(traits["capability"]):
            _C.load(choice.kernel, choice.configuration, ordinal)
    return results


def no_compile() -> contextlib.AbstractContextManager[None]:
    """A context in which this process compiles nothing: a kernel that would have to be compiled is a RuntimeError naming it.

    For servers: after `warmup`, a request must not wait for a compiler. It holds in every thread, whichever entered it, and
    for `compile` and `warmup` too; contexts nest, and the last one that is left ends it. Kernels that are loaded run, at no
    cost, and kernels that GDN_JIT_PREBUILT_DIR or the cache hold are loaded. A compile that has begun goes on; a thread that
    waits for one loads its result. A child that is forked inside the context stays in it until it leaves it. Enter it
    around a function that torch.compile compiles, not in it; torch's own compiles are not affected.

    Example:
        >>> rates, x = torch.zeros(4), torch.zeros(1, 8, 4)
        >>> with gdn_cuda.no_compile():
        ...     gates = gdn_cuda.fused_gdn_gating(rates, rates, x, x)
    """
    from . import _C

    return _C.NoCompile()


def _ordinal(device: int | str | torch.device | None) -> int:
    import torch

    if device is None:
        return torch.cuda.current_device()
    if isinstance(device, int):
        return device
    resolved = torch.device(device)
    if resolved.type != "cuda":
        raise ValueError(f"warmup: device: expected a CUDA device, got {resolved}")
    return torch.cuda.current_device() if resolved.index is None else resolved.index
