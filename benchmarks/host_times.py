"""Host time of warm calls.

    python benchmarks/host_times.py [--rounds 9] [--json FILE]
    python benchmarks/host_times.py --examples [--rounds 2] [--part 0/4]

To compare two commits, run it for both alternately on one machine (PYTHONPATH chooses the tree, if none is installed; the first
line names it), and compare ratios to torch.add of the same run: one host varies by a factor of 1.6 from minute to minute. A
figure is the minimum of the medians of all rounds. `--examples`: the example calls of all operators that tests make too, the
slowest first; `--part` takes every fourth of them, to compile their kernels in four processes.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from contextlib import suppress
from functools import partial

import torch

import gdn_cuda
from gdn_cuda.cli.bench_environment import environment
from gdn_cuda.cli.bench_report import write
from gdn_cuda.cli.bench_timing import Timer

DEVICE_US = 10.0  # device time of a call, or less: a hundred of them then fit into the driver's queue
MODES = {"no_grad": torch.no_grad, "grad mode": torch.enable_grad}
REACH_US = 12


def make_calls(device: str = "cuda") -> dict[str, Callable[[], object]]:
    def bf16(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, device=device, dtype=torch.bfloat16)

    def uniform(*shape: int) -> torch.Tensor:
        return torch.rand(*shape, device=device)

    def complex64(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, device=device, dtype=torch.complex64)

    query, key, value = bf16(1, 1, 16, 128), bf16(1, 1, 16, 128), bf16(1, 1, 32, 128)
    a, b, A_log, dt_bias = bf16(1, 1, 32), bf16(1, 1, 32), uniform(32), uniform(32)
    pool, out = torch.zeros(4, 32, 128, 128, device=device), bf16(1, 1, 32, 128)
    step = (query, key, value, a, b, A_log, dt_bias, pool)
    slots = torch.zeros(1, dtype=torch.int32, device=device)
    chunk = (bf16(1, 64, 16, 128), bf16(1, 64, 16, 128), bf16(1, 64, 32, 128), uniform(1, 64, 32), -uniform(1, 64, 32))
    token = (query, key, value, pool[:1], uniform(1, 1, 32), -uniform(1, 1, 32))
    residues, points, poles = complex64(2, 32), complex64(128), complex64(32) - 2
    column, vector = uniform(4, 64), uniform(4, 64)
    x = torch.ones(16, device=device)
    ssd = _mamba2_calls(bf16, uniform, device)
    return {
        "torch.add": lambda: torch.add(x, x, out=x),
        "fused_decode": lambda: gdn_cuda.fused_decode(*step, slots, out=out),
        "fused_decode, no slots": lambda: gdn_cuda.fused_decode(*step, out=out),
        "fused_decode, allocating": lambda: gdn_cuda.fused_decode(*step, slots),
        "recurrent_forward": lambda: gdn_cuda.recurrent_forward(*token, inference_mode=gdn_cuda.InferenceMode.DECODE, out=out),
        "chunked_forward": lambda: gdn_cuda.chunked_forward(*chunk),
        "cauchy_conj": lambda: gdn_cuda.cauchy_conj(residues, points, poles),
        "log_vandermonde": lambda: gdn_cuda.log_vandermonde(residues, poles, 128),
        "toeplitz_matvec": lambda: gdn_cuda.toeplitz_matvec(column, column, vector),
        **ssd,
    }


def _mamba2_calls(
    bf16: Callable[..., torch.Tensor], uniform: Callable[..., torch.Tensor], device: str
) -> dict[str, Callable[[], object]]:
    """As engines call them: tensors (tokens, …) of two prompts or sequences, states in slots of a pool."""
    heads, P, N, tokens = 24, 64, 128, 64
    int32 = partial(torch.tensor, dtype=torch.int32, device=device)
    A, D, dt_bias = -uniform(heads), uniform(heads), uniform(heads)
    packed = (bf16(tokens, heads, P), bf16(tokens, heads), A, bf16(tokens, 1, N), bf16(tokens, 1, N), D)
    padded = (packed[0][None], packed[1][None], A, packed[3][None], packed[4][None], D)
    options = {"dt_bias": dt_bias, "dt_softplus": True}
    slots, pool = int32([1, 2]), torch.zeros(4, heads, P, N, device=device)
    prompts = options | {"cu_seqlens": int32([0, 30, tokens]), "out": torch.empty_like(packed[0])}
    in_pool = {"initial_state": pool, "state_indices": slots, "has_initial_state": torch.tensor([True, False], device=device)}
    in_slots = {"initial_state": pool[:2].clone(), "last_state": pool, "write_indices": slots}
    step = tuple(y[:2] if n in (0, 1, 3, 4) else y for n, y in enumerate(packed))
    step_out = torch.empty_like(step[0])
    token = tuple(y[:, None] if n in (0, 1, 3, 4) else y for n, y in enumerate(step))
    ring, token_out = gdn_cuda.ssd_replay_buffers(pool, 8, 1), torch.empty_like(token[0])
    xBC, layer_out = bf16(2, heads * P + 2 * N), bf16(2, heads * P)
    layer = {"conv_weight": bf16(heads * P + 2 * N, 4), "A": A, "D": D, "conv_pool": bf16(4, 3, heads * P + 2 * N).mT}
    return {
        "ssd_scan, padded": lambda: gdn_cuda.ssd_scan(*padded, **options),
        "ssd_scan, packed, pool": lambda: gdn_cuda.ssd_scan(*packed, **prompts, **in_pool),
        "ssd_scan, packed, last states in slots": lambda: gdn_cuda.ssd_scan(*packed, **prompts, **in_slots),
        "selective_state_update": lambda: gdn_cuda.selective_state_update(
            pool, *step, None, dt_bias, True, state_batch_indices=slots, out=step_out
        ),
        "ssd_replay_decode": lambda: gdn_cuda.ssd_replay_decode(
            *token[:5], pool, *ring, D, state_indices=slots, out=token_out, **options
        ),
        "mamba2_decode_layer": lambda: gdn_cuda.mamba2_decode_layer(
            xBC, step[1], **layer, state_pool=pool, state_indices=slots, out=layer_out, **options
        ),
    }


def example_calls(device: str = "cuda", rows: int = 1, tokens: int = 64) -> dict[str, Callable[[], object]]:
    """A call for every example of an operator, by name."""
    from gdn_cuda.operators import examples

    def moved(x: object) -> object:
        if isinstance(x, tuple) and hasattr(x, "_fields"):
            return type(x)(*map(moved, x))
        return x.to(device) if isinstance(x, torch.Tensor) else x

    def call_of(case: examples.Case) -> Callable[[], object]:
        return partial(case.function, **{name: moved(x) for name, x in case.make(rows, tokens, 0).items()})

    return {name: call_of(case) for name, case in sorted(examples.load().items())}


def print_examples(timer: Timer, rounds: int, part: str) -> None:
    first, _, parts = part.partition("/")
    times: dict[str, float] = {}
    with suppress(KeyboardInterrupt), torch.no_grad():  # what has been measured by then
        for name, call in list(example_calls().items())[int(first) :: int(parts)]:
            try:
                call()
            except (RuntimeError, ValueError) as error:  # an example for the CPU alone
                print(f"{name}: {str(error).splitlines()[0][:100]}")
            else:
                times[name] = min((timer.host_us(call, DEVICE_US) for _ in range(rounds)), default=0)
    for name in sorted(times, key=times.__getitem__, reverse=True):
        print(f"{times[name]:7.1f} {name}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--json", help="a report as that of bench, for benchmarks/fill_pages.py")
    parser.add_argument("--examples", action="store_true")
    parser.add_argument("--part", default="0/1", help="of the examples")
    options = parser.parse_args()
    if options.examples:
        print_examples(Timer(repeats=75), options.rounds, options.part)
        return
    timer, rows = Timer(repeats=75), []
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, {gdn_cuda.__path__[0]}: host time of a call, us")
    for name, call in make_calls().items():
        operator, _, _ = name.partition(",")
        is_ours = hasattr(gdn_cuda, operator)
        row = name.replace(operator, f"`{operator}`", 1) if is_ours else name
        reach = {"reach_us": REACH_US} if is_ours else {}
        for kind, mode in MODES.items():
            with mode():
                us = min(timer.host_us(call, DEVICE_US) for _ in range(options.rounds))
            rows.append({"shape": f"{row}, {kind}", "row": row, "kind": kind, "time_us": us} | reach)
        print(f"{name:40}" + "".join(f"{each['kind']} {each['time_us']:6.2f}   " for each in rows[-len(MODES) :]))
    if options.json:
        write([environment("host_times", cpu=False) | {"rows": rows}], options.json)


if __name__ == "__main__":
    main()
