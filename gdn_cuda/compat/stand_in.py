"""Puts functions of ours where transformers 5 looks up another package's."""

from __future__ import annotations

import contextlib
import importlib
import sys
from collections.abc import Mapping
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any


class StandIn:
    """`functions` of ours for `looked_up` of a package: by the name that transformers looks up, how its own functions that call
    it end."""

    def __init__(self, package: str, looked_up: Mapping[str, str], functions: Mapping[str, Any]):
        self.package, self.looked_up, self.functions = package, looked_up, functions
        self._spec = ModuleSpec(package, loader=None)
        self._replaced: dict[str, Any] | None = None  # by name; None where uninstalled

    def install(self) -> contextlib.AbstractContextManager[Any]:
        """Until `uninstall`, or to the end of a `with`. Twice is once."""
        if self._replaced is None:
            package = self._imported()
            self._replaced = {name: vars(package).get(name) for name in self.looked_up}
            for name in self.looked_up:
                setattr(package, name, self.functions[name])
            self._look_up_again()
        undo = contextlib.ExitStack()
        undo.callback(self.uninstall)
        return undo

    def uninstall(self) -> None:
        if self._replaced is None:
            return
        package = sys.modules[self.package]
        for name, before in self._replaced.items():
            delattr(package, name) if before is None else setattr(package, name, before)
        if package.__spec__ is self._spec:
            del sys.modules[self.package]
        self._replaced = None
        self._look_up_again()

    def _imported(self) -> ModuleType:
        try:
            return importlib.import_module(self.package)
        except Exception:  # not installed, or built for another torch
            package = ModuleType(self.package, f"Stands in for {self.package}: gdn_cuda.compat.{self.package}.install")
            package.__spec__ = self._spec
            sys.modules[self.package] = package
            return package

    def _look_up_again(self) -> None:
        """transformers looks functions up once, by a decorator in the modules of its models."""
        kernels = sys.modules.get("transformers.integrations.hub_kernels")
        for name, module in list(sys.modules.items()):
            if kernels is None or not (name.startswith("transformers.models.") and ".modeling_" in name):
                continue
            for attribute, function in list(vars(module).items()):
                for looked_up, end in self.looked_up.items():
                    if attribute.endswith(end) and getattr(function, "__module__", None) == name:
                        if not hasattr(function, "__wrapped__"):
                            expected = "expected a call before its import where the package kernels is installed, got one after"
                            raise RuntimeError(f"install: {name}: {expected}")
                        decorate = kernels.use_kernel_func_from_hub_with_fallback(looked_up, self.package)
                        setattr(module, attribute, decorate(function.__wrapped__))
