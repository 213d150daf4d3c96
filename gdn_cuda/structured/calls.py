"""Typical calls of the family's operators, for the command `explain`: gdn_cuda/operators/calls.py documents the notation."""

from ..operators.calls import typical

SUMS = {"rows": 1024, "poles": 64, "points": 16384, "L": 16384}
SYSTEMS = {"systems": 64, "n": 1024, "k": 1}

_SQUARE = "c, r, b: systems n"
_SQUARE_MANY = "c, r: systems n; b: systems n k"

CALLS = {
    "cauchy_kernel": typical(SUMS, "v: rows poles; omega: points; lambd: poles", dtype="f32"),
    "cauchy_conj": typical(SUMS, "v: rows poles; z: points; w: rows poles", dtype="c64"),
    "log_vandermonde": typical(SUMS, "v, x: rows poles; L = L", dtype="c64"),
    "log_vandermonde_transpose": typical(SUMS, "u: rows L f32; v, x: rows poles; L = L", dtype="c64"),
    "toeplitz_matvec": typical(SYSTEMS, "c, r, x: systems n", "c, r: systems n; x: systems n k", dtype="f32"),
    "toeplitz_matvec_transpose": typical(SYSTEMS, "c, r, x: systems n", "c, r: systems n; x: systems n k", dtype="f32"),
    "toeplitz_solve": typical(SYSTEMS, _SQUARE, _SQUARE_MANY, dtype="f32"),
    "toeplitz_solve_ex": typical(SYSTEMS, _SQUARE, _SQUARE_MANY, dtype="f32"),
    "toeplitz_solve_symmetric": typical(SYSTEMS, "c, b: systems n", "c: systems n; b: systems n k", dtype="f32"),
    "toeplitz_solve_symmetric_ex": typical(SYSTEMS, "c, b: systems n", "c: systems n; b: systems n k", dtype="f32"),
    "gs_compute_generators": typical(SYSTEMS, "c, r: systems n", dtype="f32"),
    "toeplitz_inverse_apply": typical(
        SYSTEMS, "gs_u, gs_v, x: systems n", "gs_u, gs_v: systems n; x: systems n k", dtype="f32"
    ),
    "toeplitz_to_cauchy": typical(SYSTEMS, "c, r: systems n", dtype="f32"),
    "displacement_matvec": typical(SYSTEMS | {"rank": 2}, "G, H: systems n rank; x: systems n", dtype="f32"),
}
