"""How two properties of token types go together, with intervals by resampling types.

Letters: n types, R resamples.
"""

from __future__ import annotations

import math

import torch
from scipy import stats
from torch import Tensor

from anisoscope.errors import broken
from anisoscope.evidence.tables import stream
from anisoscope.geometry.results import Estimate

FEWEST_TYPES = 8
_AT_ONCE = 1 << 23  # numbers of a block of resamples


def correlations(
    x_n: Tensor, y_n: Tensor, held_n: Tensor | None = None, *, resamples: int = 999, seed: int = 0
) -> dict[str, Estimate]:
    """Pearson's and Spearman's correlation of ``x`` and ``y`` over types, and both with ``held`` held fixed.

    Intervals are percentiles over bootstrap samples of types; ranks are those of the whole, resampled with their types.
    With ``held`` the partial correlations come too, under names that end in ``, norm held``.

    >>> import torch
    >>> x = torch.arange(50.0)
    >>> found = correlations(x, -x.square())
    >>> round(float(found["spearman"]), 6), float(found["pearson"]) > -1
    (-1.0, True)
    """
    columns = [x_n, y_n] if held_n is None else [x_n, y_n, held_n]
    if any(column.ndim != 1 or len(column) != len(x_n) for column in columns):
        raise broken("correlated numbers must be one a type", [tuple(c.shape) for c in columns], "pass equal lengths")
    values = torch.stack([column.double() for column in columns], 1)
    n = len(values)
    names = ("pearson", "spearman") if held_n is None else ("pearson", "spearman", *_PARTIAL)
    if n < FEWEST_TYPES:
        note = f"{n} types, and a correlation needs {FEWEST_TYPES}"
        return {name: Estimate(value=math.nan, n=n, note=note) for name in names}
    if not bool(torch.isfinite(values).all()):
        raise broken("correlated numbers must be finite", "NaN or Inf", "leave out types without a count")
    ranks = torch.stack([torch.from_numpy(stats.rankdata(column.numpy())) for column in values.cpu().T], 1)
    found: dict[str, Estimate] = {}
    for name, table in (("pearson", values.cpu()), ("spearman", ranks)):
        whole = _matrix(table, torch.ones(1, n, dtype=torch.float64, device="cpu"))
        drawn = torch.cat([_matrix(table, weights) for weights in _resampled(n, resamples, seed)])
        found[name] = _estimate(whole[:, 0, 1], drawn[:, 0, 1], n, "one side is constant over types")
        if held_n is not None:
            why = "with the norm held, nothing is left to vary on one side"
            found[f"{name}, norm held"] = _estimate(_partial(whole), _partial(drawn), n, why)
    return {name: found[name] for name in names}


_PARTIAL = ("pearson, norm held", "spearman, norm held")


def _resampled(n: int, resamples: int, seed: int) -> list[Tensor]:
    """How often each type comes in each bootstrap sample ``(R, n)``, in blocks."""
    generator, blocks = stream(seed, "types"), []
    for start in range(0, resamples, block := max(1, _AT_ONCE // n)):
        rows = min(block, resamples - start)
        drawn = torch.randint(0, n, (rows, n), generator=generator, device="cpu")
        zeros = torch.zeros(rows, n, dtype=torch.float64, device="cpu")
        blocks.append(zeros.scatter_add_(1, drawn, _ONE.expand(rows, n)))
    return blocks


_ONE = torch.ones(1, 1, dtype=torch.float64, device="cpu")


def _matrix(table_nk: Tensor, weights_Rn: Tensor) -> Tensor:
    """Correlation matrices ``(R, k, k)`` under weights."""
    z = table_nk - table_nk.mean(0)
    z = z / z.square().mean(0).sqrt().clamp_min(torch.finfo(z.dtype).tiny)
    k = z.shape[1]
    total = weights_Rn.sum(1)
    mean = weights_Rn @ z / total[:, None]
    second = (weights_Rn @ (z[:, :, None] * z[:, None]).flatten(1) / total[:, None]).reshape(-1, k, k)
    covariance = second - mean[:, :, None] * mean[:, None]
    scale = covariance.diagonal(dim1=1, dim2=2).clamp_min(0).sqrt()
    return covariance / (scale[:, :, None] * scale[:, None])


def _partial(r: Tensor) -> Tensor:
    """Of the first two with the third held fixed."""
    rest = ((1 - r[:, 0, 2].square()) * (1 - r[:, 1, 2].square())).clamp_min(0).sqrt()
    return (r[:, 0, 1] - r[:, 0, 2] * r[:, 1, 2]) / rest


def _estimate(value: Tensor, drawn_R: Tensor, n: int, undefined: str) -> Estimate:
    number = float(value)
    if math.isnan(number) or math.isinf(number):
        return Estimate(value=math.nan, n=n, note=undefined)
    drawn_R = drawn_R[torch.isfinite(drawn_R)]
    if drawn_R.numel() < 19:
        return Estimate(value=number, n=n)
    low, high = torch.quantile(drawn_R, torch.tensor([0.025, 0.975], dtype=drawn_R.dtype, device="cpu")).tolist()
    return Estimate(value=number, low=low, high=high, n=n)
