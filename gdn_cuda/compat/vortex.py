"""Replaces the convolutions of vortex, the inference package of Evo 2 and StripedHyena 2 (`vtx` on PyPI).

`patch()` lets all models of vortex, those that exist already too, compute their Hyena layers with gdn_cuda, forward and in
generation; `unpatch()` undoes it. What vortex rounds to bfloat16 on the way, u = x1 v, the convolution and its sum with the
bias, stays in fp32 here: single elements differ by some 1e-2 in bfloat16. The functions are vortex's by name and arguments.

A prompt of n tokens before a filter of more than n + 1 taps: vortex's own steps multiply the newest tokens by the oldest taps
until the tokens are as many as the taps but one. `patch()` gives the right values, those of all tokens at once.

Left to vortex: steps that need gradients, `print_activations`, `use_flashfft`, `use_flash_depthwise`, `long_fir_threshold`, a
`prefill_style` other than "fft", dtypes other than fp32, bf16 and fp16, and filters of more taps than the operators take.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ..conv import (
    causal_conv1d,
    fft_causal_conv,
    hyena_fir_step,
    hyena_long,
    hyena_medium,
    hyena_modal_step,
    hyena_short,
    split_projections,
)
from ..hosts import verified
from ..hosts.replaced import Replaced
from ..operators.caller import in_words_of_caller
from ..operators.schema import refuse

__all__ = ["fftconv_func", "hcl_fft_conv", "hcm_fft_conv", "hcs_conv", "patch", "unpatch"]

_LONGEST_SHORT, _LONGEST_MEDIUM, _MOST_POLES = 32, 1024, 64
_CONVOLUTION_FROM = 128  # vortex takes filters of so many taps as convolutions, shorter ones as correlations
_DTYPES = (torch.float32, torch.bfloat16, torch.float16)


# ---- vortex's functions


@in_words_of_caller()
def hcs_conv(
    x1: Tensor,
    x2: Tensor,
    v: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    gated_bias: bool = False,
    padding_mask: Tensor | None = None,
) -> Tensor:
    """`hyena_short`: x2 (conv(x1 v, weight) + bias), times the mask; weight may be (groups, 1, K), of any K."""
    if weight.shape[-1] > _LONGEST_SHORT:
        u = x1 * v
        z = fft_causal_conv(u, _rows(weight.flip(-1), u), bias if gated_bias else None)
        z = z if bias is None or gated_bias else z + bias[:, None]
        z = z if padding_mask is None else z * padding_mask[:, None].to(z.dtype)
        return x2 * z
    y: Tensor = hyena_short(x1, x2, v, weight, bias, gated_bias=gated_bias, padding_mask=padding_mask)
    return y


@in_words_of_caller()
def hcm_fft_conv(
    u: Tensor,
    k: Tensor,
    D: Tensor,
    dropout_mask: Tensor | None,
    gelu: bool = False,
    k_rev: Tensor | None = None,
    bidirectional: bool = False,
    print_activations: bool = False,
    layer_idx: int | None = None,
    **kwargs: Any,
) -> Tensor:
    """`fft_causal_conv` for vortex's filters (D, 1, K): k * u + D u. `gelu` and `dropout_mask` have to be unset, as there."""
    if gelu:
        refuse("hcm_fft_conv", "gelu", "False", gelu)
    if dropout_mask is not None:
        refuse("hcm_fft_conv", "dropout_mask", "None", "a tensor")
    if k_rev is not None:
        refuse("hcm_fft_conv", "k_rev", "None", "a tensor")
    return _fftconv("hcm_fft_conv", u, k, D, None, bidirectional)


@in_words_of_caller()
def fftconv_func(
    u: Tensor,
    k: Tensor,
    D: Tensor,
    dropout_mask: Tensor | None,
    gelu: bool = True,
    k_rev: Tensor | None = None,
    bidirectional: bool = False,
    print_activations: bool = False,
    layer_idx: int | None = None,
    **kwargs: Any,
) -> Tensor:
    """The same; `k_rev` (D, K) is a filter of the following tokens. `gelu` and `dropout_mask` are not read, as in vortex."""
    return _fftconv("fftconv_func", u, k, D, k_rev, bidirectional)


def _fftconv(function: str, u: Tensor, k: Tensor, D: Tensor, k_rev: Tensor | None, bidirectional: bool) -> Tensor:
    if bidirectional:
        refuse(function, "bidirectional", "False", bidirectional)
    y = fft_causal_conv(u, _rows(k, u), D)
    if k_rev is None:
        return y
    return y + fft_causal_conv(u.flip(-1), _rows(k_rev, u)).flip(-1)


def _rows(k: Tensor, u: Tensor) -> Tensor:
    """A filter (D, K), (1, D, K) or (D, 1, K) as (D, K), of u's length at most."""
    return k.reshape(-1, k.shape[-1])[:, : u.shape[-1]]


