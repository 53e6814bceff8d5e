"""``anisoscope compare``: the headlines of several runs at the same fractions of training."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter
from pydantic import Field, field_validator

from anisoscope.cli.open_runs import clearly, opened, warn_of_damage
from anisoscope.cli.output import as_csv, as_json, print_table, short, visible
from anisoscope.cli.row_filter import nearest
from anisoscope.errors import broken
from anisoscope.study.setting_fields import CommandOptions, Reals, Words
from anisoscope.vocabulary import HEADLINES

if TYPE_CHECKING:
    from anisoscope.report.comparing import Difference, Line, Subject

NONE = "–"
_KEY = ("measure", "run", "role", "model", "seed")


class CompareCommand(CommandOptions):
    """Every option of `compare`."""

    measure: Annotated[Words, Parameter(show_default=False)] = Field(
        default=(),
        description=f"Headlines to compare, separated by commas or repeated: {', '.join(HEADLINES)}. By default: "
        "all that a run has.",
    )
    fractions: Reals = Field(
        default=(0, 0.1, 0.3, 0.7, 1), min_length=1, description="Fractions of training, separated by commas."
    )
    tolerance: float = Field(
        default=0.1,
        ge=0,
        le=1,
        description="Largest distance of an observation from a requested fraction, as a fraction of training.",
    )
    format: Literal["table", "csv", "json"] = Field(
        default="table",
        description="`table`, `csv` (one number per row with the step it was observed at, no configurations) "
        "or `json`.",
    )

    @field_validator("fractions")
    @classmethod
    def _in_order(cls, fractions: tuple[float, ...]) -> tuple[float, ...]:
        if not all(0 <= fraction <= 1 for fraction in fractions):
            raise ValueError("must be numbers in 0 … 1, for example 0,0.5,1")
        return tuple(sorted(set(fractions)))


def compare(
    *runs: Annotated[str, Parameter(negative=())],
    options: Annotated[CompareCommand, Parameter(name="*")] = CompareCommand(),  # noqa: B008
) -> None:
    """Compare two or more RUNS at the same fractions of training.

    Shows what differs between the configurations, then the headline measures: medians over layers, for all tokens and
    the first proxy. Each number is from the nearest observation within the tolerance; if there is none, a dash. The
    length of training is `steps` in the manifest or the configuration, else the largest step observed.

    For example:

    * `anisoscope compare runs/a runs/b`
    * `anisoscope compare runs/seed-* --measure enrichment_haar,loss --fractions 0,0.5,1`
    * `anisoscope compare runs/a runs/b --format csv > compared.csv`

    Parameters
    ----------
    runs
        Folders of runs, or fsspec URLs.

    """
    if len(runs) < 2:
        raise broken("compare needs at least two runs", len(runs), "for one run see: anisoscope rows RUN")
    at, tolerance = options.fractions, options.tolerance
    from anisoscope.report.comparing import differences, lines, subjects

    asked = [nearest("--measure must be a headline", name, tuple(HEADLINES)) for name in options.measure]
    names = tuple(asked or HEADLINES)
    found = [opened(path) for path in runs]
    with clearly(", ".join(runs)):
        compared = subjects(found)
    for run in found:
        warn_of_damage(run)
    different, headlines = differences(compared), lines(compared, measures=names, fractions=at, tolerance=tolerance)
    absent = [name for name in names if name not in {line.measure for line in headlines}]
    if options.format == "table":
        _print_runs(compared)
        _print_differences(different, compared)
        _print_headlines(headlines, at, tolerance, absent)
    elif options.format == "csv":
        columns = [*_KEY, "fraction", "value", "step", "at", "layers"]
        sys.stdout.write(as_csv(columns, _cells(headlines, at)))
    else:
        print(as_json(_document(compared, different, headlines, at, tolerance, absent)))
    sys.stdout.flush()  # a reader that went away is noticed here, where it is handled


def _print_runs(compared: Sequence[Subject]) -> None:
    print_table(
        ("run", "status", "steps", "from", "observed", "path"),
        [[visible(about["run"]), *map(short, list(about.values())[1:])] for about in map(_about, compared)],
        right=("steps", "observed"),
        spare=("path",),
    )
    print()


def _about(subject: Subject) -> dict[str, Any]:
    from anisoscope.report.comparing import training_steps

    steps, source = training_steps(subject)
    observed = {step for step in subject.table["step"].to_pylist() if step is not None}
    return {
        "run": subject.label,
        "status": subject.manifest.get("status"),
        "steps": steps,
        "steps_from": source,
        "observations": len(observed),
        "path": subject.path,
    }


def _print_differences(different: Sequence[Difference], compared: Sequence[Subject]) -> None:
    if different:
        labels = [subject.label for subject in compared]
        cells = [
            [visible(each.key), *(_setting(each.values[label]) if label in each.values else NONE for label in labels)]
            for each in different
        ]
        print_table(("setting", *map(visible, labels)), cells)
    else:
        print("configurations: no difference")
    print()


def _setting(value: Any) -> str:
    return visible(value) if isinstance(value, str) else visible(json.dumps(value, ensure_ascii=False, default=str))


def _print_headlines(headlines: Sequence[Line], at: Sequence[float], tolerance: float, absent: Sequence[str]) -> None:
    """Role, model and seed are shown where they tell lines apart."""
    shown = [name for name in _KEY if name in ("measure", "run") or len({getattr(x, name) for x in headlines}) > 1]
    columns = [*shown, *(f"{fraction:g}" for fraction in at)]
    cells = [
        [
            *(short(getattr(line, name)) for name in shown),
            *(NONE if cell is None else short(cell.value) for cell in line.cells),
        ]
        for line in headlines
    ]
    if cells:
        print_table(columns, cells, right=columns[len(shown) :], spare=("model",))
        print(
            f"\nat fractions of training, nearest observation within ±{tolerance:g}; {NONE} none; medians over layers"
        )
    if absent:
        print(f"in no run: {', '.join(absent)}")


def _cells(headlines: Sequence[Line], at: Sequence[float]) -> list[dict[str, Any]]:
    rows = []
    for line in headlines:
        for fraction, cell in zip(at, line.cells, strict=True):
            key = {name: getattr(line, name) for name in _KEY}
            names = ("value", "step", "at", "layers")
            rows.append(key | {"fraction": fraction} | {name: getattr(cell, name, None) for name in names})
    return rows


def _document(
    compared: Sequence[Subject],
    different: Sequence[Difference],
    headlines: Sequence[Line],
    at: Sequence[float],
    tolerance: float,
    absent: Sequence[str],
) -> dict[str, Any]:
    return {
        "runs": [_about(subject) for subject in compared],
        "differences": [{"setting": each.key, "values": each.values} for each in different],
        "tolerance": tolerance,
        "in_no_run": list(absent),
        "headlines": _cells(headlines, at),
    }
