"""Linear CKA without bias: how alike two clouds of the same tokens are, up to rotation and scale.

Letters: N rows, D and E widths, G groups (sequences), T positions.

``HSIC = [‖XᵀY‖² − Σ kᵢlᵢ + (Σa)(Σb)/((N−1)(N−2)) − 2/(N−2)·Σ aᵢbᵢ] / (N(N−3))`` with ``kᵢ = ‖xᵢ‖²``,
``a = X(Σx) − k`` and the same ``l, b`` of Y is the estimator of Song et al. (2012) with linear kernels, in
O(ND) memory.
"""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from anisoscope.errors import broken
from anisoscope.geometry.cloud import Cloud, as_cloud
from anisoscope.geometry.jackknife import FEWEST_GROUPS, with_jackknife
from anisoscope.geometry.results import Estimate
from anisoscope.stats.as_tensor import as_tensor

DRAWS = 20


def linear_cka(x: Cloud, y: Cloud, *, groups: Any = None, seed: int = 0) -> Estimate:
    """Unbiased linear CKA of two clouds of the same tokens, rows aligned.

    ``x`` and ``y`` are ``(n, T, ·)``, or rows with ``groups``, the sequence of each row. Tokens of one sequence are not
    independent, which alone gives clouds something in common: ``floor`` is the CKA with the sequences of ``y``
    permuted (the exact mean over permutations where all have one length, the mean over seeded draws otherwise), and the
    interval is a jackknife over sequences. Without sequences neither is known.

    >>> import torch
    >>> x = torch.randn(16, 20, 8, generator=torch.Generator().manual_seed(0))
    >>> turned = 3 * x @ torch.linalg.qr(torch.randn(8, 8, generator=torch.Generator().manual_seed(1))).Q + 1
    >>> found = linear_cka(x, turned)
    >>> round(found.value, 6), abs(found.floor) < 0.01
    (1.0, True)
    """
    group_N = _groups(x, y, groups)
    first, second = (CKASide(_rows(cloud), group_N) for cloud in (x, y))
    if len(first.rows) != len(second.rows):
        raise broken(f"both clouds must have the same rows, {len(first.rows)}", len(second.rows), "align them by token")
    return cka_of(first, second, seed=seed)


class CKASide:
    """One cloud with the sums that every comparison with it needs; make it once for many comparisons."""

    def __init__(self, x_ND: Tensor, group_N: Tensor | None = None) -> None:
        if len(x_ND) < 4:
            raise broken("CKA without bias must have at least 4 rows", len(x_ND), "pass more tokens")
        rows = x_ND.double()
        rows = rows - rows.mean(0)  # changes nothing but rounding
        largest = float(rows.abs().max())
        self.rows = rows / largest if largest > 0 else rows
        self.groups = None if group_N is None else torch.unique(group_N.to(rows.device), return_inverse=True)[1]
        self.squares = self.rows.square().sum(1)
        self.total = self.rows.sum(0)

    @cached_property
    def count(self) -> Tensor:
        """Rows of each group."""
        assert self.groups is not None, "asked for with groups only"
        return torch.bincount(self.groups).double()

    @cached_property
    def own(self) -> tuple[float, Tensor | None]:
        """HSIC with itself, of all rows and without each group."""
        return hsic(self, self)

    def summed(self, values: Tensor) -> Tensor:
        """Sums over the rows of each group."""
        assert self.groups is not None, "asked for with groups only"
        return values.new_zeros(len(self.count), *values.shape[1:]).index_add_(0, self.groups, values)


def cka_of(x: CKASide, y: CKASide, *, seed: int = 0) -> Estimate:
    """CKA of two sides of the same rows and groups, with floor and interval."""
    n, scale = len(x.rows), math.sqrt(max(x.own[0], 0.0) * max(y.own[0], 0.0))
    if scale <= 0:
        note = "a cloud without spread, or of noise alone, has no CKA: its HSIC with itself is not positive"
        return Estimate(value=math.nan, n=n, note=note)
    whole, without = hsic(x, y)
    found = Estimate(value=whole / scale, n=n)
    if x.groups is None or without is None:
        return found
    found = replace(found, floor=_floor(x, y, scale, seed), units=float(len(x.count)))
    if len(x.count) < FEWEST_GROUPS:
        return replace(found, note=f"no interval: {len(x.count)} sequences, fewer than {FEWEST_GROUPS}")
    own = [side.own[1] for side in (x, y)]
    assert own[0] is not None, "its side has groups"
    assert own[1] is not None, "its side has groups"
    return with_jackknife(found, without / (own[0] * own[1]).clamp_min(0).sqrt())


def hsic(x: CKASide, y: CKASide) -> tuple[float, Tensor | None]:
    """HSIC without bias, and where rows have groups the same without each of them."""
    n = float(len(x.rows))
    cross_DE = x.rows.T @ y.rows
    a, b = (side.rows @ side.total - side.squares for side in (x, y))
    kl = x.squares * y.squares
    whole = float(_hsic(n, cross_DE.square().sum(), kl.sum(), a.sum(), b.sum(), (a * b).sum()))
    return whole, None if x.groups is None else _without_groups(x, y, cross_DE)


def _hsic(n: Any, cross: Any, kl: Any, a: Any, b: Any, ab: Any) -> Any:
    return (cross - kl + a * b / ((n - 1) * (n - 2)) - 2 / (n - 2) * ab) / (n * (n - 3))


