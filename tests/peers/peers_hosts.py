"""Makes stand-ins for modules of a library that are not in the pack."""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import Any


def module(name: str, **attributes: Any) -> ModuleType:
    """A module of this name with these attributes. Packages above it are the pack's, if it has them."""
    made = sys.modules.setdefault(name, ModuleType(name))
    made.__path__ = []
    vars(made).update(attributes)
    parent = name.rpartition(".")[0]
    if parent:
        try:
            importlib.import_module(parent)
        except ModuleNotFoundError as error:
            if error.name is None or not f"{parent}.".startswith(f"{error.name}."):
                raise
            module(parent)
        setattr(sys.modules[parent], name.rpartition(".")[2], made)
    return made


class _Anything:
    """A base, an annotation or a decorator's argument; nothing is done with it."""

    def __class_getitem__(cls, item: Any) -> Any:
        return cls


def names_alone(name: str, **attributes: Any) -> ModuleType:
    """A module of which others import names that no test needs: every name but these attributes is a class."""

    def name_of(attribute: str) -> Any:
        if attribute.startswith("__"):
            raise AttributeError(attribute)
        return type(attribute, (_Anything,), {})

    return module(name, __getattr__=name_of, **attributes)


def function(name: str, parameters: str, body: Any) -> Any:
    """`body` with these parameters."""
    names: dict[str, Any] = {"body": body}
    exec(f"def {name}({parameters}):\n    return body()", names)
    return names[name]


def yes(*args: Any, **kwargs: Any) -> bool:
    return True


def no(*args: Any, **kwargs: Any) -> bool:
    return False
