"""Gated Delta Net, scans, convolutions, structured matrices, and the layers of these, for PyTorch: kernels compiled at first
use on NVIDIA GPUs, and the same calls on CPU tensors.

Importing the package touches neither CUDA nor a compiler. `python -m gdn_cuda doctor` says what a machine has and lacks.
"""

__version__ = "0.1.0"

import typing as _typing

from . import runtime as _runtime

_runtime.load_library()

from . import conv, gdn, layers, nn, ops, reference, scan, ssd, structured  # noqa: E402, F401  (operators exist once the library is loaded)
from .conv import *  # noqa: E402, F403
from .gdn import *  # noqa: E402, F403
from .layers import *  # noqa: E402, F403
from .operators.explain import explain  # noqa: E402
from .runtime import compile, init, no_compile, warmup  # noqa: E402
from .scan import *  # noqa: E402, F403
from .ssd import *  # noqa: E402, F403
from .structured import *  # noqa: E402, F403
from .submodules import on_access as _on_access  # noqa: E402

if _typing.TYPE_CHECKING:
    from . import compat, integrations, parallel  # noqa: F401
else:
    __getattr__, __dir__ = _on_access(__name__)

__all__ = ["init", "compile", "warmup", "no_compile", "explain", "__version__"]
__all__ += conv.__all__
__all__ += gdn.__all__
__all__ += layers.__all__
__all__ += scan.__all__
__all__ += ssd.__all__
__all__ += structured.__all__