@in_words_of_caller(u="x1v", k="h")
def hcl_fft_conv(h: Tensor, x1v: Tensor, x2: Tensor, D: Tensor, L: int, fft_size: int) -> Tensor:
    """(h * x1v + D x1v) x2 for a filter h (1, D, L). `hyena_long` needs no such filter. `fft_size` is not read."""
    return (fft_causal_conv(x1v, _rows(h, x1v[..., :L]), D) * x2).to(x1v.dtype)


# ---- Methods of vortex's HyenaInferenceEngine; each calls vortex's own where ours does not apply


def _serves(*given: Tensor | None) -> bool:
    """Whether our operators take tensors of these dtypes."""
    return all(x is None or x.dtype in _DTYPES for x in given)


def _steps(*given: Tensor | None) -> bool:
    """Whether our steps take these tensors: steps have no gradients."""
    return _serves(*given) and not (torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in given))


def _projections(engine: Any, z: Tensor, dims: Any, column_split: bool) -> tuple[Tensor, Tensor, Tensor]:
    layout = "heads" if column_split else "thirds"
    x2, x1, v = split_projections(z, dims[1] if column_split else 1, layout, engine.hyena_flip_x1x2)
    return x2, x1, v


def _parallel_fir(original: Callable[..., Any]) -> Callable[..., Any]:
    def parallel_fir(
        self: Any,
        fir_fn: Any,
        u: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        L: int,
        dims: Any,
        groups: int | None = None,
        gated_bias: bool = False,
        column_split_hyena: bool = False,
        dim_last: bool = True,
        fir_length: int = 3,
        gate: bool = False,
        inference_params: Any = None,
        prefill_mode: Any = None,
        padding_mask: Any = None,
    ) -> Any:
        mask = padding_mask if isinstance(padding_mask, Tensor) else None
        convolution = fir_length >= _CONVOLUTION_FROM
        longest = _LONGEST_MEDIUM if convolution else _LONGEST_SHORT
        by_us = fir_fn is F.conv1d and not self.print_activations and fir_length <= longest and _serves(u, weight, bias)
        if not by_us or (convolution and (bias is None or not gate)) or (not gate and gated_bias) or gate == dim_last:
            given = (fir_fn, u, weight, bias, L, dims, groups, gated_bias, column_split_hyena, dim_last, fir_length, gate)
            return original(self, *given, inference_params, prefill_mode, padding_mask)
        if not gate:  # of the projections: (B, L, 3 D) to (B, 3 D, L)
            z, state = causal_conv1d(u.mT, weight[:, 0], bias, return_final_states=True)
            z = z if mask is None else z * mask[:, None]
        else:
            x2, x1, v = _projections(self, u, dims, column_split_hyena)
            if convolution:
                z, state = hyena_medium(x1, x2, v, weight, bias, padding_mask=mask, return_state=True)
            else:
                z, state = hyena_short(x1, x2, v, weight, bias, gated_bias=gated_bias, padding_mask=mask, return_state=True)
        return z, None if inference_params is None else state

    return parallel_fir


def _parallel_iir(original: Callable[..., Any]) -> Callable[..., Any]:
    def parallel_iir(
        self: Any,
        z_pre: Tensor,
        h: Tensor,
        D: Tensor,
        L: int,
        poles: Tensor,
        residues: Tensor,
        t: Tensor,
        dims: Any,
        layer_idx: Any,
        inference_params: Any = None,
        prefill_style: str = "fft",
        fftconv_fn: Any = None,
        padding_mask: Any = None,
        use_flashfft: bool = False,
        column_split_hyena: bool = False,
        long_fir_threshold: int | None = None,
    ) -> Any:
        if h.shape[-1] > 0:  # as vortex's own compute_filter made it
            given = (z_pre, h, D, L, poles, residues, t, dims, layer_idx, inference_params, prefill_style, fftconv_fn)
            return original(self, *given, padding_mask, use_flashfft, column_split_hyena, long_fir_threshold)
        x2, x1, v = _projections(self, z_pre, dims, column_split_hyena)
        y, state = hyena_long(x1, x2, v, residues.float(), poles.float(), D, return_state=True)
        if inference_params is not None:
            inference_params.state_dict[layer_idx] = state
        return y.mT

    return parallel_iir


def _compute_filter(original: Callable[..., Any]) -> Callable[..., Any]:
    def compute_filter(self: Any, L: int, device: Any) -> Any:
        """Returns a filter of length 0 where `parallel_iir` needs none, which is how `parallel_iir` recognizes it."""
        config = self.config
        plain = not (self.use_flashfft or self.print_activations) and self.long_fir_threshold is None
        by_us = plain and config.get("prefill_style", "fft") == "fft" and self.residues.shape[1] <= _MOST_POLES
        weights = (self.residues, self.log_poles, self.D, self.short_filter_weight)
        if not by_us or not _serves(*weights):
            return original(self, L, device)
        self.t = torch.arange(0, device=device)[None, None]
        log_poles, residues = self.log_poles.float(), self.residues.float()
        return residues.new_empty(1, residues.shape[0], 0), torch.float32, log_poles, residues

    return compute_filter


