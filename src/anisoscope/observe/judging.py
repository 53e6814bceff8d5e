"""An observation judged: proxies fitted on one fold of sequences and tested on the other, into rows.

Letters: n sequences, T positions, D width.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from anisoscope.evidence.conclude import conclude
from anisoscope.evidence.energy import energy_share
from anisoscope.evidence.fold import Fold, additive_units, radial_energy
from anisoscope.evidence.pairing import PERMUTATIONS, sequence_null
from anisoscope.evidence.result import Evidence
from anisoscope.evidence.units import BilinearUnits, Units
from anisoscope.geometry.subspace import Method, Subspace, fit_subspace
from anisoscope.observe.rows import Proxies, Row, adjusted, evidence_rows
from anisoscope.observe.statistics import Cloud, Observation, Representation, Weight
from anisoscope.stats.moments import Moments
from anisoscope.stats.reservoir import Reservoir, Sample


def fold_sizes(observation: Observation) -> tuple[int, int]:
    """Sequences in each fold."""
    for site in observation.representation.values():
        return _sequences(site.activations[0]), _sequences(site.activations[1])
    for site in observation.weight.values():
        return _sequences(site.inputs[0]), _sequences(site.inputs[1])
    return 0, 0


def fit_proxies(observation: Observation, methods: Sequence[Method], rank: int, seed: int) -> Proxies:
    """One proxy a view, layer, method and fold, from the activations of that fold."""
    generator = torch.Generator().manual_seed(seed)
    clouds = {("representation", layer): site.activations for layer, site in observation.representation.items()}
    clouds |= {("weight", layer): site.inputs for layer, site in observation.weight.items()}
    fitted: Proxies = {}
    for (view, layer), folds in clouds.items():
        for method in methods:
            first, second = (_fitted(cloud, method, rank, generator) for cloud in folds)
            fitted[view, layer, method] = first, second
    return fitted


def judge_observation(
    observation: Observation,
    proxies: Proxies,
    *,
    timing: str,
    nulls: Sequence[str],
    initial: dict[Any, Evidence],
    resamples: int,
    seed: int,
) -> tuple[list[Row], dict[Any, Evidence]]:
    """Judge every proxy on the fold it was not fitted on; q is over layers, all else equal."""
    evidences: dict[Any, Evidence] = {}
    for (view, layer, method), pair in proxies.items():
        key = (view, layer, method)
        start = initial.get(key)
        if view == "representation":
            site = observation.representation[layer]
            asked = [n for n in nulls if n in ("haar", "normal", "axes") or (n == "init" and start)]
            found = _judge_representation(site, pair, asked, start, resamples, seed)
        else:
            asked = [n for n in nulls if n in ("haar", "normal", "axes", "pairing") or (n == "init" and start)]
            found = _judge_weight(observation.weight[layer], pair, asked, start, resamples, seed)
        evidences[key] = found
    rows = [r for key, found in evidences.items() for r in evidence_rows(key, found, timing, observation)]
    return adjusted(rows), evidences


def _sequences(cloud: Cloud) -> int:
    return 0 if cloud.kept is None else int(torch.unique(cloud.kept.sample().sequences).numel())


def _fitted(cloud: Cloud, method: Method, rank: int, generator: torch.Generator) -> Subspace:
    assert cloud.moments is not None
    assert cloud.kept is not None
    source = cloud.kept.sample().values if method == "semi_nmf" else cloud.moments
    return fit_subspace(source, method=method, rank=1 if method == "mean" else rank, generator=generator)


def _judge_representation(
    site: Representation,
    pair: tuple[Subspace, Subspace],
    nulls: Sequence[str],
    initial: Evidence | None,
    resamples: int,
    seed: int,
) -> Evidence:
    folds = []
    for fitted_on in (0, 1):
        held = site.gradients[1 - fitted_on]
        assert held.moments is not None
        assert held.kept is not None
        subspace, sample = pair[fitted_on], held.kept.sample()
        units = additive_units(sample.values, subspace, sample.sequences)
        fold = _fold(held.moments, subspace, units)
        folds.append(replace(fold, radial=_radial(sample, site.activations[1 - fitted_on].kept)))
    return conclude(folds, nulls=nulls, initial=initial, resamples=resamples, seed=seed)


def _judge_weight(
    site: Weight,
    pair: tuple[Subspace, Subspace],
    nulls: Sequence[str],
    initial: Evidence | None,
    resamples: int,
    seed: int,
) -> Evidence:
    """Energies come from the full gradient; pairing, its observed share included, from the sequences kept."""
    whole, kept = [], []
    for fitted_on in (0, 1):
        held, subspace = 1 - fitted_on, pair[fitted_on]
        gradient, inputs, deltas = site.gradient[held], site.inputs[held].kept, site.deltas[held].kept
        assert gradient is not None
        assert inputs is not None
        assert deltas is not None
        moments = Moments.of(gradient, higher=False)
        x, d, strata, ids = _stacked(inputs.sample(), deltas.sample())
        units = BilinearUnits(ids, x, d, subspace.basis, torch.arange(len(ids), device=x.device))
        fold = _fold(moments, subspace, units)
        whole.append(fold)
        if "pairing" in nulls and len(ids) > 1:
            sketched = units.total
            share = replace(fold.share, inside=float(sketched.inside), outside=float(sketched.outside))
            null = sequence_null(x, d, subspace.basis, strata=strata, draws=min(resamples, PERMUTATIONS), seed=seed)
            kept.append(replace(fold, share=share, pairing={"pairing": null}))
    rest = [null for null in nulls if null != "pairing"]
    found = conclude(whole, nulls=rest, initial=initial, resamples=resamples, seed=seed)
    if len(kept) < 2:
        return found
    paired = conclude(kept, nulls=("pairing",), initial=None, resamples=resamples, seed=seed, isotropy=False)
    return replace(
        found, enrichment=found.enrichment | paired.enrichment, mean=found.mean | paired.mean, p=found.p | paired.p
    )


def _fold(moments: Moments, subspace: Subspace, units: Units) -> Fold:
    """Energies from the full moments, units from the sequences kept."""
    n, share = round(float(moments.count)), energy_share(moments, subspace)
    return Fold(subspace, share, moments.second, moments.covariance, n, units)


def _radial(gradients: Sample, activations: Reservoir | None) -> tuple[float, float] | None:
    """Energy along the activation, where both samples hold the same tokens (in one order, that of their keys)."""
    other = None if activations is None else activations.sample()
    if other is None or not torch.equal(gradients.sequences, other.sequences):
        return None
    return radial_energy(gradients.values, other.values)


def _stacked(inputs: Sample, deltas: Sample) -> tuple[Tensor, Tensor, Tensor | None, Tensor]:
    """Rows of whole sequences as ``(n, T, ·)``, with −1 as stratum of padding where lengths differ."""
    ids, place = torch.unique(inputs.sequences, return_inverse=True)
    length = int(inputs.positions.max()) + 1
    x = inputs.values.new_zeros(len(ids), length, inputs.values.shape[1])
    d = deltas.values.new_zeros(len(ids), length, deltas.values.shape[1])
    strata = torch.full((len(ids), length), -1, dtype=torch.int64, device=x.device)
    x[place, inputs.positions], d[place, inputs.positions] = inputs.values, deltas.values
    strata[place, inputs.positions] = 0
    return x, d, None if bool((strata == 0).all()) else strata, ids
