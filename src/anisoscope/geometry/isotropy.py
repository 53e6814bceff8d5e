"""Isotropy of a cloud: how evenly it fills its directions.

Letters: N rows, D width; λ eigenvalues of the covariance, σ = √((N−1)λ) singular values of the centred cloud.

A measure that is a function of moments takes a ``Moments`` in place of the rows, one of singular values a ``Spectrum``
too; both ways give one number, since moments are float64 whatever the dtype of the rows. Every result answers
``float(...)``.
"""

from __future__ import annotations

import math
from typing import Literal

import torch
from sklearn.cluster import KMeans
from torch import Tensor

from anisoscope.errors import broken
from anisoscope.geometry.cloud import Cloud, Measurable, as_cloud
from anisoscope.geometry.cloud_parts import Spectrum
from anisoscope.geometry.noise import noise_effective_rank, noise_isoscore_star, noise_participation, noise_top_share
from anisoscope.geometry.results import CosineEstimate, Estimate, LocalEstimate
from anisoscope.stats.as_tensor import as_tensor
from anisoscope.stats.moments import Moments
from anisoscope.stats.unit_directions import Directions, UnitSum

NO_SPREAD = "all rows are equal, so no direction has any variance"
ONE_COLUMN = "one column has one direction: isotropy is undefined for D = 1"
SMALLEST_CLUSTER = 8


def top_share(x: Measurable | Spectrum, power: float = 2, centre: bool = True) -> Estimate:
    """Share of the largest singular value: ``σ₁^p / Σ σᵢ^p``.

    ``p = 2`` is the explained variance of the first component; the literature also uses ``p = 1`` and the uncentred
    cloud. ``floor`` is the share that isotropic noise of this shape reaches (Marchenko-Pastur edge over bulk).

    >>> import torch
    >>> x = torch.diag(torch.tensor([10.0, 2.0, 1.0]))
    >>> [round(float(top_share(x, power=p, centre=False)), 3) for p in (1, 2)]
    [0.769, 0.952]
    """
    if not power > 0:
        raise broken("power must be positive", power, "use 1 or 2")
    found = _spectrum(x)
    strengths = (found.centred if centre else found.uncentred) ** (power / 2)
    moments = found.moments
    n, total = _n(moments), float(strengths.sum())
    if total == 0:
        return Estimate(value=math.nan, n=n, note=NO_SPREAD if centre else "all rows are zero")
    floor = noise_top_share(n, moments.width, power, centre=centre)
    return Estimate(value=float(strengths[-1]) / total, n=n, floor=floor)


def effective_rank(x: Measurable | Spectrum, power: float = 1, centre: bool = True) -> Estimate:
    """``exp(H(s))``, the entropy rank of ``s = σ^p / Σσ^p`` (Roy & Vetterli 2007 at ``p = 1``), with ``0·log 0 = 0``.

    Singular values whose square is below ``4√D·ε`` of the largest (ε of float64: about 1e-7 of σ₁) are rounding and
    count as 0.

    >>> import torch
    >>> x = torch.cat([torch.eye(3), -torch.eye(3)])
    >>> round(float(effective_rank(x)), 6)
    3.0
    """
    if not power > 0:
        raise broken("power must be positive", power, "use 1 or 2")
    found = _spectrum(x)
    strengths = (found.centred if centre else found.uncentred) ** (power / 2)
    moments = found.moments
    n, total = _n(moments), strengths.sum()
    if float(total) == 0:
        return Estimate(value=math.nan, n=n, note=NO_SPREAD if centre else "all rows are zero")
    shares = strengths / total
    entropy = -torch.special.xlogy(shares, shares).sum()
    floor = noise_effective_rank(n, moments.width, power, centre=centre)
    return Estimate(value=float(entropy.exp()), n=n, floor=floor)


def participation_ratio(x: Measurable, corrected: bool = False) -> Estimate:
    """``(tr C)² / ‖C‖²``: how many directions the variance is spread over; no eigenvalues needed.

    The plain ratio is biased far down at small N. ``corrected=True`` estimates numerator and denominator without bias
    for any law with fourth moments (Himeno & Yamada 2014); it is never clipped and may exceed D.
    """
    return _participation(_moments(x, higher=corrected), corrected)


