"""The operators in plain torch, which run on CPU tensors; the tests compare kernels with them.

Every declared operator that has a reference is here, with the signature that it has in `gdn_cuda`; `chunked_forward` always
returns its checkpoints. The references of the chunked form's single steps return the tensors that their operators write. The
oracles of structured matrices and of S4 are modules of their own.
"""

import sys

from .. import conv, layers, scan  # noqa: F401  (its operators are declared)
from ..gdn.reference import chunked, recurrent
from ..gdn.reference_operators import chunk_local_cumsum, compute_o, compute_u_w, seq_state_update
from ..operators import reference_of
from ..operators.declare import DECLARATIONS
from ..structured import reference_cauchy as structured_cauchy
from ..structured import reference_displacement as structured_displacement
from ..structured import reference_s4 as s4
from ..structured import reference_s4d as s4d
from ..structured import reference_toeplitz as structured_toeplitz
from ..structured import reference_vandermonde as structured_vandermonde

_declared = {name: reference_of(each.function) for name, each in DECLARATIONS.items() if each.reference is not None}
globals().update(_declared)

__all__ = [
    "chunk_local_cumsum",
    "chunked",
    "compute_o",
    "compute_u_w",
    "recurrent",
    "s4",
    "s4d",
    "seq_state_update",
    "structured_cauchy",
    "structured_displacement",
    "structured_toeplitz",
    "structured_vandermonde",
]
__all__ += _declared

for _name in ("s4", "s4d", "structured_cauchy", "structured_displacement", "structured_toeplitz", "structured_vandermonde"):
    sys.modules[f"{__name__}.{_name}"] = globals()[_name]  # `from gdn_cuda.reference.s4 import …` works, too
