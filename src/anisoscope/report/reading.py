"""Runs as the report sees them: plain rows by model, with the windows of training."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import pyarrow as pa

from anisoscope.errors import AnisoscopeError, broken
from anisoscope.report.compact import compact_rows
from anisoscope.report.formatting import visible
from anisoscope.report.tree import Zone
from anisoscope.store.home import without_home
from anisoscope.store.run import Run, open_run
from anisoscope.verdict import MARGIN
from anisoscope.vocabulary import (
    MAIN_SUBSET,
    MAIN_TENSOR,
    MAIN_TIMING,
    PROXIES,
    in_window,
    learn,
    rank_of,
    window_bounds,
)

Row = Mapping[str, Any]
CROWDED = 0.25
BOTH_UNITS = "sequences or documents"


@dataclass(frozen=True, slots=True)
class Source:
    """One run, read."""

    label: str
    path: str
    manifest: dict[str, Any]
    rows: list[Row]
    damaged: list[str]
    steps: int
    strays: list[str] = field(default_factory=list)

    @property
    def is_profile(self) -> bool:
        """Whether the run is about one finished model: its step 0 is the untrained twin and its step 1 the model."""
        return self.manifest.get("kind") == "profile"

    @property
    def is_verification(self) -> bool:
        """Whether the run holds the checks of proxies of finished models."""
        return self.manifest.get("kind") == "verify"

    @property
    def is_theory(self) -> bool:
        """Whether the run is of the theory laboratory: its rows are about no model."""
        return self.manifest.get("kind") == "theory"

    @property
    def is_ablation(self) -> bool:
        """Whether the run is about removals from finished models alone."""
        return self.manifest.get("kind") == "ablate"

    @property
    def is_plan(self) -> bool:
        """Whether the run is a plan of interventions: its models are arms, and its page is about effects."""
        return self.manifest.get("kind") == "intervene"

    @property
    def status(self) -> str:
        """running, finished or interrupted, as the manifest says; ``unknown`` where it does not."""
        return str(self.manifest.get("status") or "unknown")


@dataclass(frozen=True, slots=True)
class Choice:
    """What a page is asked to begin with; ``None`` is the usual one."""

    proxy: str | None = None
    timing: str | None = None
    subset: str | None = None
    seed: int | None = None


@dataclass(eq=False)
class Subject:
    """One model of one run, with the rows of all its seeds."""

    source: Source
    role: str | None
    model: str | None
    label: str
    rows: list[Row] = field(repr=False)
    wanted: Choice = field(default_factory=lambda: Choice())
    _indexes: dict[tuple[str, tuple[str, ...]], dict[tuple[Any, ...], list[Row]]] = field(
        default_factory=dict, repr=False
    )
    kept: dict[Any, Any] = field(default_factory=dict, repr=False)
    """What was found in these rows, for whoever asks again."""

    def choose(self, wanted: Choice) -> Subject:
        """The same model under other choices; of one seed it has the rows of that seed alone."""
        rows = self.rows if wanted.seed is None else [row for row in self.rows if row["seed"] == wanted.seed]
        other = Subject(self.source, self.role, self.model, self.label, rows, wanted)
        if wanted.seed is None:  # the same rows, which need not be sorted again
            other.__dict__["by_measure"] = self.by_measure
            other._indexes = self._indexes
            other.kept = self.kept
        return other

    @cached_property
    def by_measure(self) -> dict[str, list[Row]]:
        """Rows by what they measure."""
        found: dict[str, list[Row]] = {}
        for row in self.rows:
            found.setdefault(row["measure"] or "", []).append(row)
        return found

    @property
    def seeds(self) -> list[int | None]:
        """Seeds of training, in order; ``None`` where rows have no seed."""
        if "seeds" not in self.kept:
            found = {row["seed"] for row in self.rows}
            self.kept["seeds"] = sorted(found, key=lambda seed: (seed is None, seed or 0))
        return self.kept["seeds"]

    @cached_property
    def proxy(self) -> str:
        """The method that the verdict rests on: the one that was asked for, else pca, or the first that was used."""
        if self.wanted.proxy is not None:
            return self.wanted.proxy
        used = {row["proxy"] for row in self.by_measure.get("enrichment", []) if row["proxy"]}
        return next((name for name in PROXIES if name in used), min(used, default="pca"))

    @property
    def timing(self) -> str:
        """The timing that the verdict rests on."""
        return self.wanted.timing or MAIN_TIMING

    @property
    def subset(self) -> str:
        """The tokens that the verdict rests on."""
        return self.wanted.subset or MAIN_SUBSET

    @cached_property
    def rank(self) -> int | str | None:
        """The rank of the study (others are ablations): that of the configuration, or else the commonest.

        Where every place found its own, the rule by which it did.
        """
        if "ranks" not in self.kept:
            there = self.by_measure.get("enrichment", [])
            self.kept["ranks"] = Counter((row["proxy"], rank_of(row)) for row in there)
        ranks = {rank: count for (proxy, rank), count in self.kept["ranks"].items() if proxy == self.proxy}
        ranks.pop(None, None)
        config = self.source.manifest.get("config")
        wanted = config.get("rank") if isinstance(config, dict) else None
        return (
            wanted
            if isinstance(wanted, int | str) and wanted in ranks
            else max(ranks, key=lambda rank: ranks[rank], default=None)
        )

    @property
    def width(self) -> int | None:
        """D of the representation view; ``None`` if rows do not say.

        Runs of schema 1 have no such column: there it follows from energies and their enrichment over ``haar``, whose
        mean share is K/D.
        """
        if "width" not in self.kept:
            self.kept["width"] = self._width()
        return self.kept["width"]

    def _width(self) -> int | None:
        told = Counter(row["width"] for row in self.pick("energy", view="representation") if row["width"])
        if told:
            return max(told, key=lambda width: told[width])
        energies = {_place(row): row["value"] for row in self.pick("energy", view="representation")}
        found: Counter[int] = Counter()
        for row in self.pick("enrichment", view="representation", null="haar"):
            share, ratio, rank = energies.get(_place(row)), row["value"], row["rank"]
            if share and ratio and rank and 0 < share < 1 and math.isfinite(ratio) and ratio > 0:
                odds = share / (1 - share) / ratio
                found[round(rank * (1 + odds) / odds)] += 1
        return max(found, key=lambda width: found[width], default=None)

    @property
    def unigram_entropy(self) -> float | None:
        """In nats, by the model's own rows or those of the run as a whole."""
        if "unigram" not in self.kept:
            self.kept["unigram"] = self._unigram_entropy()
        return self.kept["unigram"]

    def _unigram_entropy(self) -> float | None:
        whole = (row for row in self.source.rows if row["role"] is None and row["model"] is None)
        rows = [*self.by_measure.get("unigram_entropy", []), *(r for r in whole if r["measure"] == "unigram_entropy")]
        return next((row["value"] for row in rows if row["value"] is not None and math.isfinite(row["value"])), None)

    @property
    def _shared_layers(self) -> set[tuple[str, int]]:
        """Views and layers with several modules."""
        if "shared" not in self.kept:
            self.kept["shared"] = self._layers_with_several_modules()
        return self.kept["shared"]

    def _layers_with_several_modules(self) -> set[tuple[str, int]]:
        found: dict[tuple[str, int], set[str]] = {}
        for row in self.rows:
            if row["site"] is not None and row["layer"] is not None and row["proxy"] is not None:
                found.setdefault((row["view"], row["layer"]), set()).add(row["site"])
        return {key for key, sites in found.items() if len(sites) > 1}

    def map_label(self, row: Row) -> str:
        """Which of several modules of a layer a row is about; empty where there is one."""
        if (row["view"], row["layer"]) not in self._shared_layers or row["site"] is None:
            return ""
        return ".".join(part for part in row["site"].split(".")[-2:] if not part.isdecimal())

    def layer_label(self, row: Row) -> str:
        """A layer, with its module where there are several."""
        return f"{row['layer']} {self.map_label(row)}".rstrip()

    def pick(self, measure: str, **where: Any) -> list[Row]:
        """Rows of a measure with these columns; asked for again by the same columns, they are found at once."""
        keys = tuple(sorted(where))
        if (measure, keys) not in self._indexes:
            index: dict[tuple[Any, ...], list[Row]] = {}
            for row in self.by_measure.get(measure, []):
                index.setdefault(tuple(_key(row, key) for key in keys), []).append(row)
            self._indexes[measure, keys] = index
        return list(self._indexes[measure, keys].get(tuple(where[key] for key in keys), ()))

    @cached_property
    def margin(self) -> float:
        """The margin that the run declared before it began, or the usual one."""
        config = self.source.manifest.get("config")
        said = config.get("margin") if isinstance(config, dict) else None
        return float(said) if isinstance(said, int | float) and 1 < said < math.inf else MARGIN

    def main(self, measure: str, **where: Any) -> list[Row]:
        """Rows of the proxy, timing, tokens and rank that the verdict rests on, those with a layer and a step."""
        return [row for row in self._usual(measure, where) if row["layer"] is not None]

    def model_rows(self, measure: str, **where: Any) -> list[Row]:
        """The same of the model as a whole, which have no layer."""
        return [row for row in self._usual(measure, where) if row["layer"] is None]

    def _usual(self, measure: str, where: dict[str, Any]) -> list[Row]:
        usual = {"proxy": self.proxy, "timing": self.timing, "subset": self.subset, "tensor": MAIN_TENSOR}
        proxy = PROXIES.get(where.get("proxy", self.proxy))
        usual |= {"rank": self.rank if proxy is None or proxy.rank is None else proxy.rank}
        return [row for row in self.pick(measure, **(usual | where)) if row["step"] is not None]

    def window(self, rows: Sequence[Row], name: str) -> list[Row]:
        """Rows of a window of training."""
        inside = self._steps_inside(name)
        return [row for row in rows if row["step"] in inside]

    def _steps_inside(self, name: str) -> frozenset[int]:
        """The steps of these rows that lie in a window: rows are many, steps are few."""
        if ("inside", name) not in self.kept:
            if "steps" not in self.kept:
                self.kept["steps"] = {row["step"] for row in self.rows} - {None}
            steps = (step for step in self.kept["steps"] if in_window(step, self.source.steps, name))
            self.kept["inside", name] = frozenset(steps)
        return self.kept["inside", name]