def isoscore(x: Measurable, corrected: bool = False) -> Estimate:
    """IsoScore (Rudman et al. 2022): ``(PR − 1)/(D − 1)``, 0 for a line and 1 for a ball.

    >>> import torch
    >>> round(float(isoscore(torch.cat([torch.eye(3), -torch.eye(3)]))), 6)
    1.0
    """
    moments = _moments(x, higher=corrected)
    return _rescaled(_participation(moments, corrected), moments.width)


def isoscore_star(
    x: Measurable, zeta: float = 0.2, reference: Literal["trace", "identity"] | Cloud = "trace"
) -> Estimate:
    """IsoScore* (Rudman & Eickhoff 2024): IsoScore of ``(1−ζ)C + ζC₀``.

    ``reference`` is ``C₀``: ``"trace"`` for ``(tr C/D)·I``, which makes the score free of scale, ``"identity"`` for
    the original, which makes small clouds look isotropic, or a ``(D, D)`` matrix (one matrix for both sides of a
    comparison).
    """
    if not 0 <= zeta <= 1:
        raise broken("zeta must lie in 0…1", zeta, "use 0 for no shrinkage")
    moments = _moments(x)
    covariance, n = moments.covariance, _n(moments)
    if isinstance(reference, str):
        if reference not in ("trace", "identity"):
            raise broken("reference must be 'trace', 'identity' or a matrix", repr(reference), "use 'trace'")
        scale = covariance.diagonal().mean() if reference == "trace" else 1.0
        reference_DD = scale * torch.eye(moments.width, dtype=covariance.dtype, device=covariance.device)
    else:
        reference = as_tensor(reference)
        if reference.shape != covariance.shape:
            raise broken(
                f"reference must have the shape {tuple(covariance.shape)}",
                tuple(reference.shape),
                "pass a covariance of the same width",
            )
        reference_DD = reference.to(covariance)
    shrunk = (1 - zeta) * covariance + zeta * reference_DD
    if moments.width > 1 and float(shrunk.diagonal().sum()) == 0:
        return Estimate(value=math.nan, n=n, note=NO_SPREAD)
    if moments.width == 1:
        return Estimate(value=math.nan, n=n, note=ONE_COLUMN)
    free_of_scale = isinstance(reference, str) and reference == "trace"
    floor = noise_isoscore_star(n, moments.width, zeta) if free_of_scale else None
    return Estimate(value=float(isoscore_of_covariance(shrunk)), n=n, floor=floor)


def isoscore_of_covariance(covariance_DD: Tensor) -> Tensor:
    """IsoScore as a differentiable function of a covariance: add it to a loss as it is.

    >>> import torch
    >>> c = torch.diag(torch.tensor([2.0, 1.0])).requires_grad_()
    >>> isoscore_of_covariance(c).backward()
    >>> (c.grad.diagonal().sign()).tolist()
    [-1.0, 1.0]
    """
    participation = covariance_DD.diagonal().sum().square() / covariance_DD.square().sum()
    return (participation - 1) / (covariance_DD.shape[0] - 1)


def average_cosine(x: Cloud | Directions | UnitSum) -> CosineEstimate:
    """Mean cosine over all pairs of rows, exact in O(ND): ``(‖Σu‖² − N)/(N(N−1))``, ``u`` the unit rows.

    Rows of norm zero have no direction; they are left out and counted. The interval is the delete-one jackknife over
    rows: it is too narrow where rows depend on one another, as tokens of one sequence do. From a ``UnitSum`` there is
    none.

    >>> import torch
    >>> float(average_cosine(torch.tensor([[2.0, 0.0], [5.0, 0.0], [0.0, 0.0]]))).is_integer()
    True
    """
    if isinstance(x, UnitSum):
        return _cosine_of_sum(x)
    directions = x if isinstance(x, Directions) else Directions.of(as_cloud(x))
    units, zeros = directions.units, int(directions.zeros)
    n = _n(units)
    if n < 2:
        return CosineEstimate(value=math.nan, n=n, zero_rows=zeros, note="fewer than two rows have a direction")
    sum_D = units.mean * n
    value = float((sum_D @ sum_D - n) / (n * (n - 1)))
    if n < 3:
        return CosineEstimate(value=value, n=n, zero_rows=zeros, floor=0.0)
    # U without row i is (‖s‖² − 2 u·s + 1 − (n−1)) / ((n−1)(n−2)): its spread over i is that of u·s.
    spread_of_projection = float(sum_D @ units.scatter @ sum_D)
    variance = (n - 1) / n * 4 * max(spread_of_projection, 0.0) / ((n - 1) * (n - 2)) ** 2
    half = 1.959964 * math.sqrt(variance)
    return CosineEstimate(value=value, low=value - half, high=value + half, n=n, zero_rows=zeros, floor=0.0)


