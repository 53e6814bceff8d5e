"""Measures by name: what each needs of a cloud, and how it is computed. One of your own is one registration.

A registered measure appears in ``anisoscope measure``, in the rows of ``Scope``, ``pair``, ``profile`` and
``checkpoints``, and in the report. Its words are kept in ``anisoscope.vocabulary``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from anisoscope import vocabulary
from anisoscope.errors import broken
from anisoscope.geometry.cloud_parts import Material
from anisoscope.geometry.dimension import gride, levina_bickel, two_nn
from anisoscope.geometry.isotropy import (
    average_cosine,
    effective_rank,
    isoscore,
    isoscore_star,
    local_isotropy,
    participation_ratio,
    partition_ratio,
    top_share,
)
from anisoscope.geometry.neighbours import Neighbours
from anisoscope.geometry.results import Estimate
from anisoscope.geometry.spectra import permuted, rankme, spectral_decay
from anisoscope.stats.moments import Moments

Needs = Literal["moments", "spectrum", "directions", "sample", "neighbours", "material"]
NEEDS: dict[str, str] = {
    "moments": "Moments of all rows",
    "spectrum": "Spectrum: moments with their singular values",
    "directions": "Directions or UnitSum: unit vectors of the rows, summed",
    "sample": "a sample of rows, a tensor (N, D)",
    "neighbours": "Neighbours of the sample (in training, of the held-out probe)",
    "material": "the Material itself, to ask for several of these",
}
Found = Estimate | Mapping[str, Estimate] | None
MOST_NEIGHBOURS = 64


@dataclass(frozen=True, slots=True)
class MeasureMethod:
    """How a measure is computed: one function a variant, the usual one first.

    A function takes the part of a cloud that it ``needs`` and returns an ``Estimate`` with its floor, several by name
    of variant, or None where they cannot be had. ``training`` says whether the usual variant is measured at the
    observations of a training; ``k`` is how many neighbours it looks at. With ``control`` the floor is what the same
    function gives for a Gaussian cloud of equal covariance and number of rows.
    """

    name: str
    needs: Needs
    variants: Mapping[str, Callable[[Any], Found]]
    training: bool = True
    k: int = 2
    control: bool = False
    of_spectrum: bool = False  # whether what is taken in a training is a function of the eigenvalues alone
    also: Sequence[str] = ()  # variants that are taken with the usual one
    tensors: Sequence[str] = ("activations", "gradients")  # of which it is taken in a training

    def taken(self, *, usual: bool = False) -> list[str]:
        """The names of all variants, or of the usual one and those that go with it."""
        first = next(iter(self.variants))
        return [name for name in self.variants if not usual or name == first or name in self.also]

    def estimates(self, material: Material, *, usual: bool = False) -> Iterator[tuple[str, Estimate]]:
        """All variants of a cloud with their names, or those that are usual; nothing where a part is missing."""
        part = material.part(self.needs)
        if part is None:
            return
        for variant in self.taken(usual=usual):
            compute = self.variants[variant]
            found = _named(compute(part), variant)
            floors = self._floors(compute, variant, material) if _any_defined(found) else {}
            for name, estimate in found.items():
                yield name, replace(estimate, floor=floors[name]) if name in floors else estimate

    def _floors(self, compute: Callable[[Any], Found], variant: str, material: Material) -> dict[str, float]:
        if not self.control or material.gaussian_neighbours is None:
            return {}
        found = _named(compute(material.gaussian_neighbours), variant)
        return {name: one.value for name, one in found.items() if math.isfinite(one.value)}


def _named(found: Found, variant: str) -> Mapping[str, Estimate]:
    if found is None:
        return {}
    return {variant: found} if isinstance(found, Estimate) else found


def _any_defined(found: Mapping[str, Estimate]) -> bool:
    return any(math.isfinite(one.value) for one in found.values())


def _corrected(measure: Callable[..., Estimate]) -> Callable[[Moments], Estimate | None]:
    return lambda m: measure(m, corrected=True) if m.higher and float(m.count) >= 4 else None


def _partition(material: Material) -> Estimate | None:
    if material.sample is None:
        return None
    moments = material.moments  # of all rows, which the sample may be
    known = moments is not None and float(moments.count) == material.sample.shape[0]
    return partition_ratio(material.sample, second=moments.second if known and moments is not None else None)


def _local(material: Material) -> Mapping[str, Estimate] | None:
    if material.sample is None:
        return None
    sample_ND = material.sample
    if material.most_clustered is not None:
        sample_ND = sample_ND[:: math.ceil(len(sample_ND) / material.most_clustered)]
    if len(sample_ND) < 3:
        return None
    clusters = min(16, sample_ND.shape[0])
    return {f"clusters={clusters}": local_isotropy(sample_ND, clusters=clusters, seed=material.seed)}


def _decay(material: Material) -> Estimate | None:
    return None if material.spectrum is None else spectral_decay(material.spectrum)


def _decay_of_permuted(material: Material) -> Estimate | None:
    if material.sample is None or len(material.sample) < 3:
        return None
    return spectral_decay(permuted(material.sample, seed=material.seed))


def _levina_bickel(found: Neighbours) -> Mapping[str, Estimate] | None:
    if found.n <= 2 or found.problem is not None:
        return None
    k = min(20, found.n - 1)
    return {f"k={k}": levina_bickel(found, k=k)}


def _gride(found: Neighbours) -> Mapping[str, Estimate]:
    curve = gride(found)
    return {f"n={point.order}": point for point in curve.points} or {"n=1": curve}


_METHODS: dict[str, MeasureMethod] = {
    method.name: method
    for method in (
        MeasureMethod(
            "top_share",
            "spectrum",
            {
                "power=2, centred": top_share,
                "power=2, uncentred": lambda s: top_share(s, centre=False),
                "power=1, centred": lambda s: top_share(s, power=1),
                "power=1, uncentred": lambda s: top_share(s, power=1, centre=False),
            },
            of_spectrum=True,
            also=("power=1, centred", "power=1, uncentred"),
        ),
        MeasureMethod("average_cosine", "directions", {"all pairs": average_cosine}),
        MeasureMethod("isoscore", "moments", {"plain": isoscore, "corrected": _corrected(isoscore)}, training=False),
        MeasureMethod("isoscore_star", "moments", {"zeta=0.2, trace": isoscore_star}, of_spectrum=True),
        MeasureMethod(
            "participation_ratio",
            "moments",
            {"plain": participation_ratio, "corrected": _corrected(participation_ratio)},
            of_spectrum=True,
        ),
        MeasureMethod(
            "effective_rank",
            "spectrum",
            {"power=1": effective_rank, "power=2": lambda s: effective_rank(s, power=2)},
            of_spectrum=True,
        ),
        MeasureMethod("rankme", "spectrum", {"uncentred": rankme}, of_spectrum=True),
        MeasureMethod(
            "spectral_decay",
            "material",
            {"ranks 11 to half": _decay, "coordinates permuted": _decay_of_permuted},
            of_spectrum=True,
        ),
        MeasureMethod("partition_ratio", "material", {"both signs": _partition}, training=False),
        MeasureMethod("local_isotropy", "material", {"": _local}, tensors=("activations",)),
        MeasureMethod(
            "two_nn",
            "neighbours",
            {"fit": two_nn, "mle": lambda found: two_nn(found, variant="mle")},
            control=True,
        ),
        MeasureMethod("levina_bickel", "neighbours", {"": _levina_bickel}, training=False, k=20, control=True),
        MeasureMethod("gride", "neighbours", {"": _gride}, training=False, k=MOST_NEIGHBOURS, control=True),
    )
}


def methods(*, training: bool = False) -> list[MeasureMethod]:
    """All registered measures, or those that are taken at the observations of a training."""
    return [method for method in _METHODS.values() if method.training or not training]


def register_measure(
    name: str,
    *,
    needs: Needs = "sample",
    label: str | None = None,
    about: str = "",
    unit: str = "",
    no_effect: float | None = None,
    training: bool = True,
    k: int = 10,
) -> Callable[[Callable[[Any], Found]], Callable[[Any], Found]]:
    """Register a measure: a function from the part of a cloud that it ``needs`` to an ``Estimate`` with its floor.

    ``label``, ``about`` and ``unit`` are what a reader sees; ``no_effect`` is the value that a chart marks, where one
    number says "nothing to be seen". With ``training`` it is measured at every observation too (``neighbours`` are
    then those of the probe, ``k`` of them).

    >>> @register_measure("widest", needs="moments", about="largest standard deviation of a coordinate")
    ... def widest(moments):
    ...     return Estimate(value=float(moments.covariance.diagonal().max().sqrt()), n=int(moments.count))
    >>> unregister_measure("widest")
    """
    if needs not in NEEDS:
        raise broken(f"needs must be one of {' '.join(NEEDS)}", repr(needs), "use 'sample'")
    if not 1 <= k <= MOST_NEIGHBOURS:
        raise broken(f"k must lie in 1…{MOST_NEIGHBOURS}", k, "use 10")

    def register(compute: Callable[[Any], Found]) -> Callable[[Any], Found]:
        shown = ("dimension",) if needs == "neighbours" else ("isotropy",)
        label_ = label or name.replace("_", " ")
        vocabulary.add(vocabulary.Measure(name, label_, about, unit, no_effect, shown=shown))
        _METHODS[name] = MeasureMethod(name, needs, {"": compute}, training, k)
        return compute

    return register


def outside_modules() -> set[str]:
    """Modules that hold the measures from outside."""
    own = {name: method for name, method in _METHODS.items() if vocabulary.is_outside("measures", name)}
    return {compute.__module__ for method in own.values() for compute in method.variants.values()}


def unregister_measure(name: str) -> None:
    """Take a measure that was registered from outside away again."""
    vocabulary.remove("measures", name)
    if name not in vocabulary.MEASURES:
        _METHODS.pop(name, None)
