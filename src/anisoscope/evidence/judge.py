"""A proxy judged against true gradients, beside every null it is asked to beat.

Letters: N rows, D width, n sequences, T positions, E columns of δ.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from anisoscope.evidence.measure_fold import measure_fold, require_initial
from anisoscope.evidence.pool_folds import pool_folds
from anisoscope.evidence.result import Evidence
from anisoscope.geometry.subspace import Subspace


def judge(
    gradients: Any,
    subspace: Subspace,
    *,
    nulls: Sequence[str] = ("haar",),
    activations: Any = None,
    inputs: Any = None,
    deltas: Any = None,
    strata: Any = None,
    others: Mapping[str, Any] | None = None,
    initial: Evidence | None = None,
    groups: Any = None,
    resamples: int = 999,
    generator: torch.Generator | None = None,
    isotropy: bool = True,
) -> Evidence:
    """Judge a subspace against gradients: rows, ``(n, T, D)``, or ``Moments``.

    ``groups`` has one id a row (or a sequence) and gives intervals and paired tests by group; ``(n, T, D)`` gradients
    are grouped by sequence. With ``pairing`` or ``pairing-token`` the gradients are the rows of ``G = deltasᵀ inputs``
    and must equal it. ``others`` are gradients of the same tokens under other labels, by null (in the weight view
    ``(n, T, E)`` deltas), ``initial`` the ``Evidence`` of step 0 with its own proxy. ``activations`` are rows aligned
    with the gradients, for ``.radial`` alone.

    >>> import torch
    >>> from anisoscope.geometry.subspace import fit_subspace
    >>> g = torch.randn(512, 16, generator=torch.Generator().manual_seed(0)) * torch.linspace(3, 1, 16)
    >>> evidence = judge(g, fit_subspace(g, method="pca", rank=4), groups=torch.arange(512) // 32)
    >>> evidence.enrichment["haar"].low > 1, evidence.p["haar"] <= 0.01
    (True, True)
    """
    require_initial(nulls, initial)
    seed = 0 if generator is None else generator.initial_seed()
    fold = measure_fold(
        gradients,
        subspace,
        nulls=nulls,
        activations=activations,
        inputs=inputs,
        deltas=deltas,
        strata=strata,
        others=others or {},
        groups=groups,
        resamples=resamples,
        seed=seed,
    )
    return pool_folds([fold], nulls=nulls, initial=initial, resamples=resamples, seed=seed, isotropy=isotropy)
