"""Wrong input of selective_scan and of its backward raises an error that names function, argument, expected and got."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from selective_inputs import selective_inputs
from torch import Tensor

import gdn_cuda
from gdn_cuda.operators import examples

BACKWARD = examples.load()["selective_scan_backward"]


def arguments(**form: Any) -> dict[str, Any]:
    return selective_inputs(0, **form)


PACKED = {"batch": 1, "length": 9, "cu_seqlens": [0, 4, 9]}
COMPLEX = {"is_complex": True}
S7, RGLRU = {"discretization": "s7"}, {"discretization": "rglru"}
PAIRS = {"is_complex": True, "in_pairs": True}
# form of the inputs, what is changed, the argument that the error names, what was expected and what it got
WRONG: dict[str, tuple[dict[str, Any], dict[str, Any], str, str]] = {
    "rank of u": ({}, {"u": torch.ones(4, 70)}, "u", "rank 3 (B, D, L), got (4, 70)"),
    "integers": ({}, {"u": torch.ones(2, 4, 70, dtype=torch.int32)}, "u", "float16 or float64, got int32"),
    "complex u": ({}, {"u": torch.ones(2, 4, 70, dtype=torch.complex64)}, "u", "got complex64"),
    "length of delta": ({}, {"delta": torch.ones(2, 4, 69)}, "delta", "the shape of u (2, 4, 70), got (2, 4, 69)"),
    "dtype of delta": ({}, {"delta": torch.ones(2, 4, 70).half()}, "delta", "float32, got float16"),
    "dtype of z": ({}, {"z": torch.ones(2, 4, 70).double()}, "z", "float32, got float64"),
    "channels of z": ({}, {"z": torch.ones(2, 8, 70)}, "z", "the shape of u (2, 4, 70), got (2, 8, 70)"),
    "shape of delta_a": ({}, {"delta_a": torch.ones(4)}, "delta_a", "the shape of u (2, 4, 70), got (4,)"),
    "delta_a of s7": (S7, {"delta_a": torch.ones(2, 4, 70)}, "delta_a", "None with 's7', got a tensor"),
    "delta_a of rglru": (RGLRU, {"delta_a": torch.ones(2, 4, 70)}, "delta_a", "None with 'rglru', got a tensor"),
    "channels of A": ({}, {"A": torch.ones(5, 3)}, "A", "(D=4, N), N from 1 to 256, got (5, 3)"),
    "no states": ({}, {"A": torch.ones(4, 0)}, "A", "(D=4, N), N from 1 to 256, got (4, 0)"),
    "too many states": ({}, {"A": torch.ones(4, 257)}, "A", "(D=4, N), N from 1 to 256, got (4, 257)"),
    "half A": ({}, {"A": torch.ones(4, 3).half()}, "A", "float32 or complex64, got float16"),
    "wide A": ({}, {"A": torch.ones(4, 3).double()}, "A", "float32 or complex64, got float64"),
    "narrow A": ({"dtype": torch.float64}, {"A": torch.ones(4, 3)}, "A", "float64 or complex128, got float32"),
    "complex s7": (COMPLEX, {"discretization": "s7"}, "A", "real numbers, as 's7' is real, got complex64"),
    "complex rglru": (COMPLEX, {"discretization": "rglru"}, "A", "real numbers, as 'rglru' is real, got complex64"),
    "rank of B": ({}, {"B": torch.ones(3)}, "B", "(D, N), (B, N, L) or (B, G, N, L), got (3,)"),
    "constant B": ({}, {"B": torch.ones(3, 4)}, "B", "(D, N) = (4, 3), got (3, 4)"),
    "half constant B": ({}, {"B": torch.ones(4, 3).half()}, "B", "float32, got float16"),
    "states of B": ({}, {"B": torch.ones(2, 2, 70)}, "B", "(B=2, N=3, L=70), got (2, 2, 70)"),
    "batch of C": ({}, {"C": torch.ones(1, 3, 70)}, "C", "(B=2, N=3, L=70), got (1, 3, 70)"),
    "length of C": ({}, {"C": torch.ones(2, 2, 3, 140)}, "C", "(B=2, G, N=3, L=70), got (2, 2, 3, 140)"),
    "groups of B": ({}, {"B": torch.ones(2, 3, 3, 70)}, "B", "a number of groups that divides the 4 channels, got 3"),
    "no groups of C": ({}, {"C": torch.ones(2, 0, 3, 70)}, "C", "a number of groups that divides the 4 channels, got 0"),
    "complex B for a real A": ({}, {"B": torch.ones(2, 3, 70, dtype=torch.complex64)}, "B", "float32, got complex64"),
    "half B": ({}, {"B": torch.ones(2, 3, 70).half()}, "B", "float32, got float16"),
    "half B for bf16": ({"dtype": torch.bfloat16}, {"B": torch.ones(2, 3, 70).half()}, "B", "bfloat16 or float32, got float16"),
    "real B without pairs": (
        COMPLEX, {"B": torch.ones(2, 3, 70)}, "B",
        "(B=2, N=3, 2L=140) of (real, imaginary) pairs, as A is complex, got (2, 3, 70)",
    ),
    "complex pairs": (COMPLEX, {"C": torch.ones(2, 3, 140, dtype=torch.complex64)}, "C", "(B=2, N=3, L=70), got (2, 3, 140)"),
    "half pairs": (PAIRS, {"B": torch.ones(2, 3, 140).half()}, "B", "complex64 or float32, got float16"),
    "real constant B": (COMPLEX, {"B": torch.ones(4, 3)}, "B", "complex64, got float32"),
    "length of D": ({}, {"D": torch.ones(3)}, "D", "(D,) = (4,), got (3,)"),
    "half D": ({}, {"D": torch.ones(4).half()}, "D", "float32, got float16"),
    "rank of delta_bias": ({}, {"delta_bias": torch.ones(4, 1)}, "delta_bias", "(D,) = (4,), got (4, 1)"),
    "wide delta_bias": ({}, {"delta_bias": torch.ones(4).double()}, "delta_bias", "float32, got float64"),
    "batch of the state": ({}, {"initial_state": torch.ones(1, 4, 3)}, "initial_state", "(B, D, N) = (2, 4, 3), got (1, 4, 3)"),
    "real state": (COMPLEX, {"initial_state": torch.ones(2, 4, 3)}, "initial_state", "complex64, got float32"),
    "states of sequences": (
        PACKED, {"initial_state": torch.ones(1, 4, 3)}, "initial_state", "(sequences, D, N) = (2, 4, 3), got (1, 4, 3)",
    ),
    "packed batch": (
        {}, {"cu_seqlens": torch.tensor([0, 70])}, "u", "a batch of 1, as cu_seqlens packs sequences along L, got (2, 4, 70)",
    ),
    "decreasing offsets": (
        PACKED, {"cu_seqlens": torch.tensor([0, 5, 4])}, "cu_seqlens",
        "offsets that start at 0, never decrease and end by 9, got 4 at position 2",
    ),
    "negative offsets": (PACKED, {"cu_seqlens": torch.tensor([-1, 4, 9])}, "cu_seqlens", "got -1 at position 0"),
    "offsets too large": (PACKED, {"cu_seqlens": torch.tensor([0, 4, 10])}, "cu_seqlens", "got 10 at position 2"),
    "rank of offsets": (PACKED, {"cu_seqlens": torch.tensor([[0, 4, 9]])}, "cu_seqlens", "rank 1 (sequences + 1,), got (1, 3)"),
    "no offsets": (PACKED, {"cu_seqlens": torch.tensor([], dtype=torch.int32)}, "cu_seqlens", "at least one element, got none"),
    "short offsets": (PACKED, {"cu_seqlens": torch.tensor([0, 9]).short()}, "cu_seqlens", "int32 or int64, got int16"),
    "an unknown discretization": (
        {}, {"discretization": "euler"}, "discretization",
        "one of 'mamba', 'zoh', 'bilinear', 'dirac', 's7', 'rglru', got 'euler'",
    ),
    "a discretization of another type": ({}, {"discretization": None}, "discretization", "a string, got None"),
    "no tensor": ({}, {"A": 3.0}, "A", "a tensor, got float"),
    "no optional tensor": ({}, {"D": 3.0}, "D", "a tensor or None, got float"),
    "softplus of another type": ({}, {"delta_softplus": "yes"}, "delta_softplus", "a bool, got 'yes'"),
}  # fmt: skip


def refuses(call: Any, x: dict[str, Any], function: str, argument: str, got: str) -> None:
    with pytest.raises(ValueError, match=rf"^{function}: {argument}: expected .*{re.escape(got)}$"):
        call(**x)


@pytest.mark.parametrize("what", WRONG)
@pytest.mark.parametrize("differentiated", [False, True])
def test_wrong_arguments_are_refused_by_name(what: str, differentiated: bool) -> None:
    form, changed, argument, got = WRONG[what]
    x = arguments(**form)
    x["C"].requires_grad_(differentiated)
    refuses(gdn_cuda.selective_scan, x | changed, "selective_scan", argument, got)


TENSORS = [k for k, v in arguments(**PACKED).items() if isinstance(v, Tensor) and k != "u"]


@pytest.mark.parametrize("argument", TENSORS)
def test_another_device_is_refused_by_name(argument: str) -> None:
    x = arguments(**PACKED)
    x[argument] = x[argument].to("meta")
    refuses(gdn_cuda.selective_scan, x, "selective_scan", argument, "cpu, the device of u, got meta")


def test_more_tokens_than_kernels_count() -> None:
    length = 2**31
    x = {k: torch.empty(1, 1, 1, device="meta").expand(1, 1, length) for k in ("u", "delta", "B", "C")}
    x["A"] = torch.empty(1, 1, device="meta")
    refuses(gdn_cuda.selective_scan, x, "selective_scan", "u", f"at most {2**31 - 256} tokens, got {length}")


def test_more_states_than_torch_counts() -> None:
    batch = dim = 2**30
    rows = torch.empty(batch, dim, 0, device="meta")
    constant = torch.empty(1, 1, device="meta").expand(dim, 4)
    x = {"u": rows, "delta": rows, "A": constant, "B": constant, "C": constant}
    refuses(
        gdn_cuda.selective_scan, x, "selective_scan", "u", "sizes of fewer than 2^58 states, got (1073741824, 1073741824, 0)"
    )


@pytest.mark.parametrize("argument, wrong, got", [
    ("grad_out", torch.ones(2, 4, 4, dtype=torch.bfloat16), "(B, D, L) = (2, 4, 5), got (2, 4, 4)"),
    ("grad_out", torch.ones(2, 4, 5), "bfloat16, got float32"),
    ("grad_last_state", torch.ones(2, 4, 4), "(sequences, D, N) = (2, 4, 3), got (2, 4, 4)"),
    ("grad_last_state", torch.ones(2, 4, 3, dtype=torch.complex64), "float32, got complex64"),
    ("states", torch.ones(3, 4, 3), "(chunks, D, N) = (2, 4, 3), got (3, 4, 3)"),
    ("states", torch.ones(2, 4, 3).half(), "float32, got float16"),
    ("u", torch.ones(2, 4), "rank 3 (B, D, L), got (2, 4)"),
])  # fmt: skip
def test_wrong_arguments_of_backward_are_refused_by_name(argument: str, wrong: Tensor, got: str) -> None:
    x = BACKWARD.make(2, 5, 0) | {argument: wrong}
    refuses(BACKWARD.function, x, "selective_scan_backward", argument, got)
