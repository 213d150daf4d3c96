"""Which kernels a call would launch, in which configuration and why, on any device and on any machine.

The function itself runs, on tensors of the meta device: its operators run the code for CUDA tensors, which checks, chooses and
allocates as usual, and records each launch instead of making it (csrc/launch/explanation.hpp).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from numbers import Integral
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map, tree_map_only

from .. import _C
from ..names import unknown
from ..runtime import DEFAULT_ARCH
from . import measure
from .capability import explaining

if TYPE_CHECKING:
    from .._C import DeviceTraits, ExplainedStep

STAND_IN = -1  # the ordinal of a device that is not in this machine


# ---- Devices


def device_of(name: str | None = None, multiprocessors: int | None = None) -> DeviceTraits:
    """`name`: "h200", "a100" or "sm_80"; None: the current GPU, or an H200 where there is none."""
    if name is None and multiprocessors is None and torch.cuda.is_available():
        return _present()
    device = _named(name) if name is not None else _present() if torch.cuda.is_available() else _named(DEFAULT_ARCH)
    device["ordinal"] = STAND_IN
    if multiprocessors is not None:
        whole = isinstance(multiprocessors, Integral) and not isinstance(multiprocessors, bool)
        if not whole or not 1 <= multiprocessors <= 1024:
            raise ValueError(f"explain: multiprocessors: expected 1 to 1024, got {multiprocessors}")
        device["multiprocessors"] = int(multiprocessors)
    return device


def _present() -> DeviceTraits:
    return _C.driver()["devices"][torch.cuda.current_device()]


def _named(name: str) -> DeviceTraits:
    text = str(name).lower()  # so that a torch.device is refused with its name
    if text.startswith("sm_"):
        return _C.device_traits_for_arch(text)
    known = {device["name"].removeprefix("NVIDIA ").lower().replace(" ", "-"): device for device in _C.typical_devices()}
    if text not in known:
        raise ValueError(f"explain: device: {unknown(text, [*known, 'sm_80'])}")
    return known[text]


def device_text(device: DeviceTraits) -> str:
    here = "" if device["ordinal"] == STAND_IN else f", device {device['ordinal']} of this machine"
    return f"{device['name']} ({device['arch']}, {device['multiprocessors']} multiprocessors{here})"


# ---- Running a call without a GPU

_CUDA = torch._C.DispatchKeySet(torch._C.DispatchKey.CUDA)


class _AsOnCuda(TorchDispatchMode):
    """Our operators run their CUDA implementation; torch's operators run on meta tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.of_torch: list[str] = []

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """True, because torch would otherwise import its compiler, which takes seconds, to exclude this method from it."""
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.namespace != "gdn_cuda":
            self.of_torch.append(func.overloadpacket.__name__)
        elif torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), "CUDA"):
            return func.redispatch(_CUDA, *args, **(kwargs or {}))
        return func(*args, **(kwargs or {}))


def like(x: Tensor) -> Tensor:
    """A meta tensor with the shape, strides and dtype of x, and an address with the same remainder modulo 16."""
    if x.is_meta:
        return x
    if x.layout is not torch.strided or torch._C._functorch.is_functorch_wrapped_tensor(x):
        got = "one inside" if x.layout is torch.strided else f"one of layout {x.layout}"
        raise ValueError(f"explain: expected strided tensors outside torch.func transforms, got {got}")
    offset = 0 if isinstance(x, FakeTensor) else x.data_ptr() % 16 // x.element_size()
    reach = 1 + sum((size - 1) * stride for size, stride in zip(x.shape, x.stride(), strict=True)) if x.numel() else 0
    memory = torch.empty(offset + reach, dtype=x.dtype, device="meta").untyped_storage()
    made = torch.empty(0, dtype=x.dtype, device="meta").set_(
        memory, offset, x.shape, x.stride()
    )  # not a view, which would have a base
    if x.requires_grad and not x.is_leaf and not torch.is_inference_mode_enabled():
        with torch.enable_grad():
            return _Computed.apply(made, torch.empty(0, device="meta", requires_grad=True))
    return made.requires_grad_(x.requires_grad)


class _Computed(torch.autograd.Function):
    """Gives its first tensor a grad_fn: autograd lets a call write to a tensor that has one, and not to a leaf."""

    @staticmethod
    def forward(ctx: Any, made: Tensor, leaf: Tensor) -> Tensor:
        ctx.mark_dirty(made)
        return made

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        return None, None


