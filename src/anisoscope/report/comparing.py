"""Runs side by side: the same headline numbers at the same fractions of training, and what was set differently."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from anisoscope.errors import broken
from anisoscope.store.run import Run
from anisoscope.vocabulary import HEADLINES, matches, rank_of

FRACTIONS = (0.0, 0.1, 0.3, 0.7, 1.0)
TOLERANCE = 0.1  # wide enough for the schedule "log", whose last look comes 8 % before the end

_NEEDED = [
    "model",
    "role",
    "seed",
    "step",
    "view",
    "tensor",
    "subset",
    "proxy",
    "rank",
    "rank_rule",
    "timing",
    "measure",
    "variant",
]
_NEEDED += ["null"]
Row = dict[str, Any]
Key = tuple[str | None, str | None, int | None]  # role, model, seed


@dataclass(frozen=True, slots=True)
class Subject:
    """A run as it is compared: its rows, its manifest, and a label that no other subject has."""

    label: str
    path: str
    manifest: Mapping[str, Any]
    table: pa.Table

    @property
    def config(self) -> dict[str, Any]:
        """What the run was asked for, a setting inside another as ``outer.inner``."""
        return dict(flat(self.manifest.get("config")))


@dataclass(frozen=True, slots=True)
class Cell:
    """A median over ``layers`` layers at ``step``, which is ``at`` of the training; NaN if undefined in all of them."""

    value: float
    step: int
    at: float
    layers: int


@dataclass(frozen=True, slots=True)
class Line:
    """One headline of one model of a run, a cell for each fraction; None where nothing was observed near it."""

    measure: str
    run: str
    role: str | None
    model: str | None
    seed: int | None
    cells: tuple[Cell | None, ...]


@dataclass(frozen=True, slots=True)
class Difference:
    """A setting that is not the same in all runs; a run without it is not among the values."""

    key: str
    values: dict[str, Any]


def subjects(runs: Sequence[Run]) -> list[Subject]:
    """Read runs to compare them; those that share a name are told apart by their path."""
    names, paths = [run.name for run in runs], [run.path.rstrip("/") for run in runs]
    twice = next((path for path in paths if paths.count(path) > 1), None)
    if twice is not None:
        raise broken("runs to compare must be different ones", f"{twice} twice", "name each run once")
    labels = [run.name if run.name and names.count(run.name) == 1 else run.path for run in runs]
    return [Subject(label, run.path, run.manifest, run.table()) for label, run in zip(labels, runs, strict=True)]


def differences(compared: Sequence[Subject]) -> list[Difference]:
    """Settings that differ between the configurations of runs, by name."""
    configs = {subject.label: subject.config for subject in compared}
    keys = sorted({key for config in configs.values() for key in config})
    found = [Difference(key, {run: config[key] for run, config in configs.items() if key in config}) for key in keys]
    return [
        difference
        for difference in found
        if len(difference.values) < len(configs) or len({_written(v) for v in difference.values.values()}) > 1
    ]


def lines(
    compared: Sequence[Subject],
    *,
    measures: Sequence[str] = tuple(HEADLINES),
    fractions: Sequence[float] = FRACTIONS,
    tolerance: float = TOLERANCE,
) -> list[Line]:
    """Headlines of all runs, a measure's lines together; a measure that no run has is left out."""
    unknown = [measure for measure in measures if measure not in HEADLINES]
    if unknown:
        raise broken("measures to compare must be headlines", ", ".join(unknown), f"known are {', '.join(HEADLINES)}")
    found = {subject.label: _series(subject.table) for subject in compared}
    steps = {subject.label: training_steps(subject)[0] for subject in compared}
    result = []
    for measure in measures:
        held = {label: {key: has[measure] for key, has in of.items() if measure in has} for label, of in found.items()}
        if not any(held.values()):
            continue
        for subject in compared:
            label = subject.label
            for (role, model, seed), values in _with_absent_roles(held[label], found[label]).items():
                cells = at_fractions(values, steps[label], fractions=fractions, tolerance=tolerance)
                result.append(Line(measure, label, role, model, seed, cells))
    return result


