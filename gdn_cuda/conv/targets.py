"""What the benchmarks of convolutions are held against: 95 % of the roof and a launch, 2.5 times forward for backward, and for
Hyena's operators, with the filters of Evo 2, times that are linear in tokens."""

from __future__ import annotations

from collections.abc import Mapping

from ..operators.measure import Target

OF_ROOF = Target(reach_share=0.95)


def of_forward(shape: str) -> Target:
    return Target(reach_of=(shape, 2.5))


def of_evo2(shape: tuple[int, int, int], reach_us: float, vortex_us: Mapping[int, float]) -> Target:
    """`reach_us`: at 65536 tokens. vortex (vtx 1.1.0), which rounds more often, by tokens."""
    batch, channels, tokens = shape
    if (batch, channels) != (1, 4096):
        return Target()
    return Target(reach_us=reach_us * tokens / 65536 + 5, peers_us={"vortex": vortex_us[tokens]})
