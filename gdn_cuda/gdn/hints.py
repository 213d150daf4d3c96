"""Checks of arguments that other libraries' functions need and that change nothing here, so that no operator has them."""

from __future__ import annotations

from collections.abc import Mapping
from numbers import Integral

import torch
from torch import Tensor

from ..operators.composed import check_apart
from ..operators.schema import refuse, require_tensor
from .reference import CHUNK


def check_chunk_hints(
    function: str,
    hints: Mapping[str, Tensor | None],
    cu_seqlens: Tensor | None,
    like: tuple[str, Tensor],
    written: Mapping[str, Tensor | None],
) -> None:
    """`chunk_indices`, pairs (sequence, chunk), and `cu_chunks`, the chunks before each sequence. Their values are not read.

    `like`: the name of a tensor on whose device they are, and the tensor. `written`: what the call writes. Whatever else is
    wrong with those and with cu_seqlens is for the operator to refuse.
    """
    for argument, hint in hints.items():
        if hint is None:
            continue
        require_tensor(function, argument, hint, optional=True)
        if fault := _fault(argument, hint, cu_seqlens, *like):
            refuse(function, argument, *fault)
        if not (torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active()):
            for name, x in written.items():
                if isinstance(x, Tensor):
                    check_apart(function, {name: x}, {argument: hint})


def _fault(argument: str, hint: Tensor, cu_seqlens: Tensor | None, first: str, like: Tensor) -> tuple[str, object] | None:
    """(expected, got)"""
    if cu_seqlens is None:
        return "None without cu_seqlens", "a tensor"
    if hint.dtype not in (torch.int32, torch.int64):
        return "int32 or int64", str(hint.dtype).removeprefix("torch.")
    if isinstance(like, Tensor) and hint.device != like.device:
        return f"{like.device}, the device of {first}", hint.device
    if argument == "chunk_indices":
        return ("pairs (sequence, chunk)", tuple(hint.shape)) if _holds(hint.numel() % 2 != 0) else None
    if not isinstance(cu_seqlens, Tensor) or cu_seqlens.dim() != 1:
        return None
    fits = hint.dim() == 1 and not _holds(hint.shape[0] != cu_seqlens.shape[0])
    return None if fits else (f"(sequences + 1,) = ({cu_seqlens.shape[0]},)", tuple(hint.shape))


def check_chunk_size(function: str, chunk_size: int) -> None:
    if not isinstance(chunk_size, (Integral, torch.SymInt)) or chunk_size != CHUNK:
        refuse(function, "chunk_size", CHUNK, chunk_size)


def check_compiled_dims(function: str, compiled_dims: str) -> None:
    if not isinstance(compiled_dims, str) or not set(compiled_dims) <= set("bthkvd"):
        refuse(function, "compiled_dims", "letters among b, t, h, k, v, d", repr(compiled_dims))


def check_cumsum_sizes(
    input: Tensor, batch_size: int, seq_len: int, num_heads: int, head_first: bool, cu_seqlens: Tensor | None
) -> None:
    """The sizes that `input` and `cu_seqlens` of chunk_local_cumsum_bf16 have."""
    function, sizes = "chunk_local_cumsum_bf16", {"batch_size": batch_size, "seq_len": seq_len, "num_heads": num_heads}
    for argument, size in sizes.items():
        if not isinstance(size, (Integral, torch.SymInt)):
            refuse(function, argument, "an integer", repr(size))
    require_tensor(function, "input", input)
    if cu_seqlens is None:
        names = ("batch_size", "num_heads", "seq_len") if head_first else tuple(sizes)
        expected = tuple(sizes[name] for name in names)
        if input.dim() != 3 or any(_holds(a != b) for a, b in zip(input.shape, expected, strict=True)):
            refuse(function, "input", f"({', '.join(names)}) = {expected}", tuple(input.shape))
    elif input.dim() == 2 and isinstance(cu_seqlens, Tensor) and cu_seqlens.dim() == 1:
        if _holds(input.shape[0 if head_first else 1] != num_heads):
            refuse(function, "input", f"{num_heads} heads", tuple(input.shape))
        if _holds(cu_seqlens.shape[0] != batch_size + 1):
            expected_rows = f"batch_size + 1 elements, with batch_size {batch_size}"
            refuse(function, "cu_seqlens", expected_rows, tuple(cu_seqlens.shape))


def _holds(condition: bool) -> bool:
    """Whether it holds; in a trace of sizes that depend on data, whether it holds for certain."""
    if not torch.compiler.is_compiling():
        return condition
    from torch.fx.experimental.symbolic_shapes import guard_or_false

    return bool(guard_or_false(condition))
