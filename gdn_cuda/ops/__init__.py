"""The operators, one module per family, under the module names of earlier versions."""

import sys

from .. import structured
from ..structured import displacement as structured_displacement
from ..structured import l2
from ..structured import toeplitz as structured_toeplitz
from . import gdn

__all__ = ["gdn", "l2", "structured", "structured_displacement", "structured_toeplitz"]

for _name in __all__:
    sys.modules[f"{__name__}.{_name}"] = globals()[_name]
