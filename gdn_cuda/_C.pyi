"""Runtime controls of gdn_cuda (csrc/python_api.cpp)."""

from collections.abc import Callable
from typing import TypedDict

class Variable(TypedDict):
    name: str
    default: str
    meaning: str

class Env(TypedDict):
    cache_dir: str
    cache_max_bytes: int
    prebuilt_dir: str
    disable: bool
    use_nvcc: bool
    nvcc: str
    dump: bool
    lineinfo: bool
    print: bool
    log_level: int
    cuda_home: str
    cutlass_include: str
    cccl_include: str
    tuned: bool
    nvtx: bool
    settings: dict[str, int]  # of owners above csrc/jit: by variable

class Finding(TypedDict):
    what: str
    found: str | None
    tried: list[str]
    fix: str
    required: bool

class Toolchain(TypedDict):
    findings: list[Finding]
    nvrtc_identity: str | None
    nvcc_identity: str | None
    include_dirs: list[str]
    library_digest: str

class PrebuiltFolder(TypedDict):
    path: str
    refusal: str  # empty: it is read

class DeviceTraits(TypedDict):
    ordinal: int
    name: str
    arch: str
    capability: int
    multiprocessors: int
    l2_bytes: int
    shared_bytes_per_block: int

class ExplainedStep(TypedDict):
    kernel: str  # "" for a remark
    configuration: str
    reason: str
    grid: tuple[int, int, int]
    threads: int
    shared_bytes: int  # dynamic
    cluster: int

class Driver(TypedDict):
    available: bool
    why_not: str
    version: int
    devices: list[DeviceTraits]

class Configuration(TypedDict):
    configuration: str
    code: str  # what is compiled
    threads: int
    shared_bytes: int

class Kernel(TypedDict):
    family: str
    name: str
    summary: str
    min_capability: int
    max_capability: int | None  # of a kernel made of one architecture's own instructions
    uses_cutlass: bool  # compiles with the headers of CUTLASS and libcu++
    configurations: list[Configuration]

class Compiled(TypedDict):
    origin: str
    seconds: float
    registers: int | None
    shared_bytes: int | None
    spill_bytes: int | None
    stack_bytes: int | None
    is_serialized: bool | None
    code_key: str
    full_key: str | None

class LoadEvent(TypedDict):
    kernel: str
    configuration: str
    arch: str
    origin: str
    seconds: float

class CacheEntry(TypedDict):
    file: str
    bytes: int
    age_seconds: float
    problem: str

class TunedEntry(TypedDict):
    kernel: str
    problem: str
    choice: str
    us: float
    heuristic: str
    heuristic_us: float
    device: str
    multiprocessors: int
    version: str

class TunedFile(TypedDict):
    file: str
    problem: str  # why there is no entry
    entry: TunedEntry | None

class TunedList(TypedDict):
    folder: str
    versions: dict[str, str]  # kernel -> what of its winners decides now
    files: list[TunedFile]

class TunedStored(TypedDict):
    file: str
    why_not: str

class NoCompile:
    def __enter__(self) -> None: ...
    def __exit__(self, *error: object) -> None: ...

class Cancellation:
    def cancel(self) -> None: ...

def set_path_hook(hook: Callable[[], dict[str, str]], inputs: Callable[[], tuple[str, list[str]]] | None = None) -> None: ...
def set_log_sink(sink: Callable[[int, str], None] | None) -> None: ...
def init(library_root: str | bytes, cuda_home: str | bytes) -> None: ...
def variables() -> list[Variable]: ...
def env() -> Env: ...
def requested_integrations() -> list[str]: ...
def toolchain() -> Toolchain: ...
def driver() -> Driver: ...
def device_traits_for_arch(arch: str) -> DeviceTraits: ...
def typical_devices() -> list[DeviceTraits]: ...
def arch_of(capability: int) -> str: ...
def capabilities() -> list[int]: ...
def kernels() -> list[Kernel]: ...
def compile(
    kernel_id: str,
    configuration: str,
    arch: str,
    out_dir: str = "",
    force: bool = False,
    cancellation: Cancellation | None = None,
) -> Compiled: ...
def compile_text(family: str, name: str, code: str, arch: str, uses_cutlass: bool = False, force: bool = False) -> Compiled: ...
def load(kernel_id: str, configuration: str, device: int) -> None: ...
def load_events() -> list[LoadEvent]: ...

GDN_CHUNK: int  # tokens
TOEPLITZ_LONGEST_GENERAL: int  # rows that every GPU with clusters solves without torch's LU
TOEPLITZ_LONGEST_POSITIVE: int  # rows with assume_positive

def most_result_bytes(on_gpu: bool) -> int: ...
def most_l2_window_bytes(device: int) -> int: ...

class Explaining:
    def __init__(self, device: DeviceTraits) -> None: ...
    def __enter__(self) -> Explaining: ...
    def __exit__(self, *error: object) -> None: ...
    def steps(self) -> list[ExplainedStep]: ...

class L2Window:
    def __init__(self, device: int, stream: int, base: int, bytes: int) -> None: ...
    def release(self) -> None: ...

def cache_directory() -> str: ...
def cache_refusals() -> list[str]: ...
def cache_list(verify: bool = False) -> list[CacheEntry]: ...
def cache_clear() -> int: ...
def prebuilt_folders() -> list[PrebuiltFolder]: ...
def tuned_candidates(kernel: str, problem: str, device: DeviceTraits) -> list[str]: ...
def tuned_explain(kernel: str, problem: str, device: DeviceTraits) -> str: ...
def tuned_attempt(kernel: str, problem: str, choice: str, device: DeviceTraits) -> None: ...
def tuned_attempted(kernel: str, device: int) -> bool: ...
def tuned_forget() -> None: ...
def tuned_store(
    kernel: str, problem: str, device: DeviceTraits, choice: str, us: float, heuristic: str, heuristic_us: float
) -> TunedStored: ...
def tuned_list() -> TunedList: ...
def tuned_remove(file: str) -> bool: ...
