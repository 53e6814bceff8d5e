"""Rows beside a claim: whether it agrees, differs, or cannot be compared, and why. Pure functions of rows."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from anisoscope.study.reproduce.recipe import Claim
from anisoscope.vocabulary import MEASURES, in_window, matches, rank_of

AGREES, DIFFERS, NEITHER = "agrees", "differs", "cannot be compared"
Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Compared:
    """A claim beside what was measured on one model."""

    outcome: str
    measured: str
    why: str = ""


def compare(claim: Claim, rows: Sequence[Row], *, steps: int, profile: bool = False) -> Compared | None:
    """The claim on the rows of one model of one run; None where the claim is about another kind of model.

    A ``profile`` keeps the untrained twin as step 0: it is no observation of the model.
    """
    role = claim.where.get("role")
    if role is not None and not any(row["role"] == role for row in rows):
        return None
    if profile:
        rows = [row for row in rows if row["step"] != 0]
    found = _COMPARE[claim.rule](claim, rows, steps)
    return found or Compared(NEITHER, "–", "the run has no such rows")


def beside_usual(claim: Claim, found: Compared, rows: Sequence[Row], *, steps: int, profile: bool) -> Compared:
    """A claim on a model whose attention was changed, which asks for the end of a shape that the model has as it is."""
    if claim.rule != "shape" or claim.expect == "bell":
        return found
    usual = compare(claim.model_copy(update={"expect": "bell"}), rows, steps=steps, profile=profile)
    if usual is None or usual.outcome == AGREES:
        return found
    return Compared(NEITHER, found.measured, f"as it is the model has no bell that could go: {usual.measured}")


def _found(claim: Claim, rows: Sequence[Row], steps: int, where: dict[str, Any] | None = None) -> list[Row]:
    given = claim.where if where is None else where
    wanted = {key: value for key, value in given.items() if key != "rank"}
    found = [row for row in rows if matches(row, wanted) and row["value"] is not None]
    if claim.window is not None:
        found = [row for row in found if in_window(row["step"], steps, claim.window)]
    return found


def _above(claim: Claim, rows: Sequence[Row], steps: int) -> Compared | None:
    """More than half of the places are on the side that was published, by their outcome or interval."""
    found = [row for row in _found(claim, rows, steps) if rank_of(row) in (None, _main_rank(rows))]
    if not found:
        return None
    sides = [_side(row) for row in found]
    above, below = sides.count(1), sides.count(-1)
    wanted, other = (above, below) if claim.rule == "above" else (below, above)
    finite = sorted((row for row in found if math.isfinite(row["value"])), key=lambda row: row["value"])
    values = [row["value"] for row in finite]
    floors = [row["floor"] for row in found if row["floor"] is not None and math.isfinite(row["floor"])]
    said = "no number" if not values else f"{_with_interval(finite[len(finite) // 2])} at the middle place"
    said += f", {values[0]:.3g} to {values[-1]:.3g} over all" if len(values) > 1 else ""
    said += f" where {median(floors):.3g} is chance" if floors else ""
    counts = f"above in {above} of {len(found)} places, below in {below}, undecided in {len(found) - above - below}"
    if 2 * wanted > len(found):
        return Compared(AGREES, f"{said}; {counts}")
    if 2 * other > len(found):
        return Compared(DIFFERS, f"{said}; {counts}")
    return Compared(NEITHER, f"{said}; {counts}", "the rows decide neither way in more than half of the places")


def _with_interval(row: Row) -> str:
    interval = "" if row["low"] is None or row["high"] is None else f" [{row['low']:.3g}, {row['high']:.3g}]"
    return f"{row['value']:.3g}{interval}"


def _main_rank(rows: Sequence[Row]) -> int | str | None:
    """The rank that most energies are of; others are shown beside."""
    ranks = [rank_of(row) for row in rows if row["measure"] in ("energy", "check") and row["rank"] is not None]
    return max(set(ranks), key=ranks.count) if ranks else None


def _side(row: Row) -> int:
    """1 above, −1 below, 0 where it cannot be told."""
    outcome = row["outcome"]
    if outcome is not None:
        return 1 if outcome in ("above", "equal, above 1") else -1 if outcome in ("below", "equal, below 1") else 0
    word = MEASURES.get(row["measure"])
    level = row["floor"] if row["floor"] is not None else None if word is None else word.no_effect
    if level is None or row["low"] is None or row["high"] is None:
        return 0
    return 1 if row["low"] > level else -1 if row["high"] < level else 0


def _shape(claim: Claim, rows: Sequence[Row], steps: int) -> Compared | None:
    """The named shape of a layer profile."""
    wanted = {key: value for key, value in claim.where.items() if key != "variant"}
    variant = claim.where["variant"]
    rows = [row for row in rows if row["variant"] == variant and matches(row, wanted)]
    found = next((row for row in rows if row["measure"] == "prominence"), None)
    peak = next((row for row in rows if row["measure"] == "peak_layer"), None)
    if found is None or peak is None:
        return None
    word, turned = found["note"], found["note"] in ("bell", "valley")
    said = f"{word}" + (f", at layer {peak['value']:.0f}" if turned else "")
    if turned and found["low"] is not None:
        said += f", prominence {found['value']:.3g} [{found['low']:.3g}, {found['high']:.3g}]"
    if word == "cannot tell":
        return Compared(NEITHER, said, "the shape cannot be told from these batches; take more of them")
    is_bell = word == "bell"
    agrees = is_bell if claim.expect == "bell" else not is_bell
    return Compared(AGREES if agrees else DIFFERS, said)


def _turns(claim: Claim, rows: Sequence[Row], steps: int) -> Compared | None:
    """The directions that the median over layers takes; a change counts if it exceeds the summed half-intervals."""
    by_step: dict[int, list[Row]] = {}
    for row in _found(claim, rows, steps):
        if row["layer"] is not None and row["step"] is not None and math.isfinite(row["value"]):
            by_step.setdefault(row["step"], []).append(row)
    if len(by_step) < 3:
        return None
    xs = sorted(by_step)
    ys = [median(row["value"] for row in by_step[x]) for x in xs]
    halves = [_half_interval(by_step[x]) for x in xs]
    if any(half is None for half in halves):
        return Compared(NEITHER, _course(xs, ys), "an observation has no interval")
    taken = turns(ys, [half or 0.0 for half in halves])
    said = f"{', '.join(taken) or 'no change'}: {_course(xs, ys)}"
    expected = [part.strip() for part in (claim.expect or "").split(",")]
    if taken == expected:
        return Compared(AGREES, said)
    if expected[: len(taken)] == taken:
        return Compared(
            NEITHER, said, "the training may have ended before the later phases, or they are within its error"
        )
    return Compared(DIFFERS, said)


def turns(ys: Sequence[float], halves: Sequence[float]) -> list[str]:
    """The directions of a curve between its turning points.

    >>> turns([5, 3, 1, 4, 8, 6.9, 2], [0.5] * 7), turns([1, 1.1, 1.2], [0.5] * 3)
    (['down', 'up', 'down'], [])
    """
    taken: list[str] = []
    low = high = 0  # the extremes since the last turning point
    for k, y in enumerate(ys):
        low, high = (k if y < ys[low] else low), (k if y > ys[high] else high)
        rose = y - ys[low] > halves[k] + halves[low]
        fell = ys[high] - y > halves[k] + halves[high]
        if rose and (not taken or taken[-1] == "down"):
            taken.append("up")
            high = k
        elif fell and (not taken or taken[-1] == "up"):
            taken.append("down")
            low = k
        elif taken and taken[-1] == "up" and high == k:
            low = k  # a fall is measured from the top, the next rise from the bottom after it
        elif taken and taken[-1] == "down" and low == k:
            high = k
    return taken


def _half_interval(rows: Sequence[Row]) -> float | None:
    halves = [(row["high"] - row["low"]) / 2 for row in rows if row["low"] is not None and row["high"] is not None]
    return median(halves) if 2 * len(halves) >= len(rows) else None


def _course(xs: Sequence[int], ys: Sequence[float]) -> str:
    low, high = min(range(len(ys)), key=ys.__getitem__), max(range(len(ys)), key=ys.__getitem__)
    at = dict.fromkeys([0, low, high, len(ys) - 1])
    return " → ".join(f"{ys[k]:.3g} at step {xs[k]:,}" for k in sorted(at))


def _more_than(claim: Claim, rows: Sequence[Row], steps: int) -> Compared | None:
    """One measure above another at more than half of the layers."""
    first, second = (
        {(row["layer"], row["step"]): row for row in _found(claim, rows, steps, where) if _whole(row, where)}
        for where in (claim.where, claim.other)
    )
    both = [(first[key], second[key]) for key in first if key in second]
    if not both:
        return None
    above, below = (sum(_apart(a, b) for a, b in pairs) for pairs in (both, [(b, a) for a, b in both]))
    said = f"{median(a['value'] for a, _ in both):.3g} beside {median(b['value'] for _, b in both):.3g}"
    counts = f"above in {above} of {len(both)} places, below in {below}"
    if 2 * above > len(both):
        return Compared(AGREES, f"{said}; {counts}")
    if 2 * below > len(both):
        return Compared(DIFFERS, f"{said}; {counts}")
    return Compared(NEITHER, f"{said}; {counts}", "their intervals overlap in more than half of the places")


def _whole(row: Row, where: dict[str, Any]) -> bool:
    """Of a layer, with a number, and of the usual variant unless another is asked for."""
    usual = "variant" in where or row["variant"] in (None, "clusters=16")
    return row["layer"] is not None and math.isfinite(row["value"]) and usual


def _apart(a: Row, b: Row) -> bool:
    """Whether one lies above the other with its interval, where it has one."""
    low = a["value"] if a["low"] is None else a["low"]
    high = b["value"] if b["high"] is None else b["high"]
    return low > high


_COMPARE: dict[str, Callable[[Claim, Sequence[Row], int], Compared | None]] = {
    "above": _above,
    "below": _above,
    "shape": _shape,
    "turns": _turns,
    "more than": _more_than,
}
