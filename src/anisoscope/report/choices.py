"""Choices at the top of the page: proxy, timing, tokens, view, seed; every combination that rows answer to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from anisoscope.report.ladder_findings import enrichment_rows
from anisoscope.report.reading import Choice, Context, Row, Subject, chosen_context
from anisoscope.report.tree import Control, Series, values_of
from anisoscope.vocabulary import PROXIES, SUBSETS, TIMINGS, VIEWS

Key = tuple[str, str, str, str]
ALL_SEEDS = "all seeds"
LABELS = {"proxy": "Proxy", "timing": "Timing", "subset": "Tokens", "view": "View", "model": "Model", "seed": "Seed"}
ALL_MODELS = "all models"
MOST_BY_SEED = 40
"""Combinations with a single seed that a page has at most; beyond, those of the choices that it begins with alone."""


@dataclass(frozen=True, slots=True)
class Chosen:
    """One combination: the runs under it, and its view; ``tags`` are its words, as series and templates have them."""

    context: Context
    view: str
    tags: dict[str, str]


def combinations(context: Context) -> list[Chosen]:
    """What a page can show; the first is what it begins with."""
    seeds = {"seed": ALL_SEEDS} if len(_seeds(context)) > 1 else {}
    first = _begins(context, seeds)
    keys = {key for subject in context.subjects for key in _keys(subject)}
    found = [first]
    for proxy, timing, subset, view in sorted(keys, key=_order):
        tags = _tags(proxy, timing, subset, view) | seeds
        if tags != first.tags:
            wanted = Choice(proxy, timing, subset)
            chosen = replace(context, subjects=[subject.choose(wanted) for subject in context.subjects])
            if any(enrichment_rows(s, view, proxy, timing) for s in chosen.subjects):
                found.append(Chosen(chosen, view, tags))
    return found


def fits(context: Context) -> list[Chosen]:
    """The same, views apart: one of each proxy, timing and tokens."""
    found: dict[tuple[tuple[str, str], ...], Chosen] = {}
    for one in combinations(context):
        tags = {key: word for key, word in one.tags.items() if key != "view"}
        found.setdefault(tuple(tags.items()), Chosen(one.context, one.view, tags))
    return list(found.values())


def figure_controls(series: Sequence[Series], begins: dict[str, str]) -> list[Control]:
    """What a figure takes from the choices of the page."""
    values = {key: values_of(series, key) for key in begins}
    return [
        Control(key, LABELS[key], values[key], word, page=True) for key, word in begins.items() if len(values[key]) > 1
    ]


def by_seed(context: Context, found: list[Chosen]) -> list[Chosen]:
    """The same combinations for every single seed, where there are several; of very many only the first."""
    seeds = _seeds(context)
    if len(seeds) < 2:
        return []
    if len(seeds) * len(found) > MOST_BY_SEED:
        found = found[:1]
    made = []
    for seed in seeds:
        alone = chosen_context(context, Choice(seed=seed))
        for one in found:
            wanted = one.context.subjects[0].wanted if one.context.subjects else Choice()
            subjects = [s.choose(Choice(wanted.proxy, wanted.timing, wanted.subset)) for s in alone.subjects]
            made.append(Chosen(replace(alone, subjects=subjects), one.view, one.tags | {"seed": f"seed {seed}"}))
    return made


def alone(one: Chosen, model: str) -> Chosen:
    """The same choices with one model alone."""
    mine = [subject for subject in one.context.subjects if subject.label == model]
    return Chosen(replace(one.context, subjects=mine), one.view, one.tags)


def page_controls(context: Context, found: list[Chosen]) -> list[Control]:
    """The controls at the top: those with more than one value."""
    first = found[0].tags
    controls = []
    for key, label in LABELS.items():
        if key == "model":
            values = [ALL_MODELS, *(subject.label for subject in context.subjects)]
            selected = ALL_MODELS
            if len(values) < 3:
                continue
        else:
            values = list(dict.fromkeys(one.tags[key] for one in found if key in one.tags))
            selected = first.get(key)
        if len(values) > 1:
            controls.append(Control(key, label, values, selected))
    return controls


def _seeds(context: Context) -> list[int]:
    return sorted({seed for subject in context.subjects for seed in subject.seeds if seed is not None})


def _begins(context: Context, seeds: dict[str, str]) -> Chosen:
    one = context.subjects[0] if context.subjects else None
    view = "representation"
    return Chosen(context, view, (_tags(one.proxy, one.timing, one.subset, view) | seeds) if one else {})


def _keys(subject: Subject) -> set[Key]:
    """What a model was judged with."""
    if "keys" not in subject.kept:
        rows = subject.by_measure.get("enrichment", [])
        subject.kept["keys"] = {key for row in rows if (key := _key(row)) is not None}
    return subject.kept["keys"]


def _key(row: Row) -> Key | None:
    proxy, timing, subset, view = row["proxy"], row["timing"], row["subset"], row["view"]
    if proxy is None or timing is None or subset not in SUBSETS or view not in VIEWS:
        return None
    return (proxy, timing, subset, view) if row["tensor"] == "gradients" and row["layer"] is not None else None


def _tags(proxy: str, timing: str, subset: str, view: str) -> dict[str, str]:
    return {"proxy": proxy, "timing": timing, "subset": SUBSETS.get(subset, subset), "view": view}


def _order(key: Key) -> tuple[object, ...]:
    proxy, timing, subset, view = key
    known = list(PROXIES)
    place = known.index(proxy) if proxy in known else len(known)
    frozen = list(TIMINGS).index(timing) if timing in TIMINGS else len(TIMINGS)
    return (place, proxy, frozen, list(SUBSETS).index(subset), list(VIEWS).index(view))
