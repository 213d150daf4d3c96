"""Makes other libraries run their layers of Gated Delta Net and of Kimi Delta Attention, short convolutions, gated norms and
scans on gdn_cuda: transformers, FLA, vLLM, SGLang, and FlashInfer's names. docs/integrations.md has what is covered.

    from gdn_cuda.integrations import transformers
    transformers.install()      # and transformers.uninstall()

Each module has `available() -> (bool, reason)`, `install()`, `uninstall()`, VERSIONS, the versions of the host that were run or
compared, and HOST, the functions that are replaced with their parameters. A host with other parameters is `Refused` with the
difference, and keeps its own kernels. A call that gdn_cuda cannot take runs the host's kernel; `calls()` counts both.
Importing these modules changes nothing.
"""

import typing as _typing

from ..hosts.verified import Refused
from ..submodules import on_access as _on_access
from .counted import calls, reset_calls

if _typing.TYPE_CHECKING:
    from . import fla, flashinfer, sglang, transformers, vllm  # noqa: F401
else:
    __getattr__, __dir__ = _on_access(__name__)

NAMES = ("transformers", "fla", "vllm", "sglang", "flashinfer")
__all__ = ["NAMES", "Refused", "calls", "reset_calls"]
