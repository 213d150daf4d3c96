"""The functions and modules of gdn_cuda under the names of other libraries: only the import changes."""

import typing as _typing

from ..submodules import on_access as _on_access

INSTALLS = {"causal_conv1d": "install", "mamba_ssm": "install", "vortex": "patch"}  # what replaces functions of a library

if _typing.TYPE_CHECKING:
    from . import attention_gym, causal_conv1d, fla, hotdog, lrnnx, mamba_ssm, recurrent_gemma, s4, vortex  # noqa: F401
else:
    __getattr__, __dir__ = _on_access(__name__)
