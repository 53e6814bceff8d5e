"""The pairing null with tokens permuted: closed form from moments, draws from rows. Letters: N tokens, D and E widths.

It is anti-conservative where tokens of a sequence depend on one another (false positives of 0.82 on pure noise), so it
is no part of the ladder.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from anisoscope.errors import broken
from anisoscope.evidence.pairing_classes import PairingNull
from anisoscope.evidence.random_tables import permutations
from anisoscope.stats.as_tensor import as_tensor
from anisoscope.stats.moments import Moments

PERMUTATIONS = 199


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
    drawn = (
        _drawn_tokens(finite_tensor(inputs), finite_tensor(deltas), basis, strata, draws, seed)
        if rows and draws
        else None
    )
    return PairingNull(inside, total - inside, draws=drawn)


def finite_tensor(x: Any) -> Tensor:
    """A real floating-point tensor without NaN or Inf."""
    x = as_tensor(x).detach()
    if not x.is_floating_point():
        raise broken("inputs and deltas must be of a real floating-point dtype", x.dtype, "convert with .float()")
    if not bool(torch.isfinite(x).all()):
        raise broken("inputs and deltas must be finite", "NaN or Inf", "skip this observation")
    return x.to(torch.promote_types(x.dtype, torch.float32))


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
        x, d = finite_tensor(inputs).double(), finite_tensor(deltas).double()
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
