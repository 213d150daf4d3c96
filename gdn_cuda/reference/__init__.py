"""The operators in plain torch: what runs on CPU tensors, and what the tests of the kernels compare with.

Operators have the signature that they have in `gdn_cuda`; `chunked_forward` always returns its checkpoints. The pieces of the
chunked form return what the operators write. The oracles of structured matrices and of S4 are modules of their own.
"""

import sys

from ..gdn import operators as _operators
from ..gdn import pieces as _pieces
from ..gdn.reference import chunked, recurrent
from ..gdn.reference_operators import chunk_local_cumsum, compute_o, compute_u_w, seq_state_update
from ..operators import reference_of
from ..structured import reference_cauchy as structured_cauchy
from ..structured import reference_displacement as structured_displacement
from ..structured import reference_s4 as s4
from ..structured import reference_s4d as s4d
from ..structured import reference_toeplitz as structured_toeplitz
from ..structured import reference_vandermonde as structured_vandermonde

chunked_forward = reference_of(_operators.chunked_forward)
fused_decode = reference_of(_operators.fused_decode)
fused_gdn_gating = reference_of(_operators.fused_gdn_gating)
recurrent_forward = reference_of(_operators.recurrent_forward)
transpose_to_mn_major = reference_of(_pieces.transpose_to_mn_major)

__all__ = [
    "chunk_local_cumsum",
    "chunked",
    "chunked_forward",
    "compute_o",
    "compute_u_w",
    "fused_decode",
    "fused_gdn_gating",
    "recurrent",
    "recurrent_forward",
    "s4",
    "s4d",
    "seq_state_update",
    "structured_cauchy",
    "structured_displacement",
    "structured_toeplitz",
    "structured_vandermonde",
    "transpose_to_mn_major",
]

for _name in ("s4", "s4d", "structured_cauchy", "structured_displacement", "structured_toeplitz", "structured_vandermonde"):
    sys.modules[f"{__name__}.{_name}"] = globals()[_name]  # `from gdn_cuda.reference.s4 import …` works, too
