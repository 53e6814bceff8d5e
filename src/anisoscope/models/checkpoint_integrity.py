"""Whether the checkpoints of a training history are what their labels say, told from their weights.

Public histories are not: branches that serve the final weights (EleutherAI/pythia #205), a final shard among earlier
ones (#206), equal steps (#198, allenai/OLMo #915). A curve over such labels is silently flat. What is found is listed,
and what cannot be trusted is left out of curves unless the user wants it in.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from anisoscope.models.fingerprints import Fingerprint

Kind = Literal["unreadable", "missing", "duplicate", "partly-served", "shapes", "dtypes", "not-descended"]
_SIGMAS = 5.0
_NEAR = 0.1  # a step within this part of the history must still resemble the beginning


@dataclass(frozen=True, slots=True, eq=False)
class Checkpoint:
    """A revision: its label, the step or token count that the label tells, and its weights, or why there are none."""

    label: str
    at: float | None
    weights: Fingerprint | None = None
    problem: str | None = None


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that is wrong or worth knowing, and whether the checkpoint should be left out for it."""

    kind: Kind
    label: str
    text: str
    excluded: bool


def inspect(history: Sequence[Checkpoint], *, expected: Sequence[str] = ()) -> list[Finding]:
    """All findings of a history in the order of training, the last one being its end.

    ``expected`` are labels that should be there. Of equal checkpoints one is kept: the last of the history if it is
    among them (labels that serve the final weights are the common fault), else the first.
    """
    there = {one.label for one in history}
    found = [
        Finding("missing", label, f"{label} is not there", excluded=False) for label in expected if label not in there
    ]
    found += [
        Finding("unreadable", one.label, one.problem or "no weights", excluded=True)
        for one in history
        if one.weights is None
    ]
    readable = [one for one in history if one.weights is not None]
    found += _duplicates(readable)
    gone = {finding.label for finding in found if finding.excluded}
    unlike = [one for one in readable if one.label not in gone]
    found += _other_shapes(unlike)
    gone |= {finding.label for finding in found if finding.excluded}
    found += _partly_served([one for one in unlike if one.label not in gone])
    found += _not_descended([one for one in unlike if one.label not in gone])
    return found


def _weights(one: Checkpoint) -> Fingerprint:
    assert one.weights is not None, "only readable checkpoints are compared"
    return one.weights


def _duplicates(history: Sequence[Checkpoint]) -> list[Finding]:
    groups: dict[str, list[Checkpoint]] = {}
    for one in history:
        groups.setdefault(_weights(one).digest, []).append(one)
    found = []
    told = [one for one in history if one.at is not None]
    ends = [*told[-1:], *history[-1:]]  # `main` is most often the last step again: the step keeps its place
    for group in groups.values():
        kept = next((end for end in ends if end in group), group[0])
        found += [
            Finding("duplicate", one.label, f"{one.label} has the weights of {kept.label}, bit for bit", excluded=True)
            for one in group
            if one is not kept
        ]
    return found


def _other_shapes(history: Sequence[Checkpoint]) -> list[Finding]:
    """Checkpoints whose tensors are not those of most: names and shapes decide, a dtype is only told."""
    if not history:
        return []
    forms = [{name: t.shape for name, t in _weights(one).tensors.items()} for one in history]
    most = max(forms, key=forms.count)
    found = []
    for one, form in zip(history, forms, strict=True):
        if form == most:
            continue
        odd = sorted(name for name in form.keys() | most.keys() if form.get(name) != most.get(name))
        name = odd[0]
        more = f" and {len(odd) - 1} more" if len(odd) > 1 else ""
        text = f"{one.label} differs in {name}{more}: {_shape(form, name)} where most have {_shape(most, name)}"
        found.append(Finding("shapes", one.label, text, excluded=True))
    dtypes = [sorted({t.dtype for t in _weights(one).tensors.values()}) for one in history]
    usual = max(dtypes, key=dtypes.count)
    found += [
        Finding("dtypes", one.label, f"{one.label} is of {'+'.join(d)}, most are of {'+'.join(usual)}", excluded=False)
        for one, d in zip(history, dtypes, strict=True)
        if d != usual
    ]
    return found


