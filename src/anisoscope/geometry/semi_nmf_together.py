"""Semi-NMF of several clouds at once: the steps of ``semi_nmf``, taken for all of them together.

Letters: B clouds, N rows, D width, K concepts, S iterations.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from anisoscope.geometry.cloud import Cloud, as_cloud
from anisoscope.geometry.semi_nmf import RIDGE, SemiNMF, begin


def semi_nmf_together(
    clouds: Sequence[Cloud],
    rank: int,
    *,
    generator: torch.Generator | None = None,
    iterations: int = 500,
    tolerance: float = 1e-5,
) -> list[SemiNMF]:
    """The fits of ``semi_nmf`` of several clouds of one width, all steps of all clouds taken together.

    On a GPU one small fit is all launches and no work, and many together take no longer than one. Clouds with fewer
    rows are filled up with zeros, whose codes are and stay 0. Fits agree with those of ``semi_nmf`` to rounding.
    """
    begun = [begin(as_cloud(x, at_least=2), rank, generator, None, iterations, tolerance) for x in clouds]
    if not begun:
        return []
    most, work = max(len(x) for x, *_ in begun), begun[0][1].dtype
    x_BND = torch.stack([_filled(x.to(work), most) for x, *_ in begun])
    codes_BKN = torch.stack([_filled(codes, most).T for _, codes, *_ in begun])
    energy_B = torch.tensor([energy for *_, energy, _ in begun], dtype=torch.float64, device=x_BND.device)
    best_BKN, concepts_BKD, trace_SB, converged_B = _descend_together(x_BND, codes_BKN, energy_B, iterations, tolerance)
    ends = [int(end) for end in (~trace_SB.isnan()).sum(0)]
    traces, converged = trace_SB.T.tolist(), converged_B.tolist()
    return [
        SemiNMF(concepts_BKD[b], best_BKN[b, :, : len(x)].T.contiguous(), tuple(traces[b][: ends[b]]), converged[b], s)
        for b, (x, _, _, s) in enumerate(begun)
    ]


def _filled(rows: Tensor, most: int) -> Tensor:
    return torch.cat([rows, rows.new_zeros(most - len(rows), rows.shape[1])])


def _descend_together(
    x_BND: Tensor, codes_BKN: Tensor, energy_B: Tensor, iterations: int, tolerance: float
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """``_descend`` of several clouds: every decision is taken for each by itself, and what is at rest stays.

    Returns best codes, their concepts, losses by iteration (NaN once a cloud is at rest), and which came to rest.
    """
    wide_BND = x_BND.double()
    concepts_BKD, loss_B = _concepts_together(wide_BND, codes_BKN, energy_B)
    trace = [loss_B]
    best_BKN, best_concepts = codes_BKN.clone(), concepts_BKD
    last_B, momentum_B, ceiling_B = loss_B, torch.full_like(loss_B, 0.7), torch.ones_like(loss_B)
    ahead_B, rest_B = torch.zeros_like(loss_B, dtype=torch.bool), torch.zeros_like(loss_B, dtype=torch.bool)
    while len(trace) <= iterations and not bool(rest_B.all()):
        light_BKD = concepts_BKD.to(x_BND.dtype)
        gram_BKK = (concepts_BKD @ concepts_BKD.mT).to(x_BND.dtype)
        _sweep_together(codes_BKN, light_BKD @ x_BND.mT, gram_BKK)
        concepts_BKD, loss_B = _concepts_together(wide_BND, codes_BKN, energy_B)
        better_B = (loss_B < last_B) & ~rest_B
        worse_B = ~better_B & ~rest_B
        trace.append(torch.where(rest_B, torch.nan, torch.where(better_B, loss_B, last_B)))
        last_B = torch.where(better_B, loss_B, last_B)
        settled_B = worse_B & ~ahead_B
        if len(trace) > 10:
            settled_B |= better_B & (trace[-11] - loss_B <= tolerance * loss_B)
        chosen = better_B[:, None, None]
        further_BKN = (codes_BKN + momentum_B.to(codes_BKN.dtype)[:, None, None] * (codes_BKN - best_BKN)).clamp_min(0)
        best_BKN = torch.where(chosen, codes_BKN, best_BKN)
        best_concepts = torch.where(chosen, concepts_BKD, best_concepts)
        codes_BKN = torch.where(chosen, further_BKN, best_BKN)
        concepts_BKD = best_concepts
        # Overshot: back to the best point with less courage. Else on, with more.
        bolder_B = torch.minimum(ceiling_B, momentum_B * 1.1)
        next_ceiling_B = torch.where(better_B, (ceiling_B * 1.02).clamp_max(1.0), momentum_B)
        momentum_B = torch.where(better_B, bolder_B, momentum_B * 0.6)
        ceiling_B, ahead_B, rest_B = next_ceiling_B, better_B, rest_B | settled_B
    return best_BKN, best_concepts, torch.stack(trace), rest_B


def _concepts_together(x_BND: Tensor, codes_BKN: Tensor, energy_B: Tensor) -> tuple[Tensor, Tensor]:
    """``_concepts`` of several clouds."""
    codes_BKN = codes_BKN.double()
    moment_BKD, gram_BKK = codes_BKN @ x_BND, codes_BKN @ codes_BKN.mT
    ridge_BK = RIDGE * gram_BKK.diagonal(dim1=1, dim2=2).amax(1, keepdim=True).expand(-1, gram_BKK.shape[1])
    concepts_BKD = torch.linalg.solve(gram_BKK + torch.diag_embed(ridge_BK), moment_BKD)
    captured_B = (2 * (concepts_BKD * moment_BKD) - concepts_BKD * (gram_BKK @ concepts_BKD)).sum((1, 2))
    return concepts_BKD, 1 - captured_B / energy_B


def _sweep_together(codes_BKN: Tensor, target_BKN: Tensor, gram_BKK: Tensor) -> None:
    """``_sweep`` of several clouds."""
    curvature_BK = gram_BKK.diagonal(dim1=1, dim2=2)
    step_BK = torch.where(curvature_BK > 0, 1 / curvature_BK, 0.0)
    for k in range(codes_BKN.shape[1]):
        met_BN = (gram_BKK[:, k : k + 1] @ codes_BKN)[:, 0]
        codes_BKN[:, k].add_((target_BKN[:, k] - met_BN) * step_BK[:, k : k + 1]).clamp_min_(0)