def training_steps(subject: Subject) -> tuple[int | None, str]:
    """How long the training is, and where that was read: in the manifest, else from the last observation."""
    for where, steps in (("manifest", subject.manifest.get("steps")), ("config", subject.config.get("steps"))):
        if isinstance(steps, int) and not isinstance(steps, bool) and steps > 0:
            return steps, where
    observed = [step for step in subject.table["step"].to_pylist() if step is not None]
    return max(observed, default=None), "largest step"


def at_fractions(
    values: Mapping[int, Sequence[float | None]],
    steps: int | None,
    *,
    fractions: Sequence[float] = FRACTIONS,
    tolerance: float = TOLERANCE,
) -> tuple[Cell | None, ...]:
    """Medians at the observation nearest to each fraction; none stands at two fractions, or farther than the tolerance.

    >>> cells = at_fractions({0: [1.0, 3.0], 95: [2.0]}, 100, fractions=(0, 0.05, 1))
    >>> [cell and (cell.value, cell.step) for cell in cells]
    [(2.0, 0), None, (2.0, 95)]
    """
    at = {step: step / steps if steps else 0.0 for step in sorted(values)}
    cells: list[Cell | None] = []
    for fraction in fractions:
        step = min(at, key=lambda step: abs(at[step] - fraction), default=None)
        if step is None or not _stands(at[step], fraction, fractions, tolerance):
            cells.append(None)
            continue
        defined = [value for value in values[step] if value is not None and math.isfinite(value)]
        cells.append(Cell(statistics.median(defined) if defined else math.nan, step, at[step], len(defined)))
    return tuple(cells)


def _stands(at: float, fraction: float, fractions: Sequence[float], tolerance: float) -> bool:
    """Whether an observation is near enough to a fraction, and nearer to it than to any other."""
    near = abs(at - fraction) <= tolerance + 1e-12  # rounding must not decide: 0.3 − 0.2 is no more than 0.1
    return near and min(fractions, key=lambda other: abs(other - at)) == fraction


def _series(table: pa.Table) -> dict[Key, dict[str, dict[int, list[float | None]]]]:
    """Values of each model of a run: headline, then step, then one of each layer."""
    measures = sorted({str(headline.where["measure"]) for headline in HEADLINES.values()})
    rows = (
        table.filter(pc.call_function("is_in", [table["measure"]], pc.SetLookupOptions(pa.array(measures))))
        .select([*_NEEDED, "value"])
        .to_pylist()
    )
    first: dict[Key, tuple[str, int | str | None]] = {}  # the main proxy and rank come before ablations of both
    found: dict[Key, dict[str, dict[int, list[float | None]]]] = {}
    for row in rows:
        key = (row["role"], row["model"], row["seed"])
        if row["proxy"] is not None:
            first.setdefault(key, (row["proxy"], rank_of(row)))
        if row["step"] is None or (row["proxy"] is not None and (row["proxy"], rank_of(row)) != first[key]):
            continue
        for headline in _headlines_of(row):
            found.setdefault(key, {}).setdefault(headline, {}).setdefault(row["step"], []).append(row["value"])
    return found


def _headlines_of(row: Row) -> Iterator[str]:
    for name, headline in HEADLINES.items():
        if matches(row, headline.where):
            yield name


def _with_absent_roles(held: dict[Key, Any], of_run: Iterable[Key]) -> dict[Key, Any]:
    """One empty series for each role of the run that lacks the measure: a gap is to be seen."""
    roles = list(dict.fromkeys(role for role, _, _ in of_run)) or [None]
    return held | {(role, None, None): {} for role in roles if role not in {key[0] for key in held}}


def flat(config: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Settings one by one, a setting inside another as ``outer.inner``."""
    for key, value in config.items() if _is(config) else ():
        if _is(value) and value:
            yield from flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _is(value: Any) -> bool:
    return isinstance(value, Mapping)


def _written(value: Any) -> str:
    return json.dumps(value, sort_keys=True, default=str)
