"""The pairing null of the weight view: which δ meets which x.

Letters: n sequences, T positions, D width of x, E columns of δ, K rank, R permutations.

``G = Σ_i δ_i x_iᵀ`` lies in the span of the inputs whatever the error signal is, so a proxy of the inputs captures
much of it by construction. Permuting sequences keeps both clouds and their dependence inside a sequence, and breaks
only who meets whom.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from anisoscope.errors import broken
from anisoscope.evidence.all_pairs import AllPairs, few_enough
from anisoscope.evidence.tables import permutations
from anisoscope.geometry.subspace import Subspace
from anisoscope.stats.given import as_tensor
from anisoscope.stats.moments import Moments

PERMUTATIONS = 199
_JACKKNIFE_PERMUTATIONS = 49
_CHUNK_COLUMNS = 512
_CHUNK_NUMBERS = 1 << 22


@dataclass(frozen=True, slots=True, eq=False)
class PairingNull:
    """Mean energies under permutation, the same with one sequence left out, and the draws behind p."""

    inside: float
    outside: float
    left_out: tuple[Tensor, Tensor] | None
    draws: tuple[Tensor, Tensor] | None

    @property
    def share(self) -> float:
        """Mean share: the ratio of the means; NaN if nothing met anything."""
        total = self.inside + self.outside
        return self.inside / total if total > 0 else math.nan


def pairing_share(
    inputs: Any, deltas: Any, subspace: Subspace, *, strata: Any = None, generator: torch.Generator | None = None
) -> float:
    """Mean energy share of the gradient when δ and x are paired at random.

    Rows or ``Moments``: tokens are permuted, in closed form; ``strata`` is a label a row, or a mapping from stratum to
    a pair of ``Moments``, and tokens are then permuted inside strata. ``(n, T, ·)``: sequences are permuted, in closed
    form or, with integer ``strata (n, T)`` (−1 for padding), over 199 permutations.
    """
    seed = 0 if generator is None else generator.initial_seed()
    if isinstance(inputs, Tensor | np.ndarray) and inputs.ndim == 3 and not isinstance(strata, Mapping):
        return sequence_null(_tensor(inputs), _tensor(deltas), subspace.basis, strata=strata, seed=seed).share
    return token_null(inputs, deltas, subspace.basis, strata=strata, draws=0, seed=seed).share


def sequence_null(
    inputs_nTD: Tensor,
    deltas_nTE: Tensor,
    basis_DK: Tensor,
    *,
    strata: Any = None,
    draws: int = PERMUTATIONS,
    seed: int = 0,
) -> PairingNull:
    """Sequences permuted: closed form without strata, by permutations with them."""
    x, d, strata_nT = _checked(inputs_nTD, deltas_nTE, basis_DK, strata)
    basis = basis_DK.to(x)
    inside, outside = x @ basis, x - (x @ basis) @ basis.T
    n = x.shape[0]
    if few_enough(n, d.shape[2], sum(basis.shape)):
        return _by_pairs(torch.cat([inside, outside], 2), basis.shape[1], d, strata_nT, draws, seed)
    drawn = None
    if draws or strata_nT is not None:
        pi_Rn = permutations(n, max(draws, PERMUTATIONS if strata_nT is not None else 0), seed)
        drawn = _drawn_energies(inside, outside, d, pi_Rn, strata_nT)
    if strata_nT is None:
        means, lost = zip(*(_closed_form(part.double(), d.double()) for part in (inside, outside)), strict=True)
        return PairingNull(float(means[0]), float(means[1]), (lost[0], lost[1]) if n > 2 else None, drawn)
    assert drawn is not None, "strata have no closed form, so draws were made"
    pi_Rn = permutations(n, max(draws, PERMUTATIONS), seed)[:_JACKKNIFE_PERMUTATIONS]
    lost = _left_out_by_closing(inside, outside, d, pi_Rn, strata_nT) if n > 2 else None
    # The mean is over all permutations; p uses as many as were asked for, as every fold does.
    asked = (drawn[0][:draws], drawn[1][:draws]) if draws else None
    return PairingNull(float(drawn[0].mean()), float(drawn[1].mean()), lost, asked)


def _by_pairs(x_nTC: Tensor, rank: int, d_nTE: Tensor, strata_nT: Tensor | None, draws: int, seed: int) -> PairingNull:
    n, length, _ = d_nTE.shape
    every = torch.arange(n, device=d_nTE.device)

    def met(s: int) -> Tensor:
        if strata_nT is None:
            return d_nTE
        return _met_deltas(d_nTE, every, *_partners(strata_nT, torch.full_like(every, s), every, length))

    pairs = AllPairs.of(x_nTC, rank, met)
    if strata_nT is None:
        (inside, outside), lost = pairs.mean()
        drawn = pairs.drawn(permutations(n, draws, seed).to(d_nTE.device)) if draws else None
        return PairingNull(float(inside), float(outside), lost, drawn)
    pi_Rn = permutations(n, max(draws, PERMUTATIONS), seed).to(d_nTE.device)
    inside_R, outside_R = pairs.drawn(pi_Rn)
    lost = pairs.left_out_by_closing(pi_Rn[:_JACKKNIFE_PERMUTATIONS]) if n > 2 else None
    asked = (inside_R[:draws], outside_R[:draws]) if draws else None
    return PairingNull(float(inside_R.mean()), float(outside_R.mean()), lost, asked)


def token_null(
    inputs: Any, deltas: Any, basis_DK: Tensor, *, strata: Any = None, draws: int = PERMUTATIONS, seed: int = 0
) -> PairingNull:
    """Tokens permuted: closed form from moments; draws only from rows. Anti-conservative on dependent tokens."""
    rows = not isinstance(inputs, Moments | Mapping) and not isinstance(strata, Mapping)
    pairs = _token_strata(inputs, deltas, strata)
    basis = basis_DK.to(pairs[0][0].mean.device)
    for x, _ in pairs:
        if x.width != basis.shape[0]:
            raise broken(f"inputs must have the width of the subspace, {basis.shape[0]}", x.width, "use one site")
    mean_ED = sum(torch.outer(d.mean * d.count, x.mean) for x, d in pairs)
    assert isinstance(mean_ED, Tensor), "there is at least one stratum"
    inside, total = float((mean_ED @ basis).square().sum()), float(mean_ED.square().sum())
    for x, d in pairs:
        spread = float(d.scatter.diagonal().sum()) / max(float(x.count) - 1, 1.0)
        inside += spread * float(((x.scatter @ basis) * basis).sum())
        total += spread * float(x.scatter.diagonal().sum())
    drawn = _drawn_tokens(_tensor(inputs), _tensor(deltas), basis, strata, draws, seed) if rows and draws else None
    return PairingNull(inside, total - inside, None, drawn)


def _tensor(x: Any) -> Tensor:
    x = as_tensor(x).detach()
    if not x.is_floating_point():
        raise broken("inputs and deltas must be of a real floating-point dtype", x.dtype, "convert with .float()")
    if not bool(torch.isfinite(x).all()):
        raise broken("inputs and deltas must be finite", "NaN or Inf", "skip this observation")
    return x.to(torch.promote_types(x.dtype, torch.float32))


def _checked(x: Tensor, d: Tensor, basis_DK: Tensor, strata: Any) -> tuple[Tensor, Tensor, Tensor | None]:
    if x.ndim != 3 or d.ndim != 3 or x.shape[:2] != d.shape[:2]:
        raise broken(
            "pairing by sequence needs inputs (n, T, D) and deltas (n, T, E) of the same sequences",
            f"{tuple(x.shape)} and {tuple(d.shape)}",
            "stack the sequences, or use pairing-token",
        )
    if x.shape[2] != basis_DK.shape[0]:
        raise broken(f"inputs must have the width of the subspace, {basis_DK.shape[0]}", x.shape[2], "use one site")
    if x.shape[0] < 2:
        raise broken("pairing by sequence needs at least 2 sequences", x.shape[0], "observe more sequences")
    if strata is None:
        return x, d, None
    strata_nT = as_tensor(strata).to(x.device)
    if strata_nT.shape != x.shape[:2] or strata_nT.is_floating_point():
        raise broken(f"strata must be integers of shape {tuple(x.shape[:2])}", tuple(strata_nT.shape), "one a token")
    return x, d, strata_nT


def _closed_form(x_nTD: Tensor, d_nTE: Tensor) -> tuple[Tensor, Tensor]:
    """Mean of ``‖Σ_s D_π(s)ᵀX_s‖²`` over all permutations, for all sequences and with each left out."""
    n = x_nTD.shape[0]
    sum_x, sum_d = x_nTD.sum(0), d_nTE.sum(0)
    xx_nTT, dd_nTT = x_nTD @ x_nTD.mT, d_nTE @ d_nTE.mT

    def mean(size: int, sx: Tensor, sd: Tensor, xx: Tensor, dd: Tensor) -> Tensor:
        within = (dd - sd @ sd.mT / size) * (xx - sx @ sx.mT / size)
        return (sd.mT @ sx).square().sum((-2, -1)) / size**2 + within.sum((-2, -1)) / (size - 1)

    whole = mean(n, sum_x, sum_d, xx_nTT.sum(0), dd_nTT.sum(0))
    if n < 3:
        return whole, whole.new_empty(0)
    lost = torch.cat(
        [
            mean(
                n - 1,
                sum_x - x_nTD[s : s + 1],
                sum_d - d_nTE[s : s + 1],
                xx_nTT.sum(0) - xx_nTT[s],
                dd_nTT.sum(0) - dd_nTT[s],
            )
            for s in range(n)
        ]
    )
    return whole, lost


def _partners(strata_nT: Tensor | None, own_n: Tensor, met_n: Tensor, length: int) -> tuple[Tensor, Tensor]:
    """For each position of the sequences ``own``, the position it meets in ``met``, and whether there is one.

    The j-th position of a stratum meets the ``(j mod m)``-th of the m positions of that stratum.
    """
    if strata_nT is None:
        place = torch.arange(length, device=own_n.device).expand(len(own_n), -1)
        return place, torch.ones_like(place, dtype=torch.bool)
    partner = torch.zeros(len(own_n), length, dtype=torch.int64, device=own_n.device)
    valid = torch.zeros_like(partner, dtype=torch.bool)
    for label in torch.unique(strata_nT).tolist():
        if label < 0:
            continue
        mine, theirs = strata_nT[own_n] == label, strata_nT[met_n] == label
        size = theirs.sum(1, keepdim=True)
        positions = torch.argsort(~theirs, dim=1, stable=True)  # those of the stratum first, in order
        rank = (mine.long().cumsum(1) - 1).clamp_min(0) % size.clamp_min(1)
        here = mine & (size > 0)
        partner = torch.where(here, positions.gather(1, rank), partner)
        valid |= here
    return partner, valid


def _met_deltas(d_nTE: Tensor, met_n: Tensor, partner: Tensor, valid: Tensor) -> Tensor:
    index = partner[..., None].expand(-1, -1, d_nTE.shape[2])
    return d_nTE[met_n].gather(1, index) * valid[..., None]


def _drawn_energies(
    inside: Tensor, outside: Tensor, d_nTE: Tensor, pi_Rn: Tensor, strata_nT: Tensor | None
) -> tuple[Tensor, Tensor]:
    """``‖G_π Q‖²`` and the rest for each permutation, several to one matrix product."""
    n, length, columns = d_nTE.shape
    flat = torch.cat([inside, outside], 2).flatten(0, 1)
    energies = []
    for pi_cn in pi_Rn.to(d_nTE.device).split(max(1, _CHUNK_COLUMNS // columns)):
        own = torch.arange(n, device=pi_cn.device).repeat(len(pi_cn))
        met = _met_deltas(d_nTE, pi_cn.flatten(), *_partners(strata_nT, own, pi_cn.flatten(), length))
        stacked = met.reshape(len(pi_cn), n * length, columns).permute(1, 0, 2).flatten(1)
        squares = (stacked.T @ flat).double().square().reshape(len(pi_cn), columns, -1)
        energies.append(torch.stack([s.sum((1, 2)) for s in squares.split([inside.shape[2], outside.shape[2]], 2)]))
    together = torch.cat(energies, 1)
    return together[0], together[1]


def _left_out_by_closing(
    inside: Tensor, outside: Tensor, d_nTE: Tensor, pi_Rn: Tensor, strata_nT: Tensor
) -> tuple[Tensor, Tensor]:
    """Mean energies without each sequence: every permutation is closed over the gap (s is skipped in its cycle)."""
    n, length, columns = d_nTE.shape
    x = torch.cat([inside, outside], 2).double()
    d = d_nTE.double()
    rank = inside.shape[2]
    total = torch.zeros(2, n, dtype=torch.float64, device=d.device)

    def met(first_cn: Tensor, second_cn: Tensor) -> Tensor:
        first, second = first_cn.flatten(), second_cn.flatten()
        terms = _met_deltas(d, second, *_partners(strata_nT, first, second, length)).mT @ x[first]
        return terms.reshape(*first_cn.shape, columns, -1)

    for pi_cn in pi_Rn.to(d.device).split(max(1, _CHUNK_NUMBERS // (n * columns * x.shape[2]))):
        own_cn = torch.arange(n, device=d.device).expand_as(pi_cn)
        back_cn = pi_cn.argsort(1)
        terms = met(own_cn, pi_cn)  # U_s = D_π(s)ᵀ X_s
        closing = met(back_cn, pi_cn)  # what the neighbours of s in its cycle give once s is gone
        other = terms.gather(1, back_cn[..., None, None].expand_as(terms))
        fixed = (pi_cn == own_cn)[..., None, None]
        left = terms.sum(1, keepdim=True) - terms - torch.where(fixed, 0.0, other - closing)
        squares = left.square().sum((0, 2))
        total += torch.stack([squares[:, :rank].sum(1), squares[:, rank:].sum(1)])
    total /= len(pi_Rn)
    return total[0], total[1]


def _token_strata(inputs: Any, deltas: Any, strata: Any) -> list[tuple[Moments, Moments]]:
    if isinstance(strata, Mapping):
        pairs = list(strata.values())
        if not pairs:
            raise broken("strata must hold at least one pair of Moments", "an empty mapping", "pass one a stratum")
    elif isinstance(inputs, Moments) or isinstance(deltas, Moments):
        if not (isinstance(inputs, Moments) and isinstance(deltas, Moments)) or strata is not None:
            raise broken(
                "pairing from moments needs Moments on both sides, and strata as a mapping to pairs of them",
                f"{type(inputs).__name__} and {type(deltas).__name__}",
                "pass both as Moments or as rows",
            )
        pairs = [(inputs, deltas)]
    else:
        x, d = _tensor(inputs).double(), _tensor(deltas).double()
        if x.ndim != 2 or d.ndim != 2 or x.shape[0] != d.shape[0]:
            raise broken(
                "pairing by token needs rows of inputs and deltas of the same tokens",
                f"{tuple(x.shape)} and {tuple(d.shape)}",
                "flatten both, or use pairing",
            )
        labels = _one_a_row(strata, x.shape[0])
        if labels.shape[0] != x.shape[0]:
            raise broken(
                f"strata must be one label a row ({x.shape[0]})", labels.shape[0], "pass a label for each token"
            )
        labels = labels.to(x.device)
        pairs = [
            (Moments.of(x[labels == label], higher=False), Moments.of(d[labels == label], higher=False))
            for label in torch.unique(labels).tolist()
            if label >= 0
        ]
        if not pairs:
            raise broken("strata must leave at least one token", "all −1", "−1 is for padding")
    for x, d in pairs:
        if float(x.count) != float(d.count):
            raise broken(
                "both sides of a stratum must count the same tokens",
                f"{float(x.count)} and {float(d.count)}",
                "build both from the same rows",
            )
    return pairs


def _one_a_row(strata: Any, rows: int) -> Tensor:
    return torch.zeros(rows, dtype=torch.int64, device="cpu") if strata is None else as_tensor(strata).reshape(-1)


def _drawn_tokens(
    x_ND: Tensor, d_NE: Tensor, basis: Tensor, strata: Any, draws: int, seed: int
) -> tuple[Tensor, Tensor]:
    labels = _one_a_row(strata, len(x_ND)).cpu()
    groups = [torch.nonzero(labels == label)[:, 0] for label in torch.unique(labels).tolist() if label >= 0]
    d_NE = d_NE * (labels >= 0).to(d_NE)[:, None]
    basis = basis.to(x_ND)
    along = x_ND @ basis
    flat = torch.cat([along, x_ND - along @ basis.T], 1)
    rank = basis.shape[1]
    inside, outside = [], []
    for draw in range(draws):
        order = torch.arange(len(x_ND), device="cpu")
        for number, rows in enumerate(groups):
            order[rows] = rows[permutations(len(rows), draws, seed + 7919 * number)[draw]]
        squares = (d_NE[order.to(d_NE.device)].T @ flat).double().square().sum(0)
        inside.append(squares[:rank].sum())
        outside.append(squares[rank:].sum())
    return torch.stack(inside), torch.stack(outside)