@dataclass(frozen=True)
class Explanation:
    function: str
    device: DeviceTraits
    steps: list[ExplainedStep]  # launches, and remarks, which have no kernel
    of_torch: list[str]  # names of torch's operators that the function calls

    def __str__(self) -> str:
        return "\n".join([f"{self.function} on {device_text(self.device)}", *(f"  {line}" for line in self.lines())])

    def lines(self) -> Iterator[str]:
        for step in self.steps:
            if not step["kernel"]:
                yield step["reason"]
                continue
            cluster = f" in clusters of {step['cluster']}" if step["cluster"] > 1 else ""
            grid = " x ".join(map(str, step["grid"]))
            yield f"{step['kernel']} {step['configuration']}"
            yield f"    {step['reason']}"
            blocks = f"{grid} blocks{cluster} of {step['threads']} threads"
            yield f"    {blocks}, {step['shared_bytes']} bytes of dynamic shared memory"
        if not self.steps:
            names = ", ".join(dict.fromkeys(self.of_torch))
            yield f"no kernel of gdn_cuda: {f'operators of torch, {names}' if names else 'nothing to compute'}"


@contextmanager
def recording(device: DeviceTraits) -> Iterator[Callable[[str], Explanation]]:
    """Explains calls with meta tensors. Yields a function that returns what was explained since it was last called."""
    mode, seen = _AsOnCuda(), [0]

    def explained(function: str) -> Explanation:
        steps, of_torch = context.steps()[seen[0] :], mode.of_torch
        seen[0], mode.of_torch = seen[0] + len(steps), []
        return Explanation(function, device, steps, of_torch)

    with _C.Explaining(device) as context, explaining(device["capability"]), mode:
        yield explained


def explained(
    function: Callable[..., Any], *args: Any, device: str | None = None, multiprocessors: int | None = None, **kwargs: Any
) -> Explanation:
    args, kwargs = tree_map_only(Tensor, like, (args, kwargs))
    with recording(device_of(device, multiprocessors)) as done:
        function(*args, **kwargs)
        return done(getattr(function, "__name__", type(function).__name__))


def explain(
    function: Callable[..., Any] | str,
    /,
    *args: Any,
    device: str | None = None,
    multiprocessors: int | None = None,
    **kwargs: Any,
) -> str:
    """Which kernels `function(*args, **kwargs)` would launch, in which configuration and why. Launches nothing; needs no GPU.

    Where a function reads a result on the host to decide how to go on, the calls that may follow are explained too.

    Parameters:
        function: a function of gdn_cuda, or its name
        args, kwargs: its arguments; tensors count by shape, strides, dtype and alignment, so meta tensors do
        device: "h200", "a100" or an architecture such as "sm_80"; None: the current GPU, or an H200 where there is none
        multiprocessors: their number; None: as many as this model of device has
    """
    if isinstance(function, str):
        function = function_called(function)
    if not callable(function):
        raise ValueError(f"explain: function: expected a function of gdn_cuda or its name, got {type(function).__name__}")
    return str(explained(function, *args, device=device, multiprocessors=multiprocessors, **kwargs))


# ---- Benchmarks, without their GPU


class _Nowhere(TorchFunctionMode):
    """Tensors that a benchmark makes on CUDA are made on the meta device."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        args, kwargs = tree_map(_without_cuda, (args, kwargs or {}))
        return func(*args, **kwargs)


def _without_cuda(given: Any) -> Any:
    return "meta" if isinstance(given, (str, torch.device)) and str(given) == "cuda" else given


def benchmarks(operator: str, device: DeviceTraits) -> Iterator[tuple[str, Explanation]]:
    """(shape, explanation) of every row that `bench` measures on a GPU."""
    for case in measure.load().benches[operator].cases("cuda"):
        with recording(device) as done, _Nowhere():
            work = case.prepare()
            done("what the inputs took")
            work.call()
            explanation = done(operator)
        yield case.shape, explanation


# ---- Functions


def function_called(name: str) -> Callable[..., Any]:
    """A public function, or an operator without a public function."""
    from ..runtime import package as gdn_cuda
    from . import calls
    from .registration import SCHEMAS

    if name in calls.load():
        return getattr(gdn_cuda, name)
    if name not in SCHEMAS:
        raise ValueError(f"explain: OP: {unknown(name, calls.load())}")
    from .examples import call_operator

    return call_operator(name)
