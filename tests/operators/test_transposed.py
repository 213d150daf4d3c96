"""torch.ops.gdn_cuda.transposed on CPU tensors; its derivatives, in traces, and what it keeps."""

from __future__ import annotations

import pytest
import torch
from devices import Device
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from transposed_on_device import *  # noqa: F403
from transposed_on_device import operator

from gdn_cuda.operators import explain
from gdn_cuda.operators.transposed import contiguous_mT


@pytest.fixture
def device() -> Device:
    return Device("cpu")


def double(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, requires_grad=True)


@pytest.mark.parametrize("shape", [(2, 3, 4), (1, 1, 3), (1, 3, 1), (0, 3, 2), (2, 0, 3)])
def test_derivatives(shape: tuple[int, int, int]) -> None:
    x = double(*shape)
    assert torch.autograd.gradcheck(contiguous_mT, x, check_forward_ad=True)
    assert torch.autograd.gradgradcheck(contiguous_mT, x)


def test_transforms() -> None:
    x = double(2, 3, 4)
    jacobian = torch.func.jacrev(contiguous_mT)(x)
    assert torch.equal(torch.func.jacfwd(contiguous_mT)(x), jacobian)
    assert torch.equal(torch.einsum("abcdef,def->abc", jacobian, x), x.mT)
    more = torch.randn(2, 3, 5, 4)
    for dim in range(4):
        assert torch.equal(torch.vmap(contiguous_mT, dim)(more), more.movedim(dim, 0).mT)
        assert torch.equal(torch.vmap(contiguous_mT, dim, 3)(more), more.movedim(dim, 0).mT.movedim(0, 3))


def test_a_view_that_is_contiguous_is_not_copied() -> None:
    x = torch.randn(2, 4, 3).mT
    assert contiguous_mT(x).data_ptr() == x.data_ptr() and contiguous_mT(x).is_contiguous()
    one = torch.randn(2, 1, 3)
    assert contiguous_mT(one).data_ptr() == one.data_ptr()
    assert contiguous_mT(torch.empty(2, 0, 3)).shape == (2, 3, 0)


def test_nothing_is_kept_for_backward() -> None:
    """The gradient needs no input: layers transpose projections that nothing else needs."""
    kept: list[Tensor] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda x: kept.append(x) or x, lambda x: x):
        y = contiguous_mT(double(2, 3, 4))
    assert y.grad_fn is not None and not kept


@pytest.mark.parametrize("dynamic", [False, True])
def test_compiled(dynamic: bool, seed: int) -> None:
    def loss(x: Tensor) -> Tensor:
        return (contiguous_mT(x).cumsum(-1) ** 2).sum()

    torch._dynamo.reset()
    compiled = torch.compile(loss, fullgraph=True, dynamic=dynamic, backend="aot_eager")
    for shape in ((2, 3, 4), (2, 5, 6)):
        x = torch.randn(shape, requires_grad=True)
        (ours,), (theirs,) = (torch.autograd.grad(call(x), x) for call in (compiled, loss))
        assert torch.equal(ours, theirs)


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_fake_tensors(device: str) -> None:
    with FakeTensorMode():
        for x in (torch.empty(2, 3, 4, device=device, dtype=torch.bfloat16), torch.empty(2, 4, 3, device=device).mT):
            y = operator(x)
            assert y.shape == (2, 4, 3) and y.is_contiguous() and y.dtype == x.dtype and y.device == x.device
        with pytest.raises(ValueError, match="transposed: x: expected rank 3"):
            operator(torch.empty(2, 3, device=device))


def test_meta_tensors() -> None:
    y = operator(torch.empty(2, 3, 4, device="meta"))
    assert y.shape == (2, 4, 3) and y.is_meta and y.is_contiguous()


# ---- What runs on a GPU


def kernels(x: Tensor) -> list[str]:
    steps = explain.explained(operator, device="h200", x=x).steps
    return [step["configuration"] for step in steps if step["kernel"] == "common/transposed_copy"]


def test_sizes_beyond_2_to_the_31() -> None:
    """Of elements they are the kernel's; of rows, columns or tiles torch's."""
    for shape in ((1, 1 << 18, 12288), (1, 12288, 1 << 18), (1 << 20, 64, 64), (1, (1 << 31) - 1, 3)):
        assert kernels(torch.empty(shape, device="meta", dtype=torch.bfloat16)) == ["{.element_bytes = 2}"]
    for shape in ((1, 1 << 31, 1), (1, 1, 1 << 31), (1 << 31, 1, 1), (1 << 16, 1 << 17, 1 << 17)):
        assert kernels(torch.empty(1, device="meta", dtype=torch.bfloat16).expand(shape)[..., :1].expand(shape)) == []
        one = torch.empty(1 << 31, device="meta", dtype=torch.bfloat16).as_strided(shape, (0, 0, 1))
        assert kernels(one) == []
