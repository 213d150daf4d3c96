"""Short causal convolutions and Hyena's, and what stands beside them in a layer.

Arithmetic is fp32, on CPU tensors fp64 where the inputs are. Results are the same in every run, gradients included. Wrong input
raises ValueError, which names function, argument, expected and got, before anything is launched or written.
"""

from .hyena_long import hyena_long
from .hyena_medium import hyena_medium
from .hyena_short import hyena_short

__all__: list[str] = ["hyena_long", "hyena_medium", "hyena_short"]
