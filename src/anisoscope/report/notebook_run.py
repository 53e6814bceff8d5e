"""A run in a notebook: its headline when shown, curves and verdicts as tidy frames, and figures like the page's."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from anisoscope.errors import broken
from anisoscope.report.about import about
from anisoscope.report.answer import answer
from anisoscope.report.ladder_findings import JUDGED, findings
from anisoscope.report.paper_figures import Width, figure_of
from anisoscope.report.reading import Choice, Context, chosen_context, read
from anisoscope.report.sections.emergence import NULL_AT_ONE
from anisoscope.report.sections.first_screen import ladder_table
from anisoscope.report.summary import errors
from anisoscope.report.templates import filled
from anisoscope.report.tree import Axis, Figure, Point, Series
from anisoscope.store.run import Run
from anisoscope.store.run import open_run as open_stored
from anisoscope.vocabulary import MEASURES, NULLS, ladder_of, rank_of

_KEYS = ("model", "seed", "step", "layer", "view", "tensor", "subset", "proxy", "rank", "timing", "null", "variant")
_NUMBERS = ("value", "low", "high", "low90", "high90", "se", "n", "p", "q", "outcome", "detectable", "floor")


class OpenedRun(Run):
    """A run that is read: all of ``Run``, and what a notebook wants to see of it."""

    def _context(self, proxy: str | None = None, timing: str | None = None) -> Context:
        context = read([self.path], allow_damaged=True)
        return chosen_context(context, Choice(proxy=proxy, timing=timing)) if proxy or timing else context

    def curve(self, measure: str = "enrichment", **where: Any) -> Any:
        """Rows of a measure as a tidy pandas frame, a row a step, layer and seed, with the columns of its interval.

        ``where`` are columns with a value or several (``null="haar"``, ``layer=[1, 2]``). Of proxy, timing, tokens and
        rank the main ones are taken unless they are named; name one with ``...`` for all there are.
        """
        import pandas as pd

        context = self._context()
        known = sorted({name for subject in context.subjects for name in subject.by_measure if name in MEASURES})
        if measure not in known:
            raise broken("the measure must be one that the run holds", measure, f"there are {', '.join(known)}")
        unknown = sorted(set(where) - set(_KEYS) - {"role"})
        if unknown:
            raise broken(
                "columns to choose by must be keys of a row", ", ".join(unknown), f"they are {', '.join(_KEYS)}"
            )
        rows = []
        for subject in context.subjects:
            usual = {"proxy": subject.proxy, "rank": subject.rank, "timing": subject.timing, "subset": subject.subset}
            for row in subject.by_measure.get(measure, []):
                main = all(_asked(row, key) in (None, value) for key, value in usual.items() if key not in where)
                if main and row["step"] is not None and all(_fits(row[key], value) for key, value in where.items()):
                    rows.append(row)
        frame = pd.DataFrame(rows, columns=["role", *_KEYS, *_NUMBERS])
        order = ["role", "model", "view", "tensor", "null", "proxy", "seed", "layer", "step"]
        return frame.sort_values(order, kind="stable", na_position="first").reset_index(drop=True)

    def verdicts(self, view: str = "representation", *, proxy: str | None = None, timing: str | None = None) -> Any:
        """The ladder as a tidy pandas frame: a row a model, window and null, with its outcome, number and interval."""
        import pandas as pd

        rows = []
        for f in findings(self._context(proxy, timing), view):
            for null in ladder_of(view) if f.verdict is not None and f.window in JUDGED else ():
                effect = f.effects.get(null)
                share = f.shares
                rows.append(
                    {
                        "model": f.subject.label,
                        "window": f.window,
                        "null": null,
                        "outcome": f.outcome(null),
                        "passed": ladder_of(view).index(null) < f.height,
                        "odds_ratio": effect.value if effect else None,
                        "low": effect.low if effect else None,
                        "high": effect.high if effect else None,
                        "share": share.share if share else None,
                        "chance": share.chance if share else None,
                        "layers": f.verdict.total if f.verdict else None,
                        "layers_above": f.verdict.merged(null).get("above", 0.0) if f.verdict else None,
                    }
                )
        return pd.DataFrame(rows)

    def plot(
        self, measure: str = "enrichment", *, width: Width = "auto", style: str | None = None, **where: Any
    ) -> Any:
        """A matplotlib figure of a curve as the report has it: a line a layer, a panel a model, the null at 1."""
        if measure == "enrichment":
            where = {"null": "haar", "view": "representation", "tensor": "gradients"} | where
        frame = self.curve(measure, **where)
        if frame.empty:
            raise broken("there must be rows to draw", f"none with {where}", "look at run.rows() for what there is")
        return figure_of(_figure(self._context(), measure, where, frame), width=width, style=style)

    def _repr_html_(self) -> str:
        """The headline: what was trained, the answer, and which nulls are passed."""
        context = self._context()
        found = findings(context, "representation")
        said, table = answer(found), ladder_table(found)
        return filled(
            "notebook.html.j2", about=about(context), head=said.head, text=" ".join(said.sentences), ladder=table
        )


def open_run(path: str | os.PathLike[str], *, write: bool = False) -> OpenedRun:
    """Open a run to read it, or with ``write`` to go on with it; in a notebook it shows its headline."""
    return open_stored(path, write=write, of=OpenedRun)


def _asked(row: Mapping[str, Any], column: str) -> Any:
    """What a row holds; of ranks, what was asked for."""
    return rank_of(row) if column == "rank" else row[column]


def _fits(value: Any, wanted: Any) -> bool:
    if wanted is ...:
        return True
    return value in wanted if isinstance(wanted, list | tuple | set) else value == wanted


def _figure(context: Context, measure: str, where: dict[str, Any], frame: Any) -> Figure:
    """One line a layer, seeds and modules apart."""
    series = []
    for (role, model, layer, seed), part in frame.groupby(["role", "model", "layer", "seed"], dropna=False):
        points = [_point(row) for row in part.to_dict("records")]
        name = str(role).capitalize() if isinstance(role, str) else str(model)
        tags = {"model": name, "layer": "model" if layer != layer or layer is None else f"{layer:g}"}
        series.append(Series(f"{name}, layer {tags['layer']}, seed {seed}", tags, points))
    words = MEASURES[measure].label if measure in MEASURES else measure
    over = f" over {where['null']}" if where.get("null") in NULLS else ""
    is_ratio = measure in MEASURES and MEASURES[measure].no_effect == 1.0
    return Figure(
        measure,
        words,
        errors(context),
        words,
        Axis(context.x_label, log=context.x_log),
        Axis(words + over, log=is_ratio),
        series,
        colour="layer",
        panel="model",
        references=[NULL_AT_ONE] if is_ratio else [],
        zones=context.zones,
    )


def _point(row: dict[str, Any]) -> Point:
    low, high = (None if row[end] is None or row[end] != row[end] else row[end] for end in ("low", "high"))
    value = row["value"]
    return Point(row["step"], None if value is None or value != value else value, low, high)
