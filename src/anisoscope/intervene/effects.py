"""What a removal costs: the mean change of the loss of a token, with an interval over units.

Letters: n units, F bins of frequency, R draws.

A cost is ``Σ_u d_u / Σ_u c_u``: ``d`` a unit's summed change of loss, ``c`` its tokens. Its interval is the jackknife-t
of all evidence: degrees of freedom from how unevenly units decide it, and none below 8 effective units,
``(Σ|d|)²/Σd²``. Two removals are compared unit by unit. Where a control was drawn R times, the draws add their own
error, so that the interval is about the control's mean over all draws and not about the few that were made.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch
from scipy import special
from torch import Tensor

from anisoscope.evidence.inference import FEWEST_EFFECTIVE, FEWEST_UNITS, Spread, effective_units
from anisoscope.geometry.results import Estimate
from anisoscope.vocabulary import BINS


@dataclass(slots=True, eq=False)
class LossLedger:
    """Sums of token losses by unit and bin, of every removal; the last bin is for tokens in none."""

    bins: Tensor | None = None  # (V,), of each type, −1 for none
    _units: dict[int, int] = field(default_factory=dict)
    _second: dict[int, bool] = field(default_factory=dict)
    _counts: list[Tensor] = field(default_factory=list)
    _sums: dict[object, list[Tensor]] = field(default_factory=dict)
    _places: list[tuple[Tensor, Tensor]] = field(default_factory=list)

    def batch(self, keys_B: Tensor, second_B: Tensor, targets_BT: Tensor, asked_BT: Tensor) -> None:
        """Begin a batch: whose its tokens are, and of which bin."""
        for key, second in zip(keys_B.tolist(), second_B.tolist(), strict=True):
            self._units.setdefault(key, len(self._units))
            self._second[key] = second
        unit_B = torch.tensor([self._units[key] for key in keys_B.tolist()])
        if self.bins is None:
            bin_BT = torch.full(targets_BT.shape, -1)
        else:
            bin_BT = self.bins[targets_BT.clamp(0, len(self.bins) - 1).cpu()]
        cell_BT = unit_B[:, None] * (len(BINS) + 1) + torch.where(bin_BT < 0, len(BINS), bin_BT)
        self._places.append((cell_BT[asked_BT.cpu()], asked_BT.cpu()))
        self._counts.append(torch.bincount(self._places[-1][0]))

    def add(self, key: object, losses_BT: Tensor) -> None:
        """Losses of the batch under way, NaN where nothing is asked."""
        cells, asked_BT = self._places[-1]
        values = losses_BT.cpu().double()[asked_BT]
        self._sums.setdefault(key, []).append(torch.bincount(cells, weights=values))

    def totals(self, key: object) -> Tensor:
        """Sums ``(n, F + 1)`` of a removal."""
        return self._table(self._sums[key])

    @property
    def counts(self) -> Tensor:
        """Tokens ``(n, F + 1)``."""
        return self._table(self._counts)

    @property
    def fewest_in_fold(self) -> int:
        """Units of the smaller fold."""
        second = sum(self._second.values())
        return min(second, len(self._second) - second)

    def _table(self, parts: Sequence[Tensor]) -> Tensor:
        size = len(self._units) * (len(BINS) + 1)
        total = torch.zeros(size, dtype=torch.float64)
        for part in parts:
            total[: len(part)] += part
        return total.view(len(self._units), len(BINS) + 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class LossChange(Estimate):
    """A change of loss in nats a token, with a two-sided p against 0 and the smallest change that would be found."""

    p: float | None = None
    detectable: float | None = None


def cost_of(
    draws_Rn: Tensor, counts_n: Tensor, *, fewest: int = FEWEST_UNITS, family: int = 1, over_draws: bool = False
) -> LossChange:
    """The mean over draws of ``Σd/Σc``, from changes by draw and unit.

    >>> import torch
    >>> found = cost_of(torch.ones(1, 20) + torch.arange(20) % 2, torch.full((20,), 2.0))
    >>> found.value, round(found.low, 2), round(found.high, 2)
    (0.75, 0.63, 0.87)
    """
    counts_n = counts_n.double()
    kept = counts_n > 0
    draws_Rn, counts_n = draws_Rn.double()[:, kept], counts_n[kept]
    d_n, n = draws_Rn.mean(0), int(kept.sum())
    tokens = round(float(counts_n.sum()))
    if not n:
        return LossChange(value=math.nan, n=0, note="no token of this bin is asked for")
    value = float(d_n.sum() / counts_n.sum())
    effective = effective_units(d_n.abs())
    bare = LossChange(value=value, n=tokens, units=effective)
    if not math.isfinite(value):
        return replace(bare, note="the loss is not finite")
    if fewest < FEWEST_UNITS or n < 2:
        return replace(bare, note=f"a fold under {FEWEST_UNITS} units: no p and no interval")
    if effective < FEWEST_EFFECTIVE:
        return replace(bare, note=f"{effective:.1f} effective units, fewer than {FEWEST_EFFECTIVE:.0f}: no interval")
    left_out_n = (d_n.sum() - d_n) / (counts_n.sum() - counts_n)
    spread, note = Spread.of(left_out_n), None
    if over_draws and len(draws_Rn) > 1:
        means_R = draws_Rn.sum(1) / counts_n.sum()
        spread = spread.plus(Spread(float(means_R.std()) / math.sqrt(len(means_R)), len(means_R) - 1))
    elif over_draws:
        note = "one draw of the control: the interval is about that draw"
    if spread.error == 0:
        return replace(bare, low=value, high=value, low90=value, high90=value, se=0.0, p=float(value == 0), note=note)
    p = 2 * float(special.stdtr(spread.df, -abs(value) / spread.error))
    found = spread.estimate(bare, value)
    assert isinstance(found, LossChange), "an estimate keeps its kind"
    return replace(found, p=p, detectable=spread.detectable(0.0, family), note=note)
