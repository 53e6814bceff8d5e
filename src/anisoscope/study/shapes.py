"""The shape of a layer profile: where its peak is, how far it stands out, and whether that is a bell.

Letters: b batches, L layers.

The rule. The peak is the layer with the largest mean over batches. Its prominence is the peak minus the higher of the
two ends, taken within each batch; the interval is Student's t over batches. The profile is a *bell* if the peak is at
an inner layer, the interval lies above 0 and the prominence is at least 5 % of the peak's size; a *valley* is a bell
upside down; without either it is *rising* or *falling* if the difference of its ends is as clear by the same two
conditions, and else *flat*. With a single batch there is no interval and nothing is decided: *undetermined*. Layers
that rest on less than half as many distinct vectors as others (what enters a rotary model has one a type) are left out
of the dimension's profile: dimension may be compared at equal n only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from anisoscope.observe.rows import Row, row
from anisoscope.study.layers import Profile, mean_interval
from anisoscope.vocabulary import shown_in

Word = Literal["bell", "valley", "rising", "falling", "flat", "undetermined"]
SMALLEST = 0.05
_FEWEST_LAYERS = 3


@dataclass(frozen=True, slots=True)
class Shape:
    """Where a profile turns, and how clearly; ``layers`` is the range of the peak over batches."""

    word: Word
    peak: int
    layers: tuple[int, int]
    prominence: float
    low: float | None
    high: float | None


def shape_of(values_bL: np.ndarray, layers: Sequence[int] | None = None) -> Shape | None:
    """The shape of a profile that was measured over several batches; ``None`` where there are fewer than three layers.

    >>> bell = shape_of(np.array([[1.0, 4.0, 2.0], [1.1, 4.1, 2.0], [1.0, 3.9, 2.1]]))
    >>> bell.word, bell.peak, bell.layers
    ('bell', 1, (1, 1))
    """
    names = list(range(values_bL.shape[1])) if layers is None else list(layers)
    usable = [int(place) for place in np.flatnonzero(np.isfinite(values_bL).all(0))]
    values, names = values_bL[:, usable], [names[place] for place in usable]
    if values.shape[1] < _FEWEST_LAYERS:
        return None
    upward, downward = _turn(values), _turn(-values)
    if len(values) < 2:
        return _named("undetermined", upward, names)
    if upward.clear:
        return _named("bell", upward, names)
    if downward.clear:
        turned = _named("valley", downward, names)
        assert turned.low is not None
        assert turned.high is not None
        return Shape("valley", turned.peak, turned.layers, -turned.prominence, -turned.high, -turned.low)
    mean, low, high = mean_interval(values[:, -1] - values[:, 0])
    large = abs(mean) >= SMALLEST * np.abs(values.mean(0)).max()
    if large and low is not None and high is not None and (low > 0 or high < 0):
        return _named("rising" if mean > 0 else "falling", upward, names)
    return _named("flat", upward, names)


@dataclass(frozen=True, slots=True, eq=False)
class _Turn:
    place: int
    places: np.ndarray
    prominence: float
    low: float | None
    high: float | None
    clear: bool


def _turn(values_bL: np.ndarray) -> _Turn:
    mean_L = values_bL.mean(0)
    place = int(mean_L.argmax())
    each = values_bL[:, place] - np.maximum(values_bL[:, 0], values_bL[:, -1])
    prominence, low, high = mean_interval(each)
    inner = 0 < place < len(mean_L) - 1
    clear = inner and low is not None and low > 0 and prominence >= SMALLEST * abs(mean_L[place])
    return _Turn(place, values_bL.argmax(1), prominence, low, high, bool(clear))


def _named(word: Word, turn: _Turn, names: list[int]) -> Shape:
    places = names[int(turn.places.min())], names[int(turn.places.max())]
    return Shape(word, names[turn.place], places, turn.prominence, turn.low, turn.high)


def shape_rows(profile: Profile, **stamp: object) -> list[Row]:
    """Two rows a measure and selection of tokens: the layer of the peak (or trough) and its prominence."""
    found = []
    subsets = list(dict.fromkeys(key.subset for key in profile.found))
    for measure in (word.name for word in shown_in("shape")):
        for subset in subsets:
            values, layers = profile.values(measure, subset)
            shape = shape_of(values, layers) if values.size else None
            if shape is None:
                continue
            common = {"view": "representation", "tensor": "activations", "subset": subset, "variant": measure}
            common |= {"n": len(values), "note": shape.word}
            low, high = shape.layers
            found.append(row(**common, measure="peak_layer", value=float(shape.peak), low=float(low), high=float(high)))
            found.append(row(**common, measure="prominence", value=shape.prominence, low=shape.low, high=shape.high))
    return [one | stamp for one in found]
