"""Points and poles that stay in L2 from one Cauchy sum to the next."""

from __future__ import annotations

from types import TracebackType

import torch
from torch import Tensor

from ..operators.schema import require_tensor


class CauchyPin:
    """Handle of `cauchy_pin_l2`: has the tensors to call with, in L2 until `release()` or the end of a `with`.

    The window ends with its handle, so keep the handle.
    """

    def __init__(self, omega: Tensor, lambd: Tensor, base: int, size: int):
        from .. import _C

        self.omega, self.lambd, self.bytes = omega, lambd, size
        stream = torch.cuda.current_stream(omega.device)
        self._window = _C.L2Window(omega.device.index, stream.cuda_stream, base, size)

    def release(self) -> None:
        """Restores the stream's previous window. The tensors stay valid. Later calls do nothing."""
        self._window.release()

    def __enter__(self) -> CauchyPin:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.release()


def cauchy_pin_l2(omega: Tensor, lambd: Tensor) -> CauchyPin:
    """Keeps points and poles in the L2 persistence window of the current stream, for calls of `cauchy_kernel` on that stream.

    Formula:
        Computes nothing: `pinned.omega` and `pinned.lambd` have the same values, for `cauchy_kernel`.

    Shapes:
        omega: (…, L); lambd: (…, N): CUDA tensors of one dtype, which is not converted

    A stream has one window, over one range of memory. If both tensors are dense and the range from the first to the last byte
    fits, `pinned.omega` and `pinned.lambd` are the tensors themselves; otherwise they are adjacent copies, with gradients.

    Edge cases:
        Raises RuntimeError if the device cannot set that much of its L2 aside, if the stream already has a window, and under
        graph capture.

    Example:
        >>> if torch.cuda.is_available():
        ...     omega, lambd = torch.randn(2, 4096, device="cuda")
        ...     with gdn_cuda.cauchy_pin_l2(omega, lambd) as pinned:
        ...         for v in torch.randn(10, 16, 4096, device="cuda"):
        ...             out = gdn_cuda.cauchy_kernel(v, pinned.omega, pinned.lambd)
    """
    from .. import _C

    for argument, x in (("omega", omega), ("lambd", lambd)):
        if not isinstance(x, Tensor):
            raise ValueError(f"cauchy_pin_l2: {argument}: expected a CUDA tensor, got {type(x).__name__}")
        require_tensor("cauchy_pin_l2", argument, x)
    for argument, x in (("omega", omega), ("lambd", lambd)):
        if x.device.type != "cuda":
            raise ValueError(f"cauchy_pin_l2: {argument}: expected a CUDA tensor, got {x.device}")
    if lambd.device != omega.device:
        raise ValueError(f"cauchy_pin_l2: lambd: expected {omega.device}, the device of omega, got {lambd.device}")
    if lambd.dtype != omega.dtype:
        raise ValueError(f"cauchy_pin_l2: lambd: expected {omega.dtype}, the dtype of omega, got {lambd.dtype}")
    most, (base, size) = _C.most_l2_window_bytes(omega.device.index), _range(omega, lambd)
    if size > most or not (omega.is_contiguous() and lambd.is_contiguous()):
        both = torch.cat([omega.reshape(-1), lambd.reshape(-1)])
        omega, lambd = both[: omega.numel()].view(omega.shape), both[omega.numel() :].view(lambd.shape)
        base, size = _range(omega, lambd)
    return CauchyPin(omega, lambd, base, size)


def _range(*tensors: Tensor) -> tuple[int, int]:
    """First byte and length of the range that dense tensors span; empty tensors are ignored."""
    ends = [(x.data_ptr(), x.data_ptr() + x.numel() * x.element_size()) for x in tensors if x.numel()]
    base = min((first for first, _ in ends), default=0)
    return base, max((last for _, last in ends), default=0) - base
