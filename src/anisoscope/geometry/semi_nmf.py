"""Semi-nonnegative matrix factorisation ``X ≈ Z·A`` with ``Z ≥ 0`` and ``A`` free: concepts and their codes.

Letters: N rows, D width, K concepts.

Ding, Li & Jordan (2010) proposed multiplicative updates, which crawl. Here ``A`` is the exact least-squares solution,
``Z`` is improved a column at a time (hierarchical alternating least squares; Cichocki et al. 2007), and the codes are
extrapolated along their last step as long as that helps (Ang & Gillis 2019); on real activations more than one sweep of
the codes for each ``A`` did not pay. A step that would raise the loss is undone and taken again without extrapolation,
so the loss never rises.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from anisoscope.errors import broken
from anisoscope.geometry.cloud import Cloud, as_cloud
from anisoscope.stats.as_tensor import as_tensor

RIDGE = 1e-13


@dataclass(frozen=True, slots=True)
class ConceptToken:
    """A token and its share of all the code that a concept received."""

    token: int
    share: float
    count: int


@dataclass(frozen=True, slots=True, eq=False)
class SemiNMF:
    """Concepts ``A (K, D)``, codes ``Z (N, K)`` and how the fit went.

    ``loss_trace`` is ``‖X − ZA‖²/‖X‖²`` after each iteration and never rises; ``converged`` says whether the loss had
    come to rest before the iterations ran out.
    """

    concepts: Tensor
    codes: Tensor
    loss_trace: tuple[float, ...]
    converged: bool
    seed: int

    @property
    def loss(self) -> float:
        """The last relative squared error."""
        return self.loss_trace[-1]

    def encode(self, x: Cloud, *, iterations: int = 200, tolerance: float = 1e-10) -> Tensor:
        """Codes of other rows under the same concepts: nonnegative least squares, to convergence."""
        x_ND = as_cloud(x, at_least=1).double()
        if x_ND.shape[1] != self.concepts.shape[1]:
            raise broken(f"rows to encode must have width {self.concepts.shape[1]}", x_ND.shape[1], "use the same site")
        concepts = self.concepts.double()
        target_NK, gram_KK = x_ND @ concepts.T, concepts @ concepts.T
        codes = torch.zeros_like(target_NK)
        for _ in range(iterations):
            before = codes.clone()
            _sweep(codes.T, target_NK.T, gram_KK)
            if float((codes - before).square().sum()) <= tolerance * float(codes.square().sum()):
                break
        return codes

    def top_tokens(self, tokens: Any, *, count: int = 10) -> tuple[tuple[ConceptToken, ...], ...]:
        """For each concept the tokens that receive most of its code, given the token id of each fitted row."""
        tokens = as_tensor(tokens).to(self.codes.device)
        if tokens.shape != self.codes.shape[:1]:
            raise broken(
                f"token ids must be one a fitted row ({self.codes.shape[0]})",
                tuple(tokens.shape),
                "pass the ids of the rows that were fitted",
            )
        ids, place, seen = torch.unique(tokens, return_inverse=True, return_counts=True)
        weight = torch.zeros(len(ids), self.codes.shape[1], dtype=torch.float64, device=self.codes.device)
        weight.index_add_(0, place, self.codes.double())
        share = weight / weight.sum(0).clamp_min(torch.finfo(torch.float64).tiny)
        best = torch.topk(share, min(count, len(ids)), dim=0)
        return tuple(
            tuple(
                ConceptToken(int(ids[row]), float(value), int(seen[row]))
                for value, row in zip(values, rows, strict=True)
                if value > 0
            )
            for values, rows in zip(best.values.T, best.indices.T, strict=True)
        )


def semi_nmf(
    x: Cloud,
    rank: int,
    *,
    generator: torch.Generator | None = None,
    start: Tensor | None = None,
    iterations: int = 500,
    tolerance: float = 1e-5,
) -> SemiNMF:
    """Factorise rows into K concepts with nonnegative codes.

    Stops when ten iterations together lower the loss by less than ``tolerance`` of itself. ``start`` gives the first
    codes ``(N, K)``; otherwise each row starts as its nearest of K seeded rows, plus 0.2 everywhere as in Ding et al.

    >>> import torch
    >>> x = 2 + torch.randn(300, 8, generator=torch.Generator().manual_seed(0))
    >>> fit = semi_nmf(x, 3)
    >>> fit.converged, bool((fit.codes >= 0).all()), fit.loss_trace[-1] < fit.loss_trace[0]
    (True, True, True)
    """
    x_ND, codes_NK, energy, seed = begin(as_cloud(x, at_least=2), rank, generator, start, iterations, tolerance)
    light_ND = x_ND.to(codes_NK.dtype)
    codes_KN, concepts, trace, converged = _descend(
        x_ND.double(), light_ND, codes_NK.T.contiguous(), energy, iterations, tolerance
    )
    return SemiNMF(concepts, codes_KN.T.contiguous(), tuple(trace), converged, seed)


def begin(
    x_ND: Tensor,
    rank: int,
    generator: torch.Generator | None,
    start: Tensor | None,
    iterations: int,
    tolerance: float,
) -> tuple[Tensor, Tensor, float, int]:
    """Rows, first codes, energy of the rows and the seed, once everything asked for is known to be possible."""
    n, width = x_ND.shape
    if not 1 <= rank <= min(n, width):
        raise broken(
            f"rank must lie in 1…{min(n, width)} for {n} vectors of width {width}",
            rank,
            "lower the rank or observe more tokens",
        )
    if iterations < 1 or not tolerance >= 0:
        raise broken(
            "iterations must be at least 1 and tolerance not negative", f"{iterations}, {tolerance}", "raise them"
        )
    work = torch.promote_types(x_ND.dtype, torch.float32)
    seed = 0 if generator is None else generator.initial_seed()
    if start is None:
        codes_NK = _nearest_of_seeded_rows(x_ND.to(work), rank, seed)
    else:
        if start.shape != (n, rank) or bool((start < 0).any()) or not bool((start.sum(0) > 0).all()):
            rule = f"start must be nonnegative codes of shape {(n, rank)}, no column all zero"
            raise broken(rule, tuple(start.shape), "clip it at 0 and use every concept")
        codes_NK = start.to(x_ND.device, work)
    energy = float(torch.linalg.vector_norm(x_ND.double())) ** 2
    if energy == 0:
        raise broken("a cloud to factorise must have a nonzero row", "all rows zero", "use another layer")
    return x_ND, codes_NK, energy, seed


def _descend(
    x_ND: Tensor, light_ND: Tensor, codes_KN: Tensor, energy: float, iterations: int, tolerance: float
) -> tuple[Tensor, Tensor, list[float], bool]:
    """Alternate exact concepts with swept codes, extrapolating while the loss allows it.

    Codes are swept in the precision of the rows (``light``), concepts and loss are float64.
    """
    work = codes_KN.dtype
    concepts, loss = _concepts(x_ND, codes_KN, energy)
    trace = [loss]
    best, best_concepts = codes_KN.clone(), concepts  # the best point so far; `codes_KN` may run ahead of it
    momentum, ceiling, ahead, converged = 0.7, 1.0, False, False
    while len(trace) <= iterations and not converged:
        gram_KK, target_KN = (concepts @ concepts.T).to(work), (light_ND @ concepts.to(work).T).T.contiguous()
        _sweep(codes_KN, target_KN, gram_KK)
        concepts, loss = _concepts(x_ND, codes_KN, energy)
        if loss >= trace[-1]:  # overshot: back to the best point, with less courage; a plain step that fails is the end
            trace.append(trace[-1])
            converged = not ahead
            ceiling, momentum, ahead = momentum, momentum * 0.6, False
            codes_KN, concepts = best.clone(), best_concepts
            continue
        trace.append(loss)
        best_concepts = concepts
        converged = len(trace) > 10 and trace[-11] - loss <= tolerance * loss
        codes_KN, best = (codes_KN + momentum * (codes_KN - best)).clamp_min(0), codes_KN
        ahead = True
        momentum, ceiling = min(ceiling, momentum * 1.1), min(1.0, ceiling * 1.02)
    return best, best_concepts, trace, converged


def _concepts(x_ND: Tensor, codes_KN: Tensor, energy: float) -> tuple[Tensor, float]:
    """Least-squares concepts for the codes, and the relative loss they leave, in float64.

    On centred data codes grow ever more alike (the best factorisation is a limit), so this part needs the digits.
    """
    codes_KN = codes_KN.double()
    moment_KD, gram_KK = codes_KN @ x_ND, codes_KN @ codes_KN.T
    ridge = RIDGE * gram_KK.diagonal().max() * torch.eye(len(gram_KK), dtype=gram_KK.dtype, device=gram_KK.device)
    concepts = torch.linalg.solve(gram_KK + ridge, moment_KD)
    captured = 2 * (concepts * moment_KD).sum() - (concepts * (gram_KK @ concepts)).sum()
    return concepts, 1 - float(captured) / energy


def _sweep(codes_KN: Tensor, target_KN: Tensor, gram_KK: Tensor) -> None:
    """One pass of exact minimisation over each concept's codes in turn, in place."""
    for k in range(codes_KN.shape[0]):
        curvature = gram_KK[k, k]
        if float(curvature) <= 0:
            continue
        gradient = torch.addmv(target_KN[k], codes_KN.T, gram_KK[k], alpha=-1)
        codes_KN[k].add_(gradient, alpha=1 / float(curvature)).clamp_min_(0)


def _nearest_of_seeded_rows(x_ND: Tensor, rank: int, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    chosen = x_ND[torch.randperm(x_ND.shape[0], generator=generator, device="cpu")[:rank].to(x_ND.device)]
    score_NK = x_ND @ chosen.T - chosen.square().sum(1) / 2
    codes_NK = torch.full_like(score_NK, 0.2)
    codes_NK[torch.arange(x_ND.shape[0], device=x_ND.device), score_NK.argmax(1)] += 1.0
    return codes_NK
