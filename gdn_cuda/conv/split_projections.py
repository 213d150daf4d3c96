"""Views of the projections that Hyena's operators gate with."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from ..operators.schema import refuse, require_tensor

_NAME = "split_projections"
_LAYOUTS = ("interleaved", "heads", "thirds")


class Projections(NamedTuple):
    """The three views that `split_projections` returns, in this order."""

    x2: Tensor
    x1: Tensor
    v: Tensor


def split_projections(z: Tensor, n_heads: int = 1, layout: str = "interleaved", flip: bool = False) -> Projections:
    """Three projections in one tensor, as views (x2, x1, v): nothing is copied where a view exists.

    Formula:
        "interleaved": channels 0, 3, 6, … are x2, 1, 4, … x1, 2, 5, … v, as Evo 2 has them
        "heads": every one of n_heads heads has its x2, then its x1, then its v
        "thirds": the first D channels are x2, the next x1, the last v

    Shapes:
        z: (B, 3 D, L), or (B, 3 D) for a token
        x2, x1, v: (B, D, L) or (B, D), views of z

    Parameters:
        n_heads: of "heads"; divides D
        layout: "interleaved", "heads" or "thirds", see above
        flip: whether x1 and x2 change places (StripedHyena 2's hyena_flip_x1x2)

    Edge cases:
        "heads" with more than one head is a copy, as no strides describe channels in such runs; one head is "thirds".
        If z requires a gradient, torch refuses to change a view in place, because its backward is that of all three.

    Example:
        >>> x2, x1, v = gdn_cuda.split_projections(torch.arange(6.0).reshape(1, 6, 1))
        >>> x2.flatten(), x1.flatten(), v.flatten()
        (tensor([0., 3.]), tensor([1., 4.]), tensor([2., 5.]))
    """
    require_tensor(_NAME, "z", z)
    if z.dim() not in (2, 3) or z.shape[1] % 3:
        refuse(_NAME, "z", "(B, 3 D, L) or (B, 3 D)", str(tuple(z.shape)))
    if layout not in _LAYOUTS:
        refuse(_NAME, "layout", f"one of {', '.join(map(repr, _LAYOUTS))}", repr(layout))
    D = z.shape[1] // 3
    if not isinstance(n_heads, int) or n_heads < 1 or D % n_heads:
        refuse(_NAME, "n_heads", f"a number of heads that divides D={D}", str(n_heads))
    if layout == "interleaved":
        x2, x1, v = z.unflatten(1, (D, 3)).unbind(2)  # its backward is one stack; that of slices clears, copies and adds
    else:
        heads = n_heads if layout == "heads" else 1
        x2, x1, v = (part.flatten(1, 2) for part in z.unflatten(1, (heads, 3, D // heads)).unbind(2))
    return Projections(x1, x2, v) if flip else Projections(x2, x1, v)