def _step_fir(original: Callable[..., Any]) -> Callable[..., Any]:
    def step_fir(
        self: Any,
        u: Tensor,
        fir_state: Tensor,
        weight: Tensor,
        bias: Tensor | None = None,
        gated_bias: bool = False,
        flip_filter: bool = False,
    ) -> Any:
        taps = weight.reshape(-1, 1, weight.shape[-1])
        missing = taps.shape[2] - 1 - fir_state.shape[-1]
        if not _steps(u, fir_state, weight, bias) or taps.shape[2] > _LONGEST_MEDIUM or missing < 0:
            return original(self, u, fir_state, weight, bias, gated_bias, flip_filter)
        # A new state, as vortex returns one: the caller's may be a view of the prompt.
        state = F.pad(fir_state.float(), (missing, 0)) if missing else fir_state.float().clone()
        return hyena_fir_step(u, state, taps, bias, gated_bias, flip_filter)

    return step_fir


def _step_iir(original: Callable[..., Any]) -> Callable[..., Any]:
    def step_iir(
        self: Any,
        x2: Tensor,
        x1: Tensor,
        v: Tensor,
        D: Tensor,
        residues: Tensor,
        poles: Tensor,
        iir_state: Tensor,
        iir_groups: int = 1,
    ) -> Any:
        if iir_groups > 1 or residues.shape[1] > _MOST_POLES or not _steps(x2, x1, v, D, residues, poles, iir_state):
            return original(self, x2, x1, v, D, residues, poles, iir_state, iir_groups)
        return hyena_modal_step(x2, x1, v, D, residues, poles, iir_state.clone())

    return step_iir


# ---- Patching

_ENGINE, _MODEL = "vortex.model.engine", "vortex.model.model"
_FFT = "D, dropout_mask, gelu={}, k_rev=None, bidirectional=False, print_activations=False, layer_idx=None, **kwargs"
# By target: the parameters that were verified, and the function that makes our version from vortex's own.
_METHODS: dict[str, tuple[str, Callable[..., Any]]] = {
    f"{_ENGINE}:HyenaInferenceEngine.parallel_fir": (
        "self, fir_fn, u, weight, bias, L, dims, groups=None, gated_bias=False, column_split_hyena=False, dim_last=True, "
        "fir_length=3, gate=False, inference_params=None, prefill_mode=None, padding_mask=None",
        _parallel_fir,
    ),
    f"{_ENGINE}:HyenaInferenceEngine.parallel_iir": (
        "self, z_pre, h, D, L, poles, residues, t, dims, layer_idx, inference_params=None, prefill_style='fft', "
        "fftconv_fn=None, padding_mask=None, use_flashfft=False, column_split_hyena=False, long_fir_threshold=None",
        _parallel_iir,
    ),
    f"{_ENGINE}:HyenaInferenceEngine.step_fir": (
        "self, u, fir_state, weight, bias=None, gated_bias=False, flip_filter=False",
        _step_fir,
    ),
    f"{_ENGINE}:HyenaInferenceEngine.step_iir": (
        "self, x2, x1, v, D, residues, poles, iir_state, iir_groups=1",
        _step_iir,
    ),
    f"{_MODEL}:HyenaCascade.compute_filter": ("self, L, device", _compute_filter),
}
# Older versions lack some of them; vortex has None where Triton is missing.
_FUNCTIONS: dict[str, tuple[str, Callable[..., Any]]] = {
    f"{_ENGINE}:hcs_conv": ("x1, x2, v, weight, bias=None, *, gated_bias=False, padding_mask=None", hcs_conv),
    f"{_ENGINE}:hcm_fft_conv": (f"u, k, {_FFT.format(False)}", hcm_fft_conv),
    f"{_ENGINE}:hcl_fft_conv": ("h, x1v, x2, D, L, fft_size", hcl_fft_conv),
    f"{_ENGINE}:fftconv_func": (f"u, k, {_FFT.format(True)}", fftconv_func),
}
VERSIONS: verified.Versions = {"1.1.0": "run"}
HOST = verified.Host(
    *("vtx", "vortex", VERSIONS),
    {"": {target: expected for target, (expected, _) in (_METHODS | _FUNCTIONS).items()}},
    optional=frozenset(_FUNCTIONS),
)
_replaced = Replaced()


@_replaced.whole()
def patch() -> None:
    """Makes vortex's Hyena layers run gdn_cuda's operators, in existing models and in new ones. Raises ImportError without
    vortex, and `gdn_cuda.integrations.Refused`, with nothing replaced, if the functions to replace have other parameters.
    A second call changes nothing."""
    importlib.import_module(_ENGINE)
    importlib.import_module(_MODEL)
    if _replaced:
        return
    HOST.require_imported()
    for target, (_, make) in _METHODS.items():
        owner, name = verified.owner_of(target)
        _replaced.put(owner, name, make(getattr(owner, name)))
    for target, (_, ours) in _FUNCTIONS.items():
        owner, name = verified.owner_of(target)
        if getattr(owner, name, None) is not None:
            _replaced.put(owner, name, ours)


def unpatch() -> None:
    """Puts back what `patch` replaced."""
    _replaced.undo()
