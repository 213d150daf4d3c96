"""Modules that hold Toeplitz matrices and generators: results, gradients, state dictionaries, errors."""

from __future__ import annotations

import pytest
import torch
from helpers import rel_rms
from torch import nn

from gdn_cuda.nn import DisplacementMV, ToeplitzInverse, ToeplitzMV, ToeplitzSolve
from gdn_cuda.reference import structured_displacement, structured_toeplitz


def drawn(rng: torch.Generator, n: int = 6) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    c, r, x = (torch.randn(n, generator=rng, dtype=torch.float64) for _ in range(3))
    c[0] += 4
    return c, r, x


def test_results(rng: torch.Generator) -> None:
    c, r, x = drawn(rng)
    G, H = torch.randn(2, 6, 2, generator=rng, dtype=torch.float64)
    expected = structured_toeplitz.toeplitz_solve(c, r, x)
    assert rel_rms(ToeplitzMV(c, r)(x), structured_toeplitz.toeplitz_matvec(c, r, x)) < 1e-14
    assert rel_rms(ToeplitzMV(c, r, transpose=True)(x), structured_toeplitz.toeplitz_matvec_transpose(c, r, x)) < 1e-14
    assert rel_rms(ToeplitzSolve(c, r)(x), expected) < 1e-14
    assert rel_rms(ToeplitzSolve(c, r).solve_ex(x)[0], expected) < 1e-14
    assert rel_rms(ToeplitzSolve(c)(x), structured_toeplitz.toeplitz_solve_symmetric(c, x)) < 1e-14
    assert ToeplitzSolve(torch.ones(3)).solve_ex(torch.ones(3))[1].item() == 2
    assert rel_rms(ToeplitzInverse(c, r)(x), expected) < 1e-13
    out = torch.empty_like(x)
    assert ToeplitzInverse(c, r)(x, out=out) is out and rel_rms(out, expected) < 1e-13
    for disp_type in (0, 1, 2):
        theirs = structured_displacement.displacement_matvec(G, H, x, disp_type)
        assert rel_rms(DisplacementMV(G, H, disp_type)(x), theirs) < 1e-13


def test_parameters_get_gradients_and_buffers_do_not(rng: torch.Generator) -> None:
    c, r, x = drawn(rng)
    for module_class in (ToeplitzMV, ToeplitzSolve, ToeplitzInverse):
        module = module_class(nn.Parameter(c.clone()), r)
        assert [name for name, _ in module.named_parameters()] == ["c"]
        module(x).sum().backward()
        assert module.c.grad is not None and module.c.grad.any()
        assert not list(module_class(c, r).parameters())
    assert set(ToeplitzInverse(c, r).state_dict()) == {"gs_u", "gs_v"}


def test_state_dictionaries(rng: torch.Generator) -> None:
    (c, r, x), (other, _, _) = drawn(rng), drawn(rng)
    for module_class in (ToeplitzMV, ToeplitzSolve, ToeplitzInverse):
        module, loaded = module_class(c, r), module_class(other.clone(), r.clone())
        assert not torch.equal(module(x), loaded(x))
        loaded.load_state_dict(module.state_dict())
        assert torch.equal(module(x), loaded(x))
        assert module_class(c, r).float()(x.float()).dtype == torch.float32


def test_errors_say_what_is_wrong() -> None:
    with pytest.raises(ValueError, match=r"^ToeplitzSolve: r: expected \(…, 3\) as c has, got \(1,\)$"):
        ToeplitzSolve(torch.ones(3), torch.ones(1))
    assert ToeplitzMV(torch.ones(3), torch.ones(1))(torch.ones(1)).tolist() == [1, 1, 1]
    with pytest.raises(ValueError, match=r"^ToeplitzSolve: c: expected a real or complex .* \(…, n\), got torch.int64 \(3,\)$"):
        ToeplitzSolve(torch.ones(3).long())
    with pytest.raises(ValueError, match=r"^DisplacementMV: H: expected .* \(…, n, r\), got torch.float32 \(3,\)$"):
        DisplacementMV(torch.ones(3, 1), torch.ones(3))
    with pytest.raises(ValueError, match=r"^DisplacementMV: H: expected \(…, n, r\) as G has \(3, 1\), got \(3, 2\)$"):
        DisplacementMV(torch.ones(3, 1), torch.ones(3, 2))
    with pytest.raises(ValueError, match=r"^DisplacementMV: disp_type: expected one of 0 .*, got 7$"):
        DisplacementMV(torch.ones(3, 1), torch.ones(3, 1), 7)
    with pytest.raises(torch.linalg.LinAlgError, match="gs_compute_generators: c, r: "):
        ToeplitzInverse(torch.ones(3), torch.ones(3))
