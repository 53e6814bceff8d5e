"""What a judgement says: the evidence for a proxy, null by null."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from torch import Tensor

from anisoscope.evidence.units import Units
from anisoscope.geometry.results import Estimate
from anisoscope.geometry.subspace import Subspace


@dataclass(frozen=True, slots=True, eq=False)
class Evidence:
    """What a proxy captures of a gradient cloud, and what each null would.

    ``enrichment[null]`` is the odds ratio of the energy share over the null's mean share (for ``normal`` the
    plain ratio of Bernas et al. 2026, which equals the odds ratio over ``haar``), with an interval where sequences
    allow one. ``p[null]`` is
    two-sided. ``note`` says why nothing could be determined, if so.
    """

    energy: float
    inside: float
    outside: float
    width: int
    rank: int
    n: int
    units: int | None
    effective_units: float | None
    seed: int
    resamples: int
    enrichment: dict[str, Estimate] = field(default_factory=dict)
    mean: dict[str, float] = field(default_factory=dict)
    p: dict[str, float] = field(default_factory=dict)
    p_floor: dict[str, float] = field(default_factory=dict)  # the smallest p that draws and arrangements allow
    p_paper: float | None = None  # over ``normal``: it is too small too often, and decides nothing
    detectable: dict[str, float] = field(default_factory=dict)  # the smallest ratio that would have been found
    lost: dict[str, tuple[Tensor, ...]] = field(default_factory=dict, repr=False)  # log ratios, one unit left out
    isotropy_before: float | None = None
    isotropy_gain: float | None = None
    isotropy_gain_zeta0: float | None = None
    isotropy_gain_null: float | None = None
    isotropy_gain_p: float | None = None
    isotropy_gain_p_floor: float | None = None
    isotropy_gain_chance: float | None = None  # mean over random rotations
    isotropy_gain_estimate: Estimate | None = None  # the gain with its interval over units
    captured_estimate: Estimate | None = None
    captured_lost: Tensor | None = field(default=None, repr=False)  # the captured share, one unit left out
    radial: float | None = None
    note: str | None = None
    subspaces: tuple[Subspace, ...] = field(default=(), repr=False)
    folds: tuple[Units, ...] | None = field(default=None, repr=False)

    @property
    def undetermined(self) -> bool:
        """Whether there was nothing to judge."""
        return self.note is not None and math.isnan(self.energy)

    @property
    def captured(self) -> float | None:
        """Share of the gradient's anisotropy that the proxy carries: ``gain / (1 − before)``."""
        if self.isotropy_gain is None or self.isotropy_before is None:
            return None
        return self.isotropy_gain / (1 - self.isotropy_before) if self.isotropy_before < 1 else math.nan
