"""What is known of one cloud, for measures to ask: each part is made once, when it is first wanted.

Letters: N rows, D width.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from anisoscope.geometry.controls import gaussian_like
from anisoscope.geometry.neighbours import Neighbours, neighbours, neighbours_of_first
from anisoscope.stats.moments import Moments
from anisoscope.stats.unit_directions import Directions, UnitSum

CONTROL_POINTS = 1024  # of a Gaussian control: their dimension is then known to 3 % of itself


class Spectrum:
    """Moments of a cloud with the squared singular values that follow from them, each computed once, on the host.

    Those below ``4√D·ε`` of the largest (ε of float64; rounding was measured to reach a tenth of that) count as 0: the
    square roots of rounding would otherwise fill the empty directions of a low-rank cloud.
    """

    def __init__(self, moments: Moments, *, centred: Tensor | None = None, uncentred: Tensor | None = None) -> None:
        self.moments = moments
        self._centred, self._uncentred = centred, uncentred

    @cached_property
    def centred(self) -> Tensor:
        """Squared singular values about the mean, ascending; those that were given, where they are known already."""
        if self._centred is not None:
            return self._centred
        known = "_decomposed" in self.__dict__
        values_D = self._decomposed[0] if known else torch.linalg.eigvalsh(self.moments.scatter)
        return _without_rounding(values_D.cpu())

    @property
    def vectors(self) -> Tensor:
        """The principal directions ``(D, D)`` as columns, ascending."""
        return self._decomposed[1]

    @cached_property
    def _decomposed(self) -> tuple[Tensor, Tensor]:
        values_D, vectors_DD = torch.linalg.eigh(self.moments.scatter)
        return values_D, vectors_DD

    @cached_property
    def uncentred(self) -> Tensor:
        """The same about the origin."""
        if self._uncentred is not None:
            return self._uncentred
        known = "_decomposed_uncentred" in self.__dict__
        values_D = self._decomposed_uncentred[0] if known else torch.linalg.eigvalsh(self.moments.second)
        return _without_rounding(values_D.cpu())

    @property
    def uncentred_vectors(self) -> Tensor:
        """The principal directions about the origin ``(D, D)`` as columns, ascending."""
        return self._decomposed_uncentred[1]

    @cached_property
    def _decomposed_uncentred(self) -> tuple[Tensor, Tensor]:
        values_D, vectors_DD = torch.linalg.eigh(self.moments.second)
        return values_D, vectors_DD


def _without_rounding(values_D: Tensor) -> Tensor:
    level = 4 * math.sqrt(values_D.shape[0]) * torch.finfo(values_D.dtype).eps
    return torch.where(values_D <= level * values_D[-1], 0, values_D)


class Material:
    """The parts of a cloud by name; a part that cannot be had is None.

    ``moments`` of all rows, their ``spectrum``, the ``directions`` of rows, a ``sample`` of rows ``(N, D)``, and the
    ``neighbours`` of that sample (``k`` of them). ``gaussian_neighbours`` are those of a Gaussian cloud with as many
    distinct rows and their covariance. ``neighbours`` may be given, where one search served several samples. ``seed``
    serves measures and controls that draw. ``most_clustered`` bounds the rows that clusters are formed of.
    """

    def __init__(
        self,
        *,
        moments: Moments | None = None,
        directions: Callable[[], Directions | UnitSum] | None = None,
        sample: Callable[[], Tensor] | None = None,
        neighbours: Callable[[], Neighbours] | None = None,
        k: int = 0,
        seed: int = 0,
        most_clustered: int | None = None,
    ) -> None:
        self.moments, self.seed, self.most_clustered = moments, seed, most_clustered
        self._directions, self._sample, self._neighbours, self._k = directions, sample, neighbours, k

    @classmethod
    def of_spectrum(cls, spectrum: Spectrum) -> Material:
        """A cloud of which no more than the spectrum is known."""
        made = cls(moments=spectrum.moments)
        made.__dict__["spectrum"] = spectrum
        return made

    @cached_property
    def spectrum(self) -> Spectrum | None:
        """Singular values from the moments."""
        return None if self.moments is None else Spectrum(self.moments)

    @cached_property
    def directions(self) -> Directions | UnitSum | None:
        """Unit vectors of the rows, summed."""
        return None if self._directions is None else self._directions()

    @cached_property
    def sample(self) -> Tensor | None:
        """Some of the rows, or all."""
        return None if self._sample is None else self._sample()

    @cached_property
    def neighbours(self) -> Neighbours | None:
        """Nearest neighbours among the rows of the sample."""
        if self._neighbours is not None:
            return self._neighbours()
        return None if self.sample is None or not self._k else neighbours(self.sample, self._k)

    @cached_property
    def gaussian_neighbours(self) -> Neighbours | None:
        """The same of a Gaussian cloud with as many distinct rows and their covariance, and no other structure.

        Some of its points are enough: they have their neighbours among all, and are as good as any others.
        """
        found = self.neighbours
        if self.sample is None or found is None or found.problem is not None:
            return None
        distinct_ND = self.sample if found.n == self.sample.shape[0] else self.sample[found.rows]
        # Drawn rows are distinct; rounded to half precision they would not be.
        fine_ND = distinct_ND.to(torch.promote_types(distinct_ND.dtype, torch.float32))
        drawn_ND = gaussian_like(fine_ND, seed=self.seed)
        return neighbours_of_first(drawn_ND, CONTROL_POINTS, self._k)

    def part(self, name: str) -> Any:
        """A part by its name."""
        return self if name == "material" else getattr(self, name)


def joined(parts: Sequence[Tensor]) -> Callable[[], Tensor]:
    """Rows put together when they are asked for."""
    return lambda: torch.cat(list(parts))
