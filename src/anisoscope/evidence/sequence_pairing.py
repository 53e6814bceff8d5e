"""The pairing null of the weight view: which δ meets which x.

Letters: n sequences, T positions, D width of x, E columns of δ, K rank, R permutations.

``G = Σ_i δ_i x_iᵀ`` lies in the span of the inputs whatever the error signal is, so a proxy of the inputs captures
much of it by construction. Permuting sequences keeps both clouds and their dependence inside a sequence, and breaks
only who meets whom. Sequences are permuted within classes that are alike: of one length, and of one number of positions
of each kind (``strata``: first, labelled, unlabelled). Where such numbers differ they are cut to a multiple of 8, the
observed gradient too: sequences of different length that met would tell length apart, not pairing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from anisoscope.errors import broken
from anisoscope.evidence.pairing_classes import Class, PairedSequences, PairingNull
from anisoscope.evidence.pairing_tokens import finite_tensor, token_null
from anisoscope.geometry.subspace import Subspace
from anisoscope.stats.as_tensor import as_tensor

CLASS_WIDTH = 8
SMALLEST_CLASS = 4
MOST_SEQUENCES = 128  # of a fold: all pairs of them are multiplied


def pairing_share(
    inputs: Any, deltas: Any, subspace: Subspace, *, strata: Any = None, generator: torch.Generator | None = None
) -> float:
    """Mean energy share of the gradient when δ and x are paired at random.

    Rows or ``Moments``: tokens are permuted, in closed form; ``strata`` is a label a row, or a mapping from stratum to
    a pair of ``Moments``, and tokens are then permuted inside strata. ``(n, T, ·)``: sequences are permuted within
    classes, in closed form; integer ``strata (n, T)`` say what kind each position is (−1 for padding).
    """
    seed = 0 if generator is None else generator.initial_seed()
    if isinstance(inputs, Tensor | np.ndarray) and inputs.ndim == 3 and not isinstance(strata, Mapping):
        x, d = finite_tensor(inputs), finite_tensor(deltas)
        return sequence_null(x, d, subspace.basis, strata=strata, draws=0, seed=seed).share
    return token_null(inputs, deltas, subspace.basis, strata=strata, draws=0, seed=seed).share


def sequence_null(
    inputs_nTD: Tensor,
    deltas_nTE: Tensor,
    basis_DK: Tensor,
    *,
    strata: Any = None,
    units: Tensor | None = None,
    draws: int = 999,
    seed: int = 0,
) -> PairingNull:
    """Sequences permuted within classes; ``units`` says which independent unit each sequence belongs to."""
    if inputs_nTD.ndim == 3 and inputs_nTD.shape[2] != basis_DK.shape[0]:
        raise broken(
            f"inputs must have the width of the subspace, {basis_DK.shape[0]}", inputs_nTD.shape[2], "use one site"
        )
    return paired_sequences(inputs_nTD, deltas_nTE, strata=strata, units=units, draws=draws, seed=seed).null(basis_DK)


def paired_sequences(
    inputs_nTD: Tensor,
    deltas_nTE: Tensor,
    *,
    strata: Any = None,
    units: Tensor | None = None,
    draws: int = 999,
    seed: int = 0,
) -> PairedSequences:
    """Sequences in classes, ready to be set against any proxy of their inputs."""
    x, d, strata_nT = _checked(inputs_nTD, deltas_nTE, strata)
    n = len(x)
    place = torch.arange(n, device=x.device) if units is None else units.to(x.device)
    classes = [c for c in classes_of(x, d, strata_nT) if len(c.members) >= min(SMALLEST_CLASS, n)]
    return PairedSequences(classes, place, draws, seed, n - sum(len(c.members) for c in classes))


def classes_of(x_nTD: Tensor, d_nTE: Tensor, strata_nT: Tensor | None) -> list[Class]:
    """Sequences that are alike, each cut to the positions that all of its class have, in the order of their kinds."""
    n = min(len(x_nTD), MOST_SEQUENCES)
    x_nTD, d_nTE = x_nTD[:n], d_nTE[:n]
    if strata_nT is None or bool((strata_nT[:n] == strata_nT[:1]).all() & (strata_nT[:1] >= 0).all()):
        return [Class(torch.arange(n, device=x_nTD.device), x_nTD, d_nTE)]
    strata_nT = strata_nT[:n]
    labels = [label for label in torch.unique(strata_nT).tolist() if label >= 0]
    counts_nL = torch.stack([(strata_nT == label).sum(1) for label in labels], 1) if labels else None
    if counts_nL is None:
        return []
    equal_L = (counts_nL == counts_nL[:1]).all(0)
    kept_nL = torch.where(equal_L, counts_nL, counts_nL // CLASS_WIDTH * CLASS_WIDTH)
    kinds, which = torch.unique(kept_nL, dim=0, return_inverse=True)
    found = []
    for number, sizes in enumerate(kinds.tolist()):
        members = torch.nonzero(which == number)[:, 0]
        places = []
        for label, size in zip(labels, sizes, strict=True):
            first = torch.argsort(
                (strata_nT[members] != label).to(torch.int8), dim=1, stable=True
            )  # of this kind first
            places.append(first[:, :size])
        place = torch.cat(places, 1)
        if place.shape[1]:
            x, d = (t[members].gather(1, place[..., None].expand(-1, -1, t.shape[2])) for t in (x_nTD, d_nTE))
            found.append(Class(members, x, d))
    return found


def _checked(x: Tensor, d: Tensor, strata: Any) -> tuple[Tensor, Tensor, Tensor | None]:
    if x.ndim != 3 or d.ndim != 3 or x.shape[:2] != d.shape[:2]:
        raise broken(
            "pairing by sequence needs inputs (n, T, D) and deltas (n, T, E) of the same sequences",
            f"{tuple(x.shape)} and {tuple(d.shape)}",
            "stack the sequences, or use pairing-token",
        )
    if x.shape[0] < 2:
        raise broken("pairing by sequence needs at least 2 sequences", x.shape[0], "observe more sequences")
    if strata is None:
        return x, d, None
    strata_nT = as_tensor(strata).to(x.device)
    if strata_nT.shape != x.shape[:2] or strata_nT.is_floating_point():
        raise broken(f"strata must be integers of shape {tuple(x.shape[:2])}", tuple(strata_nT.shape), "one a token")
    return x, d, strata_nT