def _without_groups(x: CKASide, y: CKASide, cross_DE: Tensor) -> Tensor:
    """Each sum without the rows of one group, from sums over groups; rows are never copied."""
    assert x.groups is not None, "asked for with groups only"
    left = len(x.rows) - x.count
    s_GD, r_GE = x.summed(x.rows), y.summed(y.rows)
    k_G, l_G, kl_G = x.summed(x.squares), y.summed(y.squares), x.summed(x.squares * y.squares)
    through_NE = x.rows @ cross_DE
    cross_G = cross_DE.square().sum() - 2 * x.summed((through_NE * y.rows).sum(1)) + _within(x, y)
    s_left, r_left = x.total - s_GD, y.total - r_GE  # (G, D), (G, E)
    a = s_left.square().sum(1) - (x.squares.sum() - k_G)
    b = r_left.square().sum(1) - (y.squares.sum() - l_G)
    # Σ aᵢbᵢ over the rows that stay, with aᵢ = xᵢ·s − kᵢ.
    own_x = (x.rows * s_left[x.groups]).sum(1)
    own_y = (y.rows * r_left[x.groups]).sum(1)
    both = ((s_left @ cross_DE) * r_left).sum(1) - x.summed(own_x * own_y)
    x_l = (s_left * (x.rows.T @ y.squares - x.summed(x.rows * y.squares[:, None]))).sum(1)
    y_k = (r_left * (y.rows.T @ x.squares - y.summed(y.rows * x.squares[:, None]))).sum(1)
    kl = (x.squares @ y.squares) - kl_G
    return _hsic(left, cross_G, kl, a, b, both - x_l - y_k + kl)


def _within(x: CKASide, y: CKASide) -> Tensor:
    """``‖X_gᵀY_g‖²`` of each group, through the products of its own rows."""
    assert x.groups is not None, "asked for with groups only"
    order = torch.argsort(x.groups, stable=True)
    parts = torch.split(order, [int(count) for count in x.count])
    return torch.stack([((x.rows[p] @ x.rows[p].T) * (y.rows[p] @ y.rows[p].T)).sum() for p in parts])


def _floor(x: CKASide, y: CKASide, scale: float, seed: int) -> float:
    """Mean CKA with the sequences of y permuted; positions stay aligned, and the longer of two is cut."""
    assert x.groups is not None, "asked for with groups only"
    lengths = x.count.unique()
    if len(lengths) == 1:
        return _mean_over_permutations(x, y, int(lengths[0])) / scale
    order = torch.argsort(x.groups, stable=True)
    parts = torch.split(order, [int(count) for count in x.count])
    generator = torch.Generator().manual_seed(seed)
    values = []
    for _ in range(DRAWS):
        dealt = torch.randperm(len(parts), generator=generator, device="cpu").tolist()
        pairs = [(p, parts[other]) for p, other in zip(parts, dealt, strict=True)]
        here = torch.cat([p[: len(q)] for p, q in pairs])
        there = torch.cat([q[: len(p)] for p, q in pairs])
        values.append(cka_of(CKASide(x.rows[here]), CKASide(y.rows[there])).value)
    return sum(values) / len(values)


def _mean_over_permutations(x: CKASide, y: CKASide, length: int) -> float:
    """In closed form: only the cross terms depend on who meets whom."""
    assert x.groups is not None, "asked for with groups only"
    order, n = torch.argsort(x.groups, stable=True), float(len(x.rows))
    sequences = len(x.count)
    x_GTD, y_GTE = (side.rows[order].reshape(sequences, length, -1) for side in (x, y))
    x_TD, y_TE = x_GTD.mean(0), y_GTE.mean(0)
    cross = sequences**2 * (x_TD.T @ y_TE).square().sum()
    if sequences > 1:  # Σ_s Σ_t ‖X̃_sᵀỸ_t‖² = tr(A·B), A = Σ X̃_sX̃_sᵀ and B = Σ Ỹ_tỸ_tᵀ (T×T)
        off_x, off_y = (part.transpose(0, 1).reshape(length, -1) for part in (x_GTD - x_TD, y_GTE - y_TE))
        cross = cross + ((off_x @ off_x.T) * (off_y @ off_y.T)).sum() / (sequences - 1)
    a, b = (side.rows @ side.total - side.squares for side in (x, y))

    def paired(p: Tensor, q: Tensor) -> Tensor:
        """Mean of ``Σ pᵢ q_π(i)``."""
        p_GT, q_GT = p[order].reshape(sequences, length), q[order].reshape(sequences, length)
        return (p_GT.mean(0) @ q_GT.mean(0)) * sequences

    return float(_hsic(n, cross, paired(x.squares, y.squares), a.sum(), b.sum(), paired(a, b)))


def _rows(x: Cloud) -> Tensor:
    rows = as_tensor(x)
    return as_cloud(rows.reshape(-1, rows.shape[-1]) if rows.ndim == 3 else rows, at_least=4)


def _groups(x: Cloud, y: Cloud, groups: Any) -> Tensor | None:
    shapes = [tuple(as_tensor(cloud).shape) for cloud in (x, y)]
    if len(shapes[0]) != len(shapes[1]) or shapes[0][:-1] != shapes[1][:-1]:
        raise broken("both clouds must be of the same tokens", f"{shapes[0]} and {shapes[1]}", "align them by token")
    if len(shapes[0]) == 3:
        n, length = shapes[0][:2]
        if groups is not None:
            raise broken("groups go with rows", "(n, T, D) and groups", "leave groups out, or pass rows")
        return torch.arange(n, device="cpu").repeat_interleave(length)
    if groups is None:
        return None
    found = as_tensor(groups).reshape(-1)
    if len(found) != shapes[0][0]:
        raise broken(f"groups must have one id for each of {shapes[0][0]} rows", len(found), "pass sequence ids")
    return found