def _shape(form: dict[str, tuple[int, ...]], name: str) -> str:
    return "×".join(map(str, form[name])) or "one number" if name in form else "none"


def _partly_served(history: Sequence[Checkpoint]) -> list[Finding]:
    """Checkpoints that share some tensors, not all, with one that is not their neighbour.

    Tensors that never change (buffers, frozen weights) or are constant (fresh norms and biases) tell nothing.
    Neighbours may share tensors for good reasons: steps of a warm-up are smaller than the rounding of 16 bits.
    """
    end = len(history) - 1
    courses: dict[tuple[str, str], list[tuple[int, str, bool]]] = {}  # a tensor over the checkpoints of one dtype
    for place, one in enumerate(history):
        for name, tensor in _weights(one).tensors.items():
            courses.setdefault((name, tensor.dtype), []).append((place, tensor.digest, tensor.constant))
    shared: dict[tuple[int, int], int] = {}
    for course in courses.values():
        values: dict[str, list[int]] = {}
        for number, (_, digest, constant) in enumerate(course):
            if not constant:
                values.setdefault(digest, []).append(number)
        for numbers in values.values():
            stretches = [[course[number][0] for number in run] for run in _runs(numbers)]
            if len(stretches) == 1:  # it never moved, or rested for a while
                continue
            for stretch in stretches:
                other = end if end in stretches[-1] else next(part[0] for part in stretches if part is not stretch)
                for place in stretch:
                    if place != end:
                        shared[place, other] = shared.get((place, other), 0) + 1
    found: dict[str, Finding] = {}
    for (place, other), count in sorted(shared.items()):
        one, donor, total = history[place].label, history[other].label, len(_weights(history[place]).tensors)
        text = f"{one} has {count} of its {total} tensors from {donor}, bit for bit, and not the rest"
        text += "" if other == end else "; one of the two is not what its label says"
        found.setdefault(one, Finding("partly-served", one, text, excluded=True))
    return list(found.values())


def _runs(numbers: Sequence[int]) -> list[list[int]]:
    """Ascending numbers in runs without a gap."""
    found: list[list[int]] = []
    for number in numbers:
        if found and number == found[-1][-1] + 1:
            found[-1].append(number)
        else:
            found.append([number])
    return found


def _not_descended(history: Sequence[Checkpoint]) -> list[Finding]:
    """A beginning that resembles nothing after it: of another run, or another seed.

    Weights of two runs are uncorrelated, up to 1/√n. Steps soon after the beginning still resemble it in every tensor.
    """
    if len(history) < 2 or history[0].at != 0:
        return []
    start, second, last = history[0], history[1], history[-1]
    best, compared = 0.0, 0
    for name, tensor in _weights(start).tensors.items():
        other = _weights(second).tensors.get(name)
        if other is None or len(tensor.shape) < 2 or tensor.constant or other.constant:
            continue
        n = len(tensor.sketch)
        if n < 64 or not (np.isfinite(tensor.sketch).all() and np.isfinite(other.sketch).all()):
            continue
        compared += 1
        likeness = np.corrcoef(tensor.sketch.astype(np.float64), other.sketch.astype(np.float64))[0, 1]
        best = max(best, float(abs(likeness) * np.sqrt(n)))
    if compared == 0 or best > _SIGMAS:
        return []
    near = second.at is not None and last.at is not None and second.at <= _NEAR * last.at
    text = f"no tensor of {second.label} resembles {start.label} (of {compared} compared)"
    text += ": it is not where this training began" if near else ", which may be forgotten by then, or of another run"
    return [Finding("not-descended", start.label, text, excluded=near)]
