"""A linear probe with its control task: what can be read off frozen vectors, and what any labels would give.

Letters: N examples, D width, C classes.

Multinomial logistic regression on standardised vectors; the strength of L2 is chosen on a validation split. Groups
(documents) are never split: all examples of one are fitted on, or chosen by, or judged. The control task draws a label
once for each type of example by the same law (Hewitt & Liang 2019): a probe that does as well there reads types, and
not what the label is about.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass

import numpy as np
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression

from anisoscope.errors import broken

STRENGTHS = (0.003, 0.03, 0.3)  # inverse strengths of L2
FEWEST = 60
_SHARES = (0.6, 0.8)  # up to here fitted on, up to here chosen by, the rest judged
_ITERATIONS = 60


@dataclass(frozen=True, slots=True)
class ProbeAccuracy:
    """Accuracy on what was not seen, what the most frequent label gives there, and the accuracy of the control task."""

    accuracy: float
    majority: float
    control: float
    n: int

    @property
    def gain(self) -> float:
        """Accuracy above that of the most frequent label."""
        return self.accuracy - self.majority

    @property
    def selectivity(self) -> float:
        """Accuracy above that of the control task."""
        return self.accuracy - self.control


@dataclass(frozen=True, slots=True, eq=False)
class Examples:
    """Labels (N,) with the type of each example, which the control task goes by, and its group."""

    labels: np.ndarray
    types: np.ndarray
    groups: np.ndarray

    def __post_init__(self) -> None:
        sizes = {len(self.labels), len(self.types), len(self.groups)}
        if len(sizes) != 1:
            raise broken("labels, types and groups must be equally many", sizes, "give one of each to an example")

    def parts(self, seed: int) -> list[np.ndarray]:
        """Places to fit on, to choose by and to judge; no group is in two of them."""
        known = np.unique(self.groups)
        order = np.random.default_rng([seed, 11]).permutation(len(known))
        share = (order[np.searchsorted(known, self.groups)] + 0.5) / len(known)
        first, second = _SHARES
        return [np.flatnonzero(part) for part in (share < first, (share >= first) & (share < second), share >= second)]

    def control(self, seed: int) -> np.ndarray:
        """Labels of the control task."""
        known, place = np.unique(self.types, return_inverse=True)
        drawn = np.random.default_rng([seed, 12]).choice(self.labels, len(known))
        return drawn[place]


def possible(examples: Examples, seed: int) -> str | None:
    """Why a probe cannot be fitted; None if it can."""
    if len(examples.labels) < FEWEST:
        return f"{len(examples.labels)} examples, and a probe needs {FEWEST}"
    if len(np.unique(examples.groups)) < 5:
        return f"{len(np.unique(examples.groups))} groups, and splits that share none need 5"
    if len(np.unique(examples.labels[examples.parts(seed)[0]])) < 2:
        return "one label only where it is fitted"
    return None


def probe(vectors_ND: np.ndarray, examples: Examples, *, seed: int = 0) -> ProbeAccuracy:
    """Fit and judge.

    >>> rng = np.random.default_rng(0)
    >>> x = rng.standard_normal((600, 4))
    >>> found = probe(x, Examples((x[:, 0] > 0).astype(int), np.arange(600), np.arange(600)))
    >>> found.accuracy > 0.95, abs(found.control - found.majority) < 0.15
    (True, True)
    """
    why = possible(examples, seed)
    if why is not None:
        raise broken("a probe must have examples enough", why, "give more text")
    if len(vectors_ND) != len(examples.labels) or not np.isfinite(vectors_ND).all():
        raise broken("there must be one finite vector a label", vectors_ND.shape, "check the layer")
    parts = examples.parts(seed)
    fitted = vectors_ND[parts[0]]
    scale = fitted.std(0)
    x_ND = (vectors_ND - fitted.mean(0)) / np.where(scale > 0, scale, 1.0)
    accuracy, majority = _judged(x_ND, examples.labels, parts)
    control, _ = _judged(x_ND, examples.control(seed), parts)
    return ProbeAccuracy(accuracy, majority, control, len(parts[2]))


def _judged(x_ND: np.ndarray, labels: np.ndarray, parts: list[np.ndarray]) -> tuple[float, float]:
    fit, choose, judge = parts
    known, counts = np.unique(labels[fit], return_counts=True)
    majority = float(np.mean(labels[judge] == known[counts.argmax()]))
    if len(known) < 2:
        return majority, majority
    best, chosen = -1.0, None
    for strength in STRENGTHS:
        model = LogisticRegression(C=strength, max_iter=_ITERATIONS)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)  # stopped early is one more regularisation
            model.fit(x_ND[fit], labels[fit])
        right = float(np.mean(model.predict(x_ND[choose]) == labels[choose]))
        if right > best:
            best, chosen = right, model
    assert chosen is not None, "there are strengths"
    return float(np.mean(chosen.predict(x_ND[judge]) == labels[judge])), majority
