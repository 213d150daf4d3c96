"""Makes other libraries run their Gated Delta Net layers, short convolutions, gated norms and scans on gdn_cuda: transformers,
FLA, vLLM, SGLang, and FlashInfer's names. docs/integrations.md has what is covered.

    from gdn_cuda.integrations import transformers
    transformers.install()      # and transformers.uninstall()

Each module has `available() -> (bool, reason)`, `install()`, `uninstall()` and VERSIONS, what was verified of the host: another
version, or a function whose parameters are others, is `Refused` with the difference, and the host's own kernels stay. A call
that gdn_cuda cannot take runs the host's kernel; `calls()` counts both. Importing these modules changes nothing.
"""

from .counted import calls, reset_calls
from .verified import Refused

NAMES = ("transformers", "fla", "vllm", "sglang", "flashinfer")
__all__ = ["NAMES", "Refused", "calls", "reset_calls"]
