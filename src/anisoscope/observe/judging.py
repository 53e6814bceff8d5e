"""An observation judged: proxies fitted on one fold of sequences and tested on the other, into rows.

Letters: n sequences, T positions, D width.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from anisoscope.evidence.conclude import conclude
from anisoscope.evidence.energy import energy_share
from anisoscope.evidence.fold import Fold, additive_units, radial_energy
from anisoscope.evidence.inference import FEWEST_UNITS, adjust
from anisoscope.evidence.pairing import PERMUTATIONS, sequence_null
from anisoscope.evidence.result import Evidence
from anisoscope.evidence.units import BilinearUnits
from anisoscope.geometry.isotropy import effective_rank, isoscore_star, participation_ratio, top_share
from anisoscope.geometry.subspace import Method, Subspace, fit_subspace, principal_angles
from anisoscope.observe.statistics import Cloud, Observation, Representation, Weight
from anisoscope.stats.moments import Moments
from anisoscope.stats.reservoir import Reservoir, Sample

Row = dict[str, Any]
Proxies = dict[tuple[str, int, str], tuple[Subspace, Subspace]]
_FIELDS = (
    "step",
    "tokens",
    "layer",
    "view",
    "points",
    "cloud",
    "proxy",
    "rank",
    "timing",
    "measure",
    "variant",
    "null",
    "value",
    "low",
    "high",
    "p",
    "q",
    "n",
    "note",
)
_CLOUD_MEASURES = (
    ("isoscore_star", isoscore_star),
    ("top_share", top_share),
    ("effective_rank", effective_rank),
    ("participation_ratio", participation_ratio),
)


def row(**given: Any) -> Row:
    """A row with every column; what is not given is null."""
    return {name: given.get(name) for name in _FIELDS} | {"cloud": given.get("cloud", "all")}


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
    rows = [r for key, found in evidences.items() for r in _rows(key, found, timing, observation)]
    return _with_q(rows), evidences


def cloud_rows(observation: Observation) -> list[Row]:
    """Isotropy of activations and gradients, both folds together."""
    rows = []
    for layer, site in sorted(observation.representation.items()):
        for points, folds in (("activations", site.activations), ("gradients", site.gradients)):
            moments = _merged(folds)
            if moments is None or float(moments.count) < 3:
                continue
            for measure, act in _CLOUD_MEASURES:
                found = act(moments)
                rows.append(
                    row(
                        step=observation.step,
                        tokens=observation.tokens,
                        layer=layer,
                        view="representation",
                        points=points,
                        measure=measure,
                        value=found.value,
                        low=found.low,
                        high=found.high,
                        n=found.n,
                        note=found.note,
                    )
                )
    return rows


def drift_rows(observation: Observation, now: Proxies, before: Proxies, *, since: str) -> list[Row]:
    """Mean principal angle in degrees to earlier proxies of the same fold: a moving subspace is no fading effect."""
    rows = []
    for key, pair in now.items():
        if key not in before:
            continue
        view, layer, method = key
        angles = torch.cat([principal_angles(a, b) for a, b in zip(pair, before[key], strict=True)])
        rows.append(
            row(
                step=observation.step,
                tokens=observation.tokens,
                layer=layer,
                view=view,
                points="activations",
                proxy=method,
                rank=pair[0].rank,
                timing="rolling",
                measure="angle",
                variant=f"since {since}",
                value=float(angles.mean().rad2deg()),
                n=angles.numel(),
            )
        )
    return rows


def _sequences(cloud: Cloud) -> int:
    return 0 if cloud.kept is None else int(torch.unique(cloud.kept.sample().sequences).numel())


def _merged(folds: tuple[Cloud, Cloud]) -> Moments | None:
    parts = [cloud.moments for cloud in folds if cloud.moments is not None]
    return parts[0].merge(parts[1]) if len(parts) == 2 else (parts[0] if parts else None)


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
        activations = site.activations[1 - fitted_on].kept
        folds.append(
            Fold(
                subspace,
                energy_share(held.moments, subspace),
                held.moments.second,
                held.moments.covariance,
                round(float(held.moments.count)),
                additive_units(sample.values, subspace, sample.sequences),
                _radial(sample, activations),
                {},
                {},
            )
        )
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
        fold = Fold(
            subspace,
            energy_share(moments, subspace),
            moments.second,
            moments.covariance,
            gradient.shape[0],
            units,
            None,
            {},
            {},
        )
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


def _rows(key: Any, found: Evidence, timing: str, observation: Observation) -> list[Row]:
    view, layer, method = key
    common = {
        "step": observation.step,
        "tokens": observation.tokens,
        "layer": layer,
        "view": view,
        "points": "gradients",
        "proxy": method,
        "rank": found.rank,
        "timing": timing,
        "n": found.n,
    }
    few = min(len(u.ids) for u in found.folds) < FEWEST_UNITS if found.folds else True
    note = f"a fold under {FEWEST_UNITS} sequences: no p and no intervals" if few else found.note
    rows = [row(**common, measure="energy", value=found.energy, note=note)]
    for null, e in found.enrichment.items():
        numbers = {} if few else {"low": e.low, "high": e.high, "p": found.p.get(null)}
        rows.append(
            row(**(common | {"n": e.n}), measure="enrichment", null=null, value=e.value, note=e.note or note, **numbers)
        )
    gains = {
        "isotropy_gain": (found.isotropy_gain, None, found.isotropy_gain_p),
        "isotropy_gain_normal": (found.isotropy_gain_null, "normal", None),
        "captured": (found.captured, None, None),
        "radial": (found.radial, None, None),
    }
    for measure, (value, null, p) in gains.items():
        if value is not None:
            rows.append(row(**common, measure=measure, null=null, value=value, p=None if few else p))
    if found.isotropy_gain_zeta0 is not None:
        rows.append(row(**common, measure="isotropy_gain", variant="zeta0", value=found.isotropy_gain_zeta0))
    return rows


def _with_q(rows: list[Row]) -> list[Row]:
    """Benjamini-Hochberg over layers, all other key columns equal."""
    groups: dict[Any, list[Row]] = {}
    for r in rows:
        if r["p"] is not None:
            key = tuple(r[name] for name in ("view", "proxy", "rank", "timing", "measure", "variant", "null"))
            groups.setdefault(key, []).append(r)
    for members in groups.values():
        for r, q in zip(members, adjust([m["p"] for m in members]), strict=True):
            r["q"] = None if math.isnan(q) else float(q)
    return rows
