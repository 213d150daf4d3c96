"""Two copies of the package in one process: one installed, another loaded from a kernel repository under a name of its own.

torch registers the operators once per process. So the second copy becomes an alias of the first: all of its submodules are
those of the first copy.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

_REGISTERED_BY = "_gdn_cuda_package"  # an attribute of torch.ops.gdn_cuda: the name of the first copy


class _SubmodulesOfTheFirst(MetaPathFinder, Loader):
    def __init__(self, second: str, first: str):
        self.second, self.first = second, first

    def counterpart(self, name: str) -> str:
        return self.first + name.removeprefix(self.second)

    def find_spec(self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        if not fullname.startswith(f"{self.second}."):
            return None
        if importlib.util.find_spec(self.counterpart(fullname)) is None:  # and no other finder may look into our own folder
            raise ModuleNotFoundError(f"No module named {fullname!r}", name=fullname)
        return ModuleSpec(fullname, self)

    def exec_module(self, module: ModuleType) -> None:
        """The import returns what is in sys.modules afterwards."""
        sys.modules[module.__name__] = importlib.import_module(self.counterpart(module.__name__))


def registered(operators: Any, name: str) -> None:
    """Says that the package `name` registered the operators; `operators` is torch.ops.gdn_cuda."""
    setattr(operators, _REGISTERED_BY, name)


def is_second(operators: Any, name: str) -> bool:
    """Whether another copy than the package `name` registered the operators. If so, the submodules of `name` are that copy's
    from now on; a copy of another version raises ImportError."""
    first: ModuleType | None = sys.modules.get(getattr(operators, _REGISTERED_BY, name))
    second = sys.modules[name]
    if first is None or first is second:
        return False
    if first.__version__ != second.__version__:
        raise ImportError(
            f"gdn_cuda: {_folder(second)}: expected version {first.__version__}, as {_folder(first)} was imported before and a "
            f"process can register the operators only once, got {second.__version__}"
        )
    finder = _SubmodulesOfTheFirst(name, first.__name__)
    sys.meta_path.insert(0, finder)
    for module in [module for module in sys.modules if module.startswith(f"{name}.")]:
        sys.modules[module] = importlib.import_module(finder.counterpart(module))
    return True


def require_unregistered(operators: Any, library: Path) -> None:
    """Raises ImportError if another file than `library` registered the operators: torch would replace some and keep others."""
    if not hasattr(operators, "fused_decode"):
        return
    import ctypes  # not by the module: Python 3.12's refuses subinterpreters

    try:
        ctypes.CDLL(str(library), os.RTLD_NOW | os.RTLD_NOLOAD)  # a handle only if this file is loaded
    except OSError as error:
        raise ImportError(
            f"gdn_cuda: {library}: expected a process that has not its operators yet, got one in which another libgdn_cuda.so "
            "registered them"
        ) from error


def _folder(package: ModuleType) -> Path:
    return Path(str(package.__file__)).parent