@dataclass(frozen=True, slots=True)
class Context:
    """All that a page is made from; ``at_most`` bounds the observations a curve shows.

    Where it is not ``drawn``, only words are wanted: a gap stands for each drawing.
    """

    sources: list[Source]
    subjects: list[Subject]
    at_most: int | None = None
    drawn: bool = True

    @property
    def compare(self) -> bool:
        """Whether there are several runs, aligned by the fraction of training."""
        return len(self.sources) > 1

    @property
    def x_label(self) -> str:
        """What runs along the axis of training."""
        if self.compare:
            return "fraction of training"
        return "tokens trained on" if self.sources[0].manifest.get("axis") == "tokens" else "optimiser step"

    @property
    def of_profiles(self) -> bool:
        """Whether all runs are about one finished model each."""
        return all(source.is_profile for source in self.sources)

    @property
    def units(self) -> str:
        """What intervals within a seed are over, as the manifests say; both words where one does not."""
        found = set()
        for source in self.sources:
            given = source.manifest.get("units")
            found |= set(given.values()) if isinstance(given, dict) else {given}
        known = {"document": "documents", "sequence": "sequences"}
        return known.get(next(iter(found)), BOTH_UNITS) if len(found) == 1 else BOTH_UNITS

    @property
    def seeded(self) -> int:
        """The largest number of seeds of a model."""
        return max((len(subject.seeds) for subject in self.subjects), default=1)

    @property
    def x_log(self) -> bool:
        """Whether half of the observations crowd into the first quarter of training: a logarithmic axis shows more."""
        found = {
            row["step"] / s.source.steps
            for s in self.subjects
            for row in s.by_measure.get("enrichment", [])
            if row["step"]
        }
        return bool(found) and sorted(found)[len(found) // 2] < CROWDED

    @property
    def zones(self) -> list[Zone]:
        """The windows of training on its axis."""
        total = 1 if self.compare else self.sources[0].steps
        bounds = {name: window_bounds(name, total) for name in ("early", "late")}
        return [Zone(0.0 if name == "early" else first, last, name) for name, (first, last) in bounds.items()]

    def x(self, subject: Subject, step: int) -> float:
        """Where a step is on the axis of training."""
        return step / subject.source.steps if self.compare else step


def read(paths: Sequence[str], *, allow_damaged: bool = False, wanted: Choice | None = None) -> Context:
    """Open runs and sort their rows by model; parts that were changed since a run was closed are an error.

    ``wanted`` are the proxy and timing that a page begins with; a choice that no row answers to is an error.
    """
    if not paths:
        raise broken("a report must have at least one run", "none", "name the folder of a run")
    sources: list[Source] = []
    for path in paths:
        run = open_run(path)
        if not allow_damaged:
            run.require_whole(rows_only=True)
        sources.append(source_of(run, taken=[source.label for source in sources]))
        if run.damaged and run.recorded is not None and not allow_damaged:  # readable a moment ago
            raise AnisoscopeError(f"cannot read {', '.join(run.damaged)} in {path}; try again, or see verify-run")
    context = Context(sources, [subject for source in sources for subject in _subjects(source, len(sources) > 1)])
    return context if wanted is None else chosen_context(context, wanted)


def chosen_context(context: Context, wanted: Choice) -> Context:
    """The same with other choices; what no row answers to is a caller's mistake."""
    for name in ("proxy", "timing", "subset"):
        asked = getattr(wanted, name)
        judged = (row for subject in context.subjects for row in subject.by_measure.get("enrichment", []))
        there = sorted({row[name] for row in judged if row[name]})
        if asked is not None and asked not in there:
            known = f"there are {', '.join(there)}" if there else "the runs have no judged gradients"
            raise broken(f"the {name} must be one that was judged", asked, known)
    return replace(context, subjects=[subject.choose(wanted) for subject in context.subjects])


def source_of(run: Run, taken: Sequence[str] = ()) -> Source:
    """Read a run; every text in it becomes visible text of bounded length on the way."""
    learn(_shown(run.manifest.get("vocabulary")))
    manifest, path = without_home(run.manifest), without_home(run.path)
    rows: list[Row] = list(compact_rows(run.table(), visible))
    pa.default_memory_pool().release_unused()  # Arrow keeps what the table took for the next one; there is none
    label = visible(run.name or path, 60)
    if label in taken:
        label = f"{label} ({len(taken) + 1})"
    said = run.manifest.get("steps")
    largest = max((row["step"] for row in rows if row["step"] is not None), default=0)
    steps = said if isinstance(said, int) and not isinstance(said, bool) and said > 0 else largest
    damaged, strays = ([visible(name) for name in names] for names in (run.damaged, run.strays))
    return Source(label, visible(path), _shown(manifest), rows, damaged, max(steps, 1), strays)


def _subjects(source: Source, named: bool) -> list[Subject]:
    groups: dict[tuple[str | None, str | None], list[Row]] = {}
    for row in source.rows:
        groups.setdefault((row["role"], row["model"]), []).append(row)
    if len(groups) > 1:
        groups.pop((None, None), None)  # rows about the run as a whole are no model
    roles = Counter(role for role, _ in groups)
    found = []
    for (role, model), rows in sorted(groups.items(), key=lambda item: (item[0][0] or "~", item[0][1] or "")):
        name = model if role is None or roles[role] > 1 else role.capitalize()
        label = " · ".join(part for part in (source.label if named else None, name and visible(name, 40)) if part)
        found.append(Subject(source, role, model, label or source.label, rows))
    return found


def _key(row: Row, column: str) -> Any:
    return rank_of(row) if column == "rank" else row[column]


def _place(row: Row) -> tuple[Any, ...]:
    keys = ("seed", "step", "layer", "site", "view", "tensor", "subset", "proxy", "rank", "timing")
    return tuple(row[key] for key in keys)


def _shown(value: Any) -> Any:
    """The manifest with visible text only."""
    if isinstance(value, str):
        return visible(value)
    if isinstance(value, dict):
        return {visible(str(key), 80): _shown(part) for key, part in value.items()}
    return [_shown(part) for part in value] if isinstance(value, list) else value
