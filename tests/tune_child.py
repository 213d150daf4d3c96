"""`python tune_child.py MODE ARGUMENTS…`: the command line on an H200 that is not there.

Everything is real but the GPU: a call gives what the reference computes, and the time of a choice is made up from its name.
MODE: "sound"; "wrong", where one candidate leaves something out; "elsewhere", where the attempted choice is not what ran;
"slow", where no choice gains more than the noise over the heuristic's.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import torch
from torch import Tensor

import gdn_cuda
from gdn_cuda import _C, cli
from gdn_cuda.cli import tune
from gdn_cuda.operators.tunable import Case

if TYPE_CHECKING:
    from gdn_cuda._C import DeviceTraits

MODE = sys.argv[1]
GAIN = 0.99 if MODE == "slow" else 0.8


class FakeRunner:
    def __init__(self, case: Case, device: DeviceTraits, repeats: int):
        torch.manual_seed(0)
        self._case, self._device = case, device
        self._expected = getattr(gdn_cuda, case.operator)(**case.arguments("cpu"))

    def _decides(self) -> str:
        """The choice that a call would be run with now, as the core tells it."""
        return _C.tuned_explain(self._case.kernel, self._case.problem, self._device)

    def result(self) -> Tensor:
        choice, result = self._decides(), self._expected.clone()
        if MODE == "wrong" and "turns = 2" in choice:
            result[..., -1] = torch.nan
        return result

    def decided(self) -> bool:
        return MODE != "elsewhere" and _C.tuned_attempted(self._case.kernel, self._device["ordinal"])

    def time_us(self) -> float:
        return 10 * GAIN if "turns = 4" in self._decides() else 10


def main() -> int:
    tune.device_traits = lambda: _C.device_traits_for_arch("sm_90a")
    tune.make_runner = FakeRunner
    return cli.main(sys.argv[2:])


if __name__ == "__main__":
    sys.exit(main())
