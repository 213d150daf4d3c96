"""Which operators write large tensors in a part of a test."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class Computed(TorchDispatchMode):
    """Records the operators called under it that write `elements` elements or more, and are no views; not what they call."""

    def __init__(self, elements: int = 0) -> None:
        super().__init__()
        self.elements = elements
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        results = func(*args, **(kwargs or {}))
        written = max((x.numel() for x in tree_leaves(results) if isinstance(x, Tensor)), default=0)
        if not func.is_view and written >= self.elements:
            self.names.append(func.overloadpacket.__name__)
        return results
