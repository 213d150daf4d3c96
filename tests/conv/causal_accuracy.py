"""Errors of causal_conv1d's results and gradients, for the table of scan_accuracy.py."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import conv_oracle as oracle
import torch
from causal_cases import inputs, laid_out
from scan_accuracy import REAL, Case, Parts, results_and_gradients
from torch import Tensor

import gdn_cuda


def _cases(length: int, dtype: torch.dtype, seed: int) -> Iterator[Case]:
    def case(label: str, W: int, layout: str, **form: Any) -> Case:
        x = inputs(1, 16, length, W, seed, dtype=dtype, layout=layout, bias=True, activation="silu", **form)
        x = {name: y for name, y in x.items() if name != "activation"}

        def ours(x: Tensor, *others: Any, **more: Any) -> Any:  # copies to a GPU are dense
            return gdn_cuda.causal_conv1d(laid_out(x, layout), *others, activation="silu", return_final_states=True, **more)

        return Case("causal_conv1d", label, results_and_gradients(ours, partial(oracle.causal_conv1d, silu=True), x))

    packed = [0, 0, length // 7, length // 2, length]
    yield case("W = 4", 4, "tokens")
    yield case("W = 4, transposed", 4, "channels")
    yield case("W = 4, packed, initial states", 4, "tokens", packed=packed, states=True)
    yield case("W = 4, transposed, seq_idx", 4, "channels", seq_idx=[(0, length // 5), (-1, 3), (2, 1)])
    yield case("W = 4, any strides", 4, "strided")
    yield case("W = 32", 32, "tokens")
    yield case("W = 32, transposed", 32, "channels")


def parts(length: int) -> Parts:
    return {f"convolutions of {length} tokens": (partial(_cases, length), REAL)}