def _cosine_of_sum(x: UnitSum) -> CosineEstimate:
    if x.count < 2:
        note = "fewer than two rows have a direction"
        return CosineEstimate(value=math.nan, n=x.count, zero_rows=x.zeros, note=note)
    value = (float(x.total @ x.total) - x.count) / (x.count * (x.count - 1))
    return CosineEstimate(value=value, n=x.count, zero_rows=x.zeros, floor=0.0)


def partition_ratio(x: Cloud, *, second: Tensor | None = None) -> Estimate:
    """``min Z(c)/max Z(c)``, ``Z(c) = Σ exp(c·x)``, ``c`` over eigenvectors of ``XᵀX``, both signs (Mu et al. 2018).

    Near 1 for an isotropic cloud. It is not free of scale. Summed as logarithms, so it is exact until the ratio itself
    is too small for a float. ``second`` is ``XᵀX``, where it is known.
    """
    x_ND = as_cloud(x).double()
    second_DD = Moments.of(x_ND, higher=False).second if second is None else second
    vectors_DD = torch.linalg.eigh(second_DD).eigenvectors
    both = torch.full((2 * x_ND.shape[1],), -math.inf, dtype=torch.float64, device=x_ND.device)
    for part in x_ND.split(4096):
        along_ND = part @ vectors_DD
        part_of_both = torch.cat([torch.logsumexp(along_ND, 0), torch.logsumexp(-along_ND, 0)])
        both = torch.logaddexp(both, part_of_both)
    log_ratio = float(both.min() - both.max())
    note = f"below the smallest float; its logarithm is {log_ratio:.1f}" if log_ratio < -700 else None
    return Estimate(value=math.exp(log_ratio), n=x_ND.shape[0], note=note)


def local_isotropy(x: Cloud, clusters: int = 16, seed: int = 0) -> LocalEstimate:
    """IsoScore inside k-means clusters, each corrected for its size, averaged by size; ``.whole`` is the global score.

    Clusters under 8 rows are too small for the correction; they are left out and counted.
    """
    x_ND = as_cloud(x)
    n, width = x_ND.shape
    if not 1 <= clusters <= n:
        raise broken(f"clusters must lie in 1…{n} for {n} rows", clusters, "lower clusters or pass more points")
    if width == 1:
        return LocalEstimate(value=math.nan, n=n, note=ONE_COLUMN)
    if bool((x_ND == x_ND[0]).all()):
        return LocalEstimate(value=math.nan, n=n, note=NO_SPREAD)
    centred = (x_ND.double() - x_ND.double().mean(0)) if x_ND.dtype != torch.float64 else x_ND - x_ND.mean(0)
    largest = torch.frexp(centred.abs().max()).exponent
    x_ND = torch.ldexp(centred, -largest).to(torch.promote_types(x_ND.dtype, torch.float32))  # free of scale and offset
    rows = x_ND.cpu().numpy()
    distinct = len({row.tobytes() for row in rows})
    labels = torch.from_numpy(KMeans(min(clusters, distinct), random_state=seed).fit(rows).labels_).to(x_ND.device)
    whole = float(isoscore(x_ND, corrected=n >= 4))
    scores, sizes, small = [], [], 0
    for label in range(int(labels.max()) + 1):
        member_ND = x_ND[labels == label]
        if member_ND.shape[0] < SMALLEST_CLUSTER:
            small += int(member_ND.shape[0] > 0)
            continue
        score = _score_of_few(member_ND) if member_ND.shape[0] < width else float(isoscore(member_ND, corrected=True))
        if math.isnan(score):  # a cluster of equal rows has no directions either
            small += 1
            continue
        scores.append(score)
        sizes.append(member_ND.shape[0])
    used = sum(sizes)
    value = sum(s * w for s, w in zip(scores, sizes, strict=True)) / used if used else math.nan
    note = None if used else f"no cluster has {SMALLEST_CLUSTER} distinct rows; lower clusters"
    return LocalEstimate(
        value=value,
        n=used,
        floor=1.0,
        note=note,
        whole=whole,
        clusters=len(scores),
        clusters_left_out=small,
        rows_left_out=n - used,
    )


