"""How two properties of token types go together, with intervals over types. Letters: n types, k columns.

Spearman's correlation leads: its interval covers whatever the laws of the two properties are. Pearson's has one only
where neither has heavy tails: on raw counts, which follow Zipf's law, any interval from 200 types misses too often.
The kurtosis of n numbers is at most n, so fewer than 30 cannot show that their tails are light: none there either.
"""

from __future__ import annotations

import math

import torch
from scipy import stats
from torch import Tensor

from anisoscope.errors import broken
from anisoscope.evidence.inference import Spread
from anisoscope.geometry.results import Estimate

FEWEST_TYPES = 10
HEAVIEST = 6.0  # kurtosis; 3 is that of a Gaussian, 9 of an exponential law
FEWEST_FOR_TAILS = 30
_PARTIAL = ("pearson, norm held", "spearman, norm held")
_NEARLY_ONE = 1 - 1e-9


def correlations(x_n: Tensor, y_n: Tensor, held_n: Tensor | None = None) -> dict[str, Estimate]:
    """Spearman's and Pearson's correlation of ``x`` and ``y`` over types, and both with ``held`` held fixed.

    Intervals are by the delete-one jackknife of Fisher's z with effective degrees of freedom, for Spearman's
    at least as wide as Bonett & Wright (2000) have it; ranks are those of the whole. With ``held`` the partial
    correlations come too, under names that end in ``, norm held``.

    >>> import torch
    >>> x = torch.arange(50.0)
    >>> found = correlations(x, -x.square())
    >>> round(float(found["spearman"]), 6), float(found["pearson"]) > -1
    (-1.0, True)
    """
    columns = [x_n, y_n] if held_n is None else [x_n, y_n, held_n]
    if any(column.ndim != 1 or len(column) != len(x_n) for column in columns):
        raise broken("correlated numbers must be one a type", [tuple(c.shape) for c in columns], "pass equal lengths")
    values = torch.stack([column.double() for column in columns], 1).cpu()
    n = len(values)
    names = ("spearman", "pearson") if held_n is None else ("spearman", "pearson", *_PARTIAL)
    if n < FEWEST_TYPES:
        note = f"{n} types, and a correlation needs {FEWEST_TYPES}"
        return {name: Estimate(value=math.nan, n=n, note=note) for name in names}
    if not bool(torch.isfinite(values).all()):
        raise broken("correlated numbers must be finite", "NaN or Inf", "leave out types without a count")
    ranks = torch.stack([torch.from_numpy(stats.rankdata(column.numpy())) for column in values.T], 1)
    refused = None
    if n < FEWEST_FOR_TAILS:
        refused = f"no interval: {n} types do not show whether tails are heavy; read Spearman's correlation"
    elif max(_kurtosis(column) for column in values.T) > HEAVIEST:
        refused = "no interval: heavy tails; read Spearman's correlation"
    found: dict[str, Estimate] = {}
    for name, table in (("spearman", ranks), ("pearson", values)):
        whole, lost = _matrices(table)
        about = {"ranked": name == "spearman", "refused": refused if name == "pearson" else None}
        why = "one side is constant over types"
        found[name] = _estimate(whole[0, 1], lost[:, 0, 1], n, why, **about)
        if held_n is not None:
            why = "with the norm held, nothing is left to vary on one side"
            parts = _partial(whole[None])[0], _partial(lost)
            found[f"{name}, norm held"] = _estimate(*parts, n, why, **about)
    return {name: found[name] for name in names}


def _kurtosis(column_n: Tensor) -> float:
    off = column_n - column_n.mean()
    square = float(off.square().mean())
    return float(off.pow(4).mean()) / square**2 if square > 0 else 0.0


def _matrices(table_nk: Tensor) -> tuple[Tensor, Tensor]:
    """Correlation matrix of all rows ``(k, k)``, and without each of them ``(n, k, k)``."""
    n = len(table_nk)
    z = table_nk - table_nk.mean(0)
    z = z / z.square().mean(0).sqrt().clamp_min(torch.finfo(z.dtype).tiny)
    total, products = z.sum(0), z.T @ z
    counts = torch.full((n + 1,), n - 1, dtype=z.dtype, device="cpu")
    counts[0] = n
    mean = torch.cat([total[None], total - z]) / counts[:, None]
    second = torch.cat([products[None], products - z[:, :, None] * z[:, None]])
    covariance = second / counts[:, None, None] - mean[:, :, None] * mean[:, None]
    scale = covariance.diagonal(dim1=1, dim2=2).clamp_min(0).sqrt()
    matrices = covariance / (scale[:, :, None] * scale[:, None])
    return matrices[0], matrices[1:]


def _partial(r: Tensor) -> Tensor:
    """Of the first two with the third held fixed."""
    rest = ((1 - r[:, 0, 2].square()) * (1 - r[:, 1, 2].square())).clamp_min(0).sqrt()
    return (r[:, 0, 1] - r[:, 0, 2] * r[:, 1, 2]) / rest


def _estimate(value: Tensor, lost_n: Tensor, n: int, undefined: str, *, ranked: bool, refused: str | None) -> Estimate:
    number = float(value)
    if math.isnan(number) or math.isinf(number):
        return Estimate(value=math.nan, n=n, note=undefined)
    if refused is not None:
        return Estimate(value=number, n=n, note=refused)
    if not bool(torch.isfinite(lost_n).all()):
        return Estimate(value=number, n=n)
    spread = Spread.of(lost_n.clamp(-_NEARLY_ONE, _NEARLY_ONE).atanh())
    if ranked:
        known = math.sqrt((1 + number * number / 2) / (n - 3))
        spread = Spread(max(spread.error, known), max(spread.df, n - 3.0))
    ends = spread.interval(math.atanh(max(-_NEARLY_ONE, min(_NEARLY_ONE, number))))
    if ends is None:
        return Estimate(value=number, n=n)
    return Estimate(value=number, low=math.tanh(ends[0]), high=math.tanh(ends[1]), n=n, floor=0.0)
