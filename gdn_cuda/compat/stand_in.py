"""Puts our functions where transformers 5 looks up those of another package."""

from __future__ import annotations

import contextlib
import importlib
import logging
import sys
from collections.abc import Mapping
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from ..hosts.replaced import Replaced
from ..hosts.verified import Host

logger = logging.getLogger("gdn_cuda")


class StandIn:
    """Replaces the functions of a package that transformers looks up by ours, `functions`. `looked_up`: for each name that
    transformers looks up, the suffix of its own functions that call it. `host` has the verified parameters of an installed
    package."""

    def __init__(self, host: Host, looked_up: Mapping[str, str], functions: Mapping[str, Any]):
        self.host, self.package, self.looked_up, self.functions = host, host.module, looked_up, functions
        self.replaced = Replaced()

    def install(self) -> contextlib.AbstractContextManager[Any]:
        """Replaces them until `uninstall`, or to the end of a `with`. A second call changes nothing. Raises Refused, with
        nothing replaced, if the functions of an installed package have other parameters."""
        if not self.replaced:
            # Undone in reverse: transformers looks up again once all else is undone.
            self.replaced.change(lambda: None, lambda: self._look_up_again(uninstall=True))
            package = self._imported()
            for name in self.looked_up:
                self.replaced.put(package, name, self.functions[name])
            self._look_up_again()
        undo = contextlib.ExitStack()
        undo.callback(self.uninstall)
        return undo

    def uninstall(self) -> None:
        self.replaced.undo()

    def _imported(self) -> ModuleType:
        try:
            package = importlib.import_module(self.package)
        except Exception:  # not installed, or built for another torch
            package = ModuleType(self.package, f"Stands in for {self.package}: gdn_cuda.compat.{self.package}.install")
            package.__spec__ = ModuleSpec(self.package, loader=None)
            self.replaced.change(lambda: sys.modules.update({self.package: package}), lambda: _remove(package))
        else:
            self.host.require_imported()
        return package

    def _look_up_again(self, uninstall: bool = False) -> None:
        """transformers looks functions up once, by a decorator in the modules of its models."""
        kernels = sys.modules.get("transformers.integrations.hub_kernels")
        for name, module in list(sys.modules.items()):
            if kernels is None or not (name.startswith("transformers.models.") and ".modeling_" in name):
                continue
            for attribute, function in list(vars(module).items()):
                for looked_up, end in self.looked_up.items():
                    if attribute.endswith(end) and getattr(function, "__module__", None) == name:
                        if hasattr(function, "__wrapped__"):
                            decorate = kernels.use_kernel_func_from_hub_with_fallback(looked_up, self.package)
                            setattr(module, attribute, decorate(function.__wrapped__))
                        elif uninstall:
                            logger.warning(
                                "uninstall: %s.%s stays as it is: it was imported with the package kernels", name, attribute
                            )
                        else:
                            expected = "expected a call before its import where the package kernels is installed, got one after"
                            raise RuntimeError(f"install: {name}: {expected}")


def _remove(package: ModuleType) -> None:
    if sys.modules.get(package.__name__) is package:
        del sys.modules[package.__name__]
