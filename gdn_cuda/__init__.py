"""Gated Delta Net operators and structured matrices for PyTorch: kernels compiled at first use on NVIDIA GPUs, and the same
calls on CPU tensors.

Importing this touches neither CUDA nor a compiler. `python -m gdn_cuda doctor` says what a machine has and lacks.
"""

__version__ = "0.1.0"

from . import runtime as _runtime

_runtime.load_library()

from . import nn  # noqa: E402, F401  (the operators exist once the library is loaded)
from .ops.gdn import (  # noqa: E402
    InferenceMode,
    bf16_chunked_seq_state_update,
    bf16_gdn_chunked_compute_O,
    bf16_gdn_compute_u_w,
    chunk_local_cumsum_bf16,
    chunked_forward,
    fused_decode,
    fused_gdn_gating,
    recurrent_forward,
    transpose_to_mn_major,
)
from .ops.l2 import cauchy_pin_l2  # noqa: E402
from .ops.structured import (  # noqa: E402
    cauchy_conj,
    cauchy_kernel,
    log_vandermonde,
    log_vandermonde_transpose,
)
from .ops.structured_displacement import DisplacementType, displacement_matvec  # noqa: E402
from .ops.structured_toeplitz import (  # noqa: E402
    gs_compute_generators,
    toeplitz_inverse_apply,
    toeplitz_matvec,
    toeplitz_matvec_transpose,
    toeplitz_solve,
    toeplitz_solve_ex,
    toeplitz_solve_symmetric,
    toeplitz_solve_symmetric_ex,
    toeplitz_to_cauchy,
)
from .runtime import compile, init, warmup  # noqa: E402

__all__ = [
    "init",
    "compile",
    "warmup",
    "InferenceMode",
    "fused_gdn_gating",
    "recurrent_forward",
    "fused_decode",
    "chunked_forward",
    "transpose_to_mn_major",
    "chunk_local_cumsum_bf16",
    "bf16_gdn_compute_u_w",
    "bf16_chunked_seq_state_update",
    "bf16_gdn_chunked_compute_O",
    "cauchy_kernel",
    "cauchy_conj",
    "cauchy_pin_l2",
    "log_vandermonde",
    "log_vandermonde_transpose",
    "toeplitz_matvec",
    "toeplitz_matvec_transpose",
    "toeplitz_solve",
    "toeplitz_solve_ex",
    "toeplitz_solve_symmetric",
    "toeplitz_solve_symmetric_ex",
    "gs_compute_generators",
    "toeplitz_inverse_apply",
    "toeplitz_to_cauchy",
    "displacement_matvec",
    "DisplacementType",
    "__version__",
]
