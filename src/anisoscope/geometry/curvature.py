"""Curvature of the manifold a cloud lies on: extrinsic, local, with an interval that admits its bias.

Letters: N rows, D width, d tangent dimension, P points judged, K neighbours of each, m = d(d+1)/2, S squares reported.

Few neighbours see noise; many see past the point, with a bias that grows as the square of the radius. So curvature is
estimated on a ladder of neighbour counts, each twice the one before. Larger rungs tell the bias of a rung: by their
difference, over how much the square of the radius grew. The rung with the narrowest interval, error and bias
together, is reported. Where that interval allows anything from flat to folded the value is NaN, with a note.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from scipy import stats
from torch import Tensor

from anisoscope.errors import broken
from anisoscope.geometry.cloud import Cloud
from anisoscope.geometry.neighbours import nearest_to
from anisoscope.geometry.results import Estimate
from anisoscope.geometry.sample_points import JudgedPoints, Rows, as_directions, judged, no_spread, overlap_error
from anisoscope.geometry.second_form import SecondForms, coefficients, directions_in_noise, quadratics, second_forms
from anisoscope.geometry.subspace import Subspace

_MOST_NEIGHBOURS = 512
_NOISE_LIMIT = 0.5  # rms distance off the fitted surface over rms distance along it
_OWN_LIMIT = 0.2  # variance along a tangent direction that is not the bend of the others
_FOLD_LIMIT = 0.5  # curvature times radius above which a neighbourhood is no graph of a quadratic
_EPS = torch.finfo(torch.float64).eps
_ROUNDINGS = 64
_LEAST_GROWTH = 0.1
_PAST_BEST = 1.5
_NO_DIRECTION = 1e-6
_FEWEST_POINTS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Curvature:
    """Curvature of a cloud, in inverse units of its rows. ``float(curvature)`` gives ``rms``.

    ``rms`` is the root mean square of ``‖B(u,u)‖`` over points and unit tangent directions, ``mean`` that of the norm
    of the mean curvature vector ``tr B/d`` over points. ``along`` is ``rms`` over the directions given alone, ``ratio``
    is ``along`` over ``rms``: above 1 the manifold bends more along them than along a random tangent direction.
    ``neighbours`` were used around each point, ``radius`` is the mean distance to the last of them.
    """

    rms: Estimate
    mean: Estimate
    along: Estimate | None
    ratio: Estimate | None
    dim: int
    neighbours: int
    radius: float

    def __float__(self) -> float:
        return self.rms.value

    def __str__(self) -> str:
        return f"rms {self.rms}, mean {self.mean}"


def curvature(
    x: Cloud,
    *,
    dim: int,
    neighbours: int | None = None,
    points: Rows | None = None,
    along: Subspace | Cloud | None = None,
    generator: torch.Generator | None = None,
) -> Curvature:
    """Curvature of the ``dim``-dimensional manifold the rows lie on, from its second fundamental form ``B``.

    ``neighbours`` is the number used around each point, more than ``1 + d + d(d+1)/2``; None lets the data choose.
    ``points`` are the rows to judge, all by default: leave out those within a neighbourhood of a boundary, where a fit
    is one-sided. At most 1 024 of them are judged, drawn by ``generator`` (None = seed 0). ``along`` are directions, a
    ``Subspace`` or the columns of a matrix, each projected on the tangent at each point and normalised.

    Copies of rows are left out. Intervals are for the root mean square over the points asked for: they hold the scatter
    over points, with neighbourhoods that share rows, the bias of the radius, and the flattening by noise along the
    tangent. A value is NaN where noise reaches across the neighbourhood along a tangent direction, where a direction is
    only the bend of the others, or where the interval says nothing.

    >>> from anisoscope.testing import sphere
    >>> found = curvature(sphere(2000, dim=2, width=5, radius=2.0), dim=2)
    >>> found.rms.low <= 0.5 <= found.rms.high, round(float(found), 1)
    (True, 0.5)
    """
    cloud = judged(x, dim=dim, points=points, generator=generator)
    rows = cloud.x.shape[0]
    counts = _ladder(neighbours, dim, rows)
    directions_Dr = None if along is None else as_directions(along, cloud.x)
    if cloud.problem or len(counts) < 2:
        return _untold(cloud.problem or _no_ladder(neighbours, rows), cloud.n, dim, counts[0], along is not None)
    rungs = _rungs(cloud, counts, dim, directions_Dr)
    if not any(cloud.spreads(rung.forms.along) for rung in rungs):
        raise no_spread(dim)
    told = [rung for rung in rungs[:-1] if rung.problem is None]
    best = min(told or rungs[-2:-1], key=lambda rung: rung.half_widths[0])
    if best.problem:
        return _untold(best.problem, cloud.n, dim, best.count, along is not None)
    return _reported(best, cloud, dim)


def _ladder(neighbours: int | None, dim: int, rows: int) -> list[int]:
    """Neighbour counts to fit, ascending; the last serves only to tell the bias of the one before."""
    fewest = coefficients(dim) + 1
    if rows <= fewest:
        raise broken(
            f"rows for dim {dim} must number {fewest + 1} distinct ones", rows, "lower dim or pass more points"
        )
    if neighbours is None:
        most = min(rows // 2, max(_MOST_NEIGHBOURS, 8 * fewest))
        counts = [2 * (fewest - 1)]
        while 2 * counts[-1] <= most:
            counts.append(2 * counts[-1])
        return counts
    if not fewest <= neighbours < rows:
        raise broken(
            f"neighbours must lie in {fewest}…{rows - 1} for dim {dim} and {rows} distinct rows",
            neighbours,
            "a quadratic has 1 + d + d(d+1)/2 coefficients; pass None to let the data choose",
        )
    return [neighbours, min(2 * neighbours, rows - 1)] if neighbours < rows - 1 else [neighbours]


def _no_ladder(neighbours: int | None, rows: int) -> str:
    if neighbours is None:
        return f"cannot tell: {rows} distinct rows are too few to tell curvature from its bias"
    return f"cannot tell: {neighbours} neighbours are all of {rows} distinct rows, and more are needed to tell the bias"


@dataclass(frozen=True, slots=True, eq=False)
class _Rung:
    """Fits on K neighbours: means over points of the squares reported, and the two parts of their 95 % intervals."""

    forms: SecondForms
    count: int
    radius: float
    means: tuple[float, ...]
    errors: tuple[float, ...]
    biases: tuple[float, ...]
    problem: str | None

    @property
    def half_widths(self) -> tuple[float, ...]:
        return tuple(error + bias for error, bias in zip(self.errors, self.biases, strict=True))


def _rungs(cloud: JudgedPoints, counts: list[int], dim: int, directions_Dr: Tensor | None) -> list[_Rung]:
    distances_PK, indices_PK = nearest_to(cloud.x, cloud.points, min(counts[-1], cloud.x.shape[0] - 1))
    distances_PK = distances_PK / cloud.unit
    rungs: list[_Rung] = []
    forms = None
    for count in counts:
        near_PK = indices_PK[:, :count]
        forms = second_forms(
            cloud.x, cloud.points, near_PK, distances_PK[:, :count], dim=dim, unit=cloud.unit, before=forms
        )
        rung = _rung(forms, near_PK, float(distances_PK[:, count - 1].mean()), cloud, directions_Dr)
        rungs = [_with_bias(below, rung) for below in rungs] + [rung]
        told = [below.half_widths[0] for below in rungs[:-1] if below.problem is None]
        if told and told[-1] > _PAST_BEST * min(told):
            break  # bias has taken over, and wider rungs cost the most
    return rungs


def _rung(
    forms: SecondForms, near_PK: Tensor, radius: float, cloud: JudgedPoints, directions_Dr: Tensor | None
) -> _Rung:
    rows, count, good_P = cloud.x.shape[0], near_PK.shape[1], forms.solved
    scores = list(_squares(forms, directions_Dr)[:, good_P])
    if directions_Dr is not None:  # the quotient along / rms, linearised about its value
        total, quotient = scores[0].mean(), scores[2].mean() / scores[0].mean()
        scores.append(quotient + (scores[2] - quotient * scores[0]) / total)
    means = tuple(float(score.mean()) for score in scores)
    independent = min(float(good_P.sum()), rows / count)
    quantile = float(stats.t.ppf(0.975, max(1.0, independent - 1)))
    errors = [quantile * overlap_error(score, near_PK[good_P], rows) for score in scores]
    # Rows are rounded, and so is every step of a fit; without this a perfect plane would be curved beyond doubt.
    of_rows, of_fits = torch.finfo(cloud.x.dtype).eps * cloud.size / radius**2, _ROUNDINGS * _EPS / radius
    rounding = of_rows**2 + of_fits**2
    # Noise along the tangent blurs u and flattens B by about 2c, and its square by 4c; the quotient keeps its value.
    for place, mean in enumerate(means[:3]):
        errors[place] += 4 * _blur(forms) * abs(mean) + rounding
    return _Rung(forms, count, radius, means, tuple(errors), (0.0,) * len(means), _problem(forms, count))


def _blur(forms: SecondForms) -> float:
    """c: variance off the fit, per direction, over the smallest variance along the tangent."""
    return _noise(forms) / max(float(forms.along[:, -1].mean()), 1e-300)


def _noise(forms: SecondForms) -> float:
    width, dim = forms.tangent.shape[1:]
    return forms.residual / (width - dim)


def _problem(forms: SecondForms, count: int) -> str | None:
    width, dim = forms.tangent.shape[1:]
    points, solved = forms.solved.shape[0], int(forms.solved.sum())
    if points < _FEWEST_POINTS:
        return f"cannot tell: an interval needs {_FEWEST_POINTS} points, {points} were judged"
    # Fewer neighbours leave too little of any direction beside a quadratic.
    if dim > 1 and count >= 2 * coefficients(dim) and float(forms.own.median()) < _OWN_LIMIT:
        return (
            f"cannot tell: among {count} neighbours, one of {dim} tangent directions is the bend of the others; "
            "lower dim"
        )
    if solved < max(_FEWEST_POINTS, points / 2):
        return f"cannot tell: {count} neighbours do not fix a quadratic at {points - solved} of {points} points"
    noisy = directions_in_noise(forms.along, _noise(forms), width, count)
    if forms.residual > _NOISE_LIMIT**2 * forms.spread or noisy == dim:
        ratio = math.sqrt(forms.residual / forms.spread)
        return f"cannot tell: rows lie off the surface by {ratio:.2g} of the radius of {count} neighbours"
    if noisy:
        return (
            f"cannot tell: among {count} neighbours, rows hardly spread beyond their noise along {noisy} of {dim} "
            "tangent directions; lower dim"
        )
    return None


def _with_bias(rung: _Rung, above: _Rung) -> _Rung:
    """Admit the bias that a larger rung betrays: it grows as the square of the radius by weight.

    The largest over all rungs above counts: one difference may vanish by chance, and the rung be chosen for it.
    """
    growth = max(above.forms.extent / rung.forms.extent - 1, _LEAST_GROWTH)
    pairs = zip(rung.biases, rung.means, above.means, strict=True)
    return replace(rung, biases=tuple(max(bias, abs(high - low) / growth) for bias, low, high in pairs))


def _squares(forms: SecondForms, directions_Dr: Tensor | None) -> Tensor:
    """``rms²``, ``mean²`` and, for directions given, ``along²`` at each point; unbiased, so they may be negative.

    Over unit u, ``‖B(u,u)‖²`` has the mean ``(2‖B‖² + ‖tr B‖²)/(d(d+2))``.
    """
    table_Pmm, dim = forms.table, forms.tangent.shape[2]
    i, j = torch.triu_indices(dim, dim, device=table_Pmm.device)
    twice_m = torch.where(i == j, 1.0, 2.0).to(table_Pmm.dtype)
    trace_m = (i == j).to(table_Pmm.dtype)
    norm_P = (table_Pmm.diagonal(dim1=1, dim2=2) * twice_m).sum(1)
    trace_P = (table_Pmm @ trace_m) @ trace_m
    squares = [(2 * norm_P + trace_P) / (dim * (dim + 2)), trace_P / dim**2]
    if directions_Dr is not None:
        projected_Prd = (forms.tangent.mT @ directions_Dr).mT
        length_Pr = torch.linalg.vector_norm(projected_Prd, dim=2)
        seen_Pr = length_Pr > _NO_DIRECTION * torch.linalg.vector_norm(directions_Dr, dim=0)
        unit_Prd = projected_Prd / torch.where(seen_Pr, length_Pr, 1.0)[..., None]
        form_Prm = 2 * quadratics(unit_Prd)
        square_Pr = ((form_Prm @ table_Pmm) * form_Prm).sum(2)
        squares.append((square_Pr * seen_Pr).sum(1) / seen_Pr.sum(1).clamp_min(1))
    return torch.stack(squares)


def _reported(rung: _Rung, cloud: JudgedPoints, dim: int) -> Curvature:
    estimates = [
        _root(mean, half, cloud, rung.radius) for mean, half in zip(rung.means[:3], rung.half_widths, strict=False)
    ]
    ratio = None
    if len(rung.means) == 4:
        ratio = _root(rung.means[3], rung.half_widths[3], replace(cloud, unit=1.0), 0.0)
        if not rung.means[0] - rung.half_widths[0] > 0:
            ratio = Estimate(value=math.nan, n=cloud.n, note="cannot tell: the curvature itself may be 0")
    return Curvature(
        rms=estimates[0],
        mean=estimates[1],
        along=estimates[2] if len(estimates) > 2 else None,
        ratio=ratio,
        dim=dim,
        neighbours=rung.count,
        radius=rung.radius * cloud.unit,
    )


def _root(mean: float, half: float, cloud: JudgedPoints, radius: float) -> Estimate:
    """Square roots of a mean square and its interval; NaN where a range from 0 reaches the curvature of a fold.

    A mean square below 0 is 0 less an error, so the interval is laid about 0: cut off, it would end too early. One that
    no error explains says that the noise is not what was taken off.
    """
    if mean + half < 0:
        note = "cannot tell: noise that was taken off exceeds all bending and its error; dim may be too high"
        return Estimate(value=math.nan, n=cloud.n, note=note)
    mean = max(mean, 0.0)
    low, high = math.sqrt(max(mean - half, 0.0)), math.sqrt(mean + half)
    value, note = math.sqrt(mean), None
    if low == 0 and high * radius > _FOLD_LIMIT:
        value, note = math.nan, f"cannot tell: anything from 0 to {high / cloud.unit:.2g} agrees with these rows"
    return Estimate(value=value / cloud.unit, low=low / cloud.unit, high=high / cloud.unit, n=cloud.n, note=note)


def _untold(note: str, n: int, dim: int, count: int, along: bool) -> Curvature:
    nothing = Estimate(value=math.nan, n=n, note=note)
    return Curvature(
        rms=nothing,
        mean=nothing,
        along=nothing if along else None,
        ratio=nothing if along else None,
        dim=dim,
        neighbours=count,
        radius=math.nan,
    )
