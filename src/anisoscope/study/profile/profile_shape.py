"""The shape of a layer profile over batches: where its peak is, how far it stands out, and whether that is a bell.

Letters: b batches, L layers.

The rule is that of ``anisoscope.bell_rule``; errors of differences are taken within batches. Prominence is the peak
minus the higher of the two ends, its interval Student's t over batches. With a single batch nothing is decided: *cannot
tell*. Layers that rest on less than half as many distinct vectors as others (what enters a rotary model has one a type)
are left out of the dimension's profile: dimension may be compared at equal n only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from anisoscope.bell_rule import name_shape
from anisoscope.evaluate.row_builders import Row, row
from anisoscope.geometry.measure_registry import methods
from anisoscope.study.profile.layer_measures import Profile, mean_interval
from anisoscope.vocabulary import shown_in


@dataclass(frozen=True, slots=True)
class Shape:
    """Where a profile turns, and how clearly; ``layers`` is the range of the peak over batches."""

    word: str
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

    def error(i: int, j: int) -> tuple[float, float] | None:
        """Within batches, which differ from one another as a whole."""
        if len(values) < 2:
            return None
        return float((values[:, i] - values[:, j]).std(ddof=1)) / len(values) ** 0.5, len(values) - 1.0

    named = name_shape(values.mean(0).tolist(), error)
    if named is None:
        return None
    turned, place = (-values, named.trough) if named.word == "valley" else (values, named.peak)
    prominence, low, high = mean_interval(turned[:, place] - np.maximum(turned[:, 0], turned[:, -1]))
    places = turned.argmax(1)
    found = names[int(places.min())], names[int(places.max())]
    if named.word == "valley":
        prominence, low, high = -prominence, None if high is None else -high, None if low is None else -low
    return Shape(named.word, names[place], found, prominence, low, high)


def shape_rows(profile: Profile, **stamp: object) -> list[Row]:
    """Two rows a measure and selection of tokens: the layer of the peak (or trough) and its prominence."""
    found = []
    subsets = list(dict.fromkeys(key.subset for key in profile.found))
    usual = {method.name: method.also for method in methods(training=True)}
    asked = [(word.name, None) for word in shown_in("shape")]
    asked += [(name, variant) for name, _ in asked for variant in usual.get(name, ())]
    for measure, variant in asked:
        for subset in subsets:
            values, layers = profile.values(measure, subset, variant)
            shape = shape_of(values, layers) if values.size else None
            if shape is None:
                continue
            common = {"view": "representation", "tensor": "activations", "subset": subset}
            common["variant"] = measure if variant is None else f"{measure}, {variant}"
            common |= {"n": len(values), "note": shape.word}
            low, high = shape.layers
            found.append(row(**common, measure="peak_layer", value=float(shape.peak), low=float(low), high=float(high)))
            found.append(row(**common, measure="prominence", value=shape.prominence, low=shape.low, high=shape.high))
    return [one | stamp for one in found]