def _score_of_few(x_ND: Tensor) -> float:
    """``isoscore(x, corrected=True)`` of fewer rows than columns, from inner products: no D × D matrix is made."""
    if bool((x_ND == x_ND[0]).all()):
        return math.nan
    y_ND = x_ND.double() - x_ND.double().mean(0)
    gram_NN = y_ND @ y_ND.T / (len(y_ND) - 1)
    norms_N = gram_NN.diagonal()
    square_of_trace, trace_of_square = _unbiased(
        float(len(y_ND)), norms_N.sum().square(), gram_NN.square().sum(), norms_N.square().sum() * (len(y_ND) - 1)
    )
    return (float(square_of_trace / trace_of_square) - 1) / (x_ND.shape[1] - 1)


def _participation(moments: Moments, corrected: bool) -> Estimate:
    n = _n(moments)
    square_of_trace, trace_of_square = _traces(moments, corrected)
    if float(moments.scatter.diagonal().sum()) == 0:
        return Estimate(value=math.nan, n=n, note=NO_SPREAD)
    floor = float(moments.width) if corrected else noise_participation(n, moments.width)
    note = "noisy below 8 rows" if corrected and n < 8 else None
    return Estimate(value=float(square_of_trace / trace_of_square), n=n, floor=floor, note=note)


def _moments(x: Measurable, *, higher: bool = False) -> Moments:
    if isinstance(x, Moments):
        if higher and not x.higher:
            raise broken(
                "the corrected measure must have the third and fourth sums",
                "Moments without them",
                "build them with Moments.of(x, higher=True)",
            )
        if _n(x) < 3:
            raise broken("a cloud must have at least 3 rows", _n(x), "pass more points")
        if not bool(torch.isfinite(x.scatter).all()):
            raise broken("moments must be finite", "NaN or Inf", "leave such rows out, or mask them")
        return x
    return Moments.of(as_cloud(x), higher=higher)


def _n(moments: Moments) -> int:
    return round(float(moments.count))


def _spectrum(x: Measurable | Spectrum) -> Spectrum:
    return x if isinstance(x, Spectrum) else Spectrum(_moments(x))


def _traces(moments: Moments, corrected: bool) -> tuple[Tensor, Tensor]:
    """``(tr Σ)²`` and ``tr Σ²``, plain or unbiased."""
    covariance = moments.covariance
    square_of_trace = covariance.diagonal().sum().square()
    trace_of_square = covariance.square().sum()
    if not corrected:
        return square_of_trace, trace_of_square
    n = float(moments.count)
    if n < 4:
        raise broken("the corrected measure must have at least 4 rows", int(n), "pass more points")
    assert moments.fourth is not None, "asked for with higher=True above"
    return _unbiased(n, square_of_trace, trace_of_square, moments.fourth / (n - 1))


def _unbiased(n: float, square_of_trace: Tensor, trace_of_square: Tensor, q: Tensor) -> tuple[Tensor, Tensor]:
    """Himeno & Yamada's (2014) estimates of ``(tr Σ)²`` and ``tr Σ²``; q is the mean fourth power of centred norms."""
    c = (n - 1) / (n * (n - 2) * (n - 3))
    return (
        c * (2 * trace_of_square + (n * n - 3 * n + 1) * square_of_trace - n * q),
        c * ((n - 1) * (n - 2) * trace_of_square + square_of_trace - n * q),
    )


def _rescaled(participation: Estimate, width: int) -> Estimate:
    if width == 1:
        return Estimate(value=math.nan, n=participation.n, note=ONE_COLUMN)
    floor = None if participation.floor is None else (participation.floor - 1) / (width - 1)
    return Estimate(
        value=(participation.value - 1) / (width - 1), n=participation.n, floor=floor, note=participation.note
    )
