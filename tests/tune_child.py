"""`python tune_child.py MODE ARGUMENTS… [then ARGUMENTS…]`: the command line, once or several times, with a simulated H200.

Everything but the GPU is real: results come from the reference, times are derived from the names of the choices. MODE: "sound";
"wrong": one candidate gives a wrong result; "elsewhere": another choice than the attempted one runs; "slow": no choice is
faster than the heuristic's by more than the noise.
"""

from __future__ import annotations

import sys
from itertools import groupby
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from gdn_cuda import _C, cli
from gdn_cuda.cli import tune
from gdn_cuda.cli.tune_measure import results
from gdn_cuda.operators.tunable import Case

if TYPE_CHECKING:
    from gdn_cuda._C import DeviceTraits

MODE = sys.argv[1]
GAIN = 0.99 if MODE == "slow" else 0.8


class FakeRunner:
    def __init__(self, case: Case, device: DeviceTraits, repeats: int):
        torch.manual_seed(0)
        self._case, self._device = case, device
        self._expected = torch.cat([one.flatten() for one in results(case.function()(**case.arguments("cpu")))])

    def _decides(self) -> str:
        """The choice that the core would use for the call now."""
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
    commands = [list(words) for is_end, words in groupby(sys.argv[2:], "then".__eq__) if not is_end]
    return max(cli.main(command) for command in commands)


if __name__ == "__main__":
    sys.exit(main())
