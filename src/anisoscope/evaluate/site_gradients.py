"""The gradients at one place of an observation, and what is made of them once for all proxies that are judged there."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TypeVar

import torch

from anisoscope.capture.sites import SiteKey
from anisoscope.evaluate.sampled_units import Stacked, bilinear_units, judged_bases, stacked_sequences, typed_units
from anisoscope.evidence.energy import EnergyShare, energy_share
from anisoscope.evidence.measure_fold import Fold, additive_units, radial_energy
from anisoscope.evidence.pairing_classes import PairedSequences, PairingNull
from anisoscope.evidence.sequence_pairing import paired_sequences
from anisoscope.evidence.shared import Shared
from anisoscope.evidence.typed_units import TypedUnits
from anisoscope.evidence.units import BilinearUnits, Units
from anisoscope.geometry.subspace import Subspace
from anisoscope.observe.statistics import Cloud, Observation
from anisoscope.stats.moments import Moments
from anisoscope.stats.reservoir import Sample
from anisoscope.vocabulary import VIEWS

T = TypeVar("T")


class Gradients:
    """Gradients at one place: by fold, by subset of tokens, and under other labels (``under`` a null's name)."""

    def __init__(self, observed: Observation, view: str, at: SiteKey, tensor: str) -> None:
        self._observed, self._view, self._at, self._tensor = observed, view, at, tensor
        self.shared = Shared()
        self._with_units = Shared()  # apart: units outlive this, and forget it

    def fold(self, subset: str, held: int, subspace: Subspace, units: Units | None) -> Fold:
        """Energies from the full moments, units from the sequences kept."""
        moments = self.moments(subset, held)
        second = self._once(("second", subset, held), lambda: moments.second)
        covariance = self._once(("covariance", subset, held), lambda: moments.covariance)
        n = round(float(moments.count))
        return Fold(subspace, energy_share(moments, subspace), second, covariance, n, units)

    def share(self, subset: str, held: int, subspace: Subspace, under: str) -> EnergyShare:
        """Energy inside and outside under other labels."""
        return energy_share(self.moments(subset, held, under), subspace)

    def moments(self, subset: str, held: int, under: str | None = None) -> Moments:
        """Moments of all tokens; in the weight view the rows of the summed gradient serve as the cloud."""
        if VIEWS[self._view].kind == "weight":
            return self._once(("moments", held, under), lambda: self._of_weight(held, under))
        return self._cloud(held, under).of(subset)

    def sample(self, subset: str, held: int, under: str | None = None) -> Sample:
        """The rows kept of some tokens."""
        return self._once(("sample", subset, held, under), lambda: self._cloud(held, under).sample(subset))

    def additive_units(self, subset: str, held: int, subspace: Subspace, under: str | None = None) -> Units:
        """Sequences whose energies add up."""
        sample = self.sample(subset, held, under)
        return additive_units(sample.values, subspace, sample.sequences)

    def bilinear_units(self, held: int, subspace: Subspace, under: str | None = None) -> BilinearUnits:
        """Sequences as the units of a linear map's gradient."""
        return replace(bilinear_units(self.sequences(held, under), subspace), shared=self._with_units)

    def typed_units(self, pair: tuple[Subspace, Subspace], under: str | None = None) -> TypedUnits | None:
        """Sequences as the units of the embedding's gradient, for proxies that were fitted on two folds of types."""
        found = self._once(("types", under), lambda: typed_units(self._observed, pair, under))
        if found is None:
            return None
        return replace(found, bases=judged_bases(pair, found.sums.device), known=[], shared=self._with_units)

    def sequences(self, held: int, under: str | None = None) -> Stacked:
        """Whole sequences of a linear map side by side."""
        stack = stacked_sequences
        return self._once(("stacked", held, under), lambda: stack(self._observed, self._at, held, under, self._view))

    def pairing(self, held: int, subspace: Subspace, draws: int, seed: int) -> PairingNull:
        """The proxy against sequences that meet other error signals."""

        def paired() -> PairedSequences:
            s = self.sequences(held)
            return paired_sequences(s.inputs, s.deltas, strata=s.strata, units=s.unit, draws=draws, seed=seed)

        return self._once(("paired", held, draws, seed), paired).null(subspace.basis)

    def radial(self, subset: str, held: int) -> tuple[float, float] | None:
        """Energy along the activation, where both samples hold the same tokens in one order."""
        return self._once(("radial", subset, held), partial(self._radial, subset, held))

    def _radial(self, subset: str, held: int) -> tuple[float, float] | None:
        own = self.sample(subset, held)
        beside = self._observed.cloud(self._view, self._at, "activations", held).sample(subset)
        return radial_energy(own.values, beside.values) if torch.equal(own.sequences, beside.sequences) else None

    def _cloud(self, held: int, under: str | None) -> Cloud:
        cloud = self._observed.cloud
        return self._once(("cloud", held, under), lambda: cloud(self._view, self._at, self._tensor, held, under=under))

    def _of_weight(self, held: int, under: str | None) -> Moments:
        return Moments.of(self._observed.sum(self._view, self._at, "gradients", held, under=under), higher=False)

    def _once(self, what: tuple[object, ...], make: Callable[[], T]) -> T:
        return self.shared.once(("gradients", *what), (), make)
