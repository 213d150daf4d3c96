"""torch.ops.gdn_cuda.transposed: every bit of x.mT in a new contiguous tensor, whatever strides and dtype x has."""

from __future__ import annotations

import math

import pytest
import torch
from devices import Device
from torch import Tensor

import gdn_cuda  # noqa: F401
from gdn_cuda.operators.transposed import contiguous_mT

BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
BY_KERNEL = [torch.bfloat16, torch.float16, torch.float32, torch.int32]
BY_TORCH = [torch.float64, torch.complex64, torch.int64, torch.int16, torch.uint8, torch.float8_e4m3fn]
EVERY_DTYPE = pytest.mark.parametrize("dtype", [*BY_KERNEL, *BY_TORCH], ids=str)
SIZES = [(1, 1, 1), (1, 1, 70), (1, 70, 1), (2, 64, 64), (3, 63, 65), (2, 72, 136), (70, 3, 2), (0, 3, 2), (2, 0, 5), (2, 5, 0)]
KERNEL = "common/transposed_copy"


def any_bits(dtype: torch.dtype, *shape: int, seed: int) -> Tensor:
    """Random bits, among them NaN with any payload."""
    rng = torch.Generator().manual_seed(seed)
    size = math.prod(shape) * dtype.itemsize
    return torch.randint(256, (size,), generator=rng, dtype=torch.uint8).view(dtype).reshape(shape)


def bits(x: Tensor) -> Tensor:
    return x.contiguous().view(BITS[x.element_size()])


def operator(x: Tensor) -> Tensor:
    return torch.ops.gdn_cuda.transposed.default(x)


def check(device: Device, x: Tensor, by_kernel: bool | None = None) -> None:
    """`by_kernel`: whether the kernel makes the copy, if the test knows."""
    with device.kernels() as launched:
        y = operator(x)
    B, rows, columns = x.shape
    assert y.shape == (B, columns, rows) and y.dtype == x.dtype and y.device == x.device
    assert y.stride() == torch.empty(B, columns, rows).stride() and y.storage_offset() == 0
    assert not y.numel() or y.untyped_storage().data_ptr() != x.untyped_storage().data_ptr()
    assert torch.equal(bits(y), bits(x.mT))
    if launched is not None and by_kernel is not None:
        assert any(name.startswith(KERNEL) for name in launched()) == by_kernel


@EVERY_DTYPE
@pytest.mark.parametrize("shape", SIZES)
def test_sizes(shape: tuple[int, int, int], dtype: torch.dtype, device: Device, seed: int) -> None:
    x = any_bits(dtype, *shape, seed=seed).to(device.name)
    check(device, x, dtype in BY_KERNEL and x.numel() > 0)


@EVERY_DTYPE
def test_views(dtype: torch.dtype, device: Device, seed: int) -> None:
    more = any_bits(dtype, 4, 70, 140, seed=seed).to(device.name)
    for x in (
        more[..., 5:77],
        more[1::2, 3:, 8:-4],
        more[:, ::3],
        more[:, 2:66, 64:128],
        more.transpose(0, 1),
        more[:, :1],
        more[..., 7:8],  # columns of one element, whose stride is that of a row
        more[:1, :1].expand(3, 9, 140),
        more[:1].expand(2, 70, 140),
        more.as_strided((2, 66, 72), (140, 1, 1)),  # rows that overlap
        more.as_strided((3, 5, 7), (0, 0, 1), 3),
    ):
        check(device, x, dtype in BY_KERNEL)
    for x in (
        more.mT,
        more[..., ::2],
        more.permute(2, 1, 0),
        more.permute(1, 2, 0),
        more[:, :, :1].expand(4, 70, 9),
        more[:1, :1, :1].expand(2, 3, 4),
    ):
        check(device, x, by_kernel=False)
    for x in (more[:0], more[:, 3:3], more[..., 9:9], more[:0].mT, more[..., ::2][:, :0]):
        check(device, x, by_kernel=False)


def test_marked_views(device: Device, seed: int) -> None:
    """torch marks conjugates and negatives without changing memory."""
    x = torch.randn(2, 5, 7, dtype=torch.complex64, generator=torch.Generator().manual_seed(seed)).to(device.name)
    with device.kernels():
        assert torch.equal(operator(x.conj()), x.mH.contiguous())
        assert torch.equal(operator(x.conj().imag), -x.mT.imag)


@pytest.mark.parametrize("shape", [(2,), (2, 3), (2, 3, 4, 5)])
def test_other_ranks_and_truth_values_are_refused(shape: tuple[int, ...], device: Device) -> None:
    with device.kernels(), pytest.raises(ValueError, match=r"^transposed: x: expected rank 3 \(B, rows, columns\), got "):
        operator(torch.ones(shape, device=device.name))
    with device.kernels(), pytest.raises(ValueError, match=r"^transposed: x: expected numbers, got bool$"):
        operator(torch.ones(1, 2, 3, device=device.name, dtype=torch.bool))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_gradients_are_transposed_too(dtype: torch.dtype, device: Device, seed: int) -> None:
    """Gradients of any strides; and those of gradients, as the operator is linear."""
    x = any_bits(dtype, 2, 9, 70, seed=seed).to(device.name).requires_grad_()
    more = any_bits(dtype, 2, 70, 20, seed=seed + 1).to(device.name)
    for grad in (more[..., :9], more[..., ::2][..., :9], more[:, :1, :1].expand(2, 70, 9), more[:, :9].mT[:, 3:12].mT[:, :1]):
        grad = grad.expand(2, 70, 9).detach().requires_grad_()
        with device.kernels() as launched:
            (dx,) = torch.autograd.grad(contiguous_mT(x), x, grad, create_graph=True)
            (ddx,) = torch.autograd.grad(dx, grad, x)
        assert torch.equal(bits(dx.detach()), bits(grad.detach().mT)) and dx.is_contiguous()
        assert torch.equal(bits(ddx.detach()), bits(x.detach().mT)) and ddx.is_contiguous()
        assert launched is None or any(name.startswith(KERNEL) for name in launched())
