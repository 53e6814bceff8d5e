"""``anisoscope profile``: every layer of one model, and its gradients on a text."""

from __future__ import annotations

import os
from typing import Annotated

from cyclopts import Parameter
from rich.console import Console

from anisoscope.cli.examining import ExaminationRun, display, finish, shown_size
from anisoscope.cli.showing import print_table, visible
from anisoscope.study.model_settings import ProfileSettings
from anisoscope.study.options import given_in, made_of, part_of
from anisoscope.visible import tell


class ProfileCommand(ProfileSettings, ExaminationRun):
    """Every option of `profile`."""


def profile(
    model: str,
    /,
    *,
    options: Annotated[ProfileCommand, Parameter(name="*")] = ProfileCommand(),  # noqa: B008
) -> None:
    """Measure every layer of a MODEL that exists: isotropy, intrinsic dimension, and gradients against all nulls.

    Each layer is measured with and without first positions and special tokens, over several batches of vectors. The
    gradients on the text are judged beside the untrained twin of the same configuration. Everything goes into a run
    with a report. Threads are by default as many as there are cores. --quick is a first look, in about a
    seventh of the time.

    For example:

    * `anisoscope profile EleutherAI/pythia-160m@step512`
    * `anisoscope profile ./my-model --text "books/*.txt"`
    * `anisoscope profile SmolLM2-135M.gguf --text kjv --batches 2`
    * `anisoscope profile ./my-model --quick`
    * `anisoscope profile bert-base-uncased --dry-run`

    Parameters
    ----------
    model
        A hub name with an optional @revision, a name of the literature (pythia-160m), a folder, or a GGUF file.

    """
    given = given_in(part_of(options, ProfileSettings))
    settings = made_of(ProfileSettings, {"threads": os.cpu_count() or 1}, given)
    from anisoscope.study.profile import planned
    from anisoscope.study.profile import profile as study

    card, size = planned(model, settings)
    console = Console(highlight=False, soft_wrap=True)
    what = f"{visible(card.located.name)}: {card.objective}, {card.layers} layers of width {card.width}"
    tell(console, f"{what}, {card.parameters / 1e6:,.1f} million parameters")
    for note in card.notes:
        tell(console, f"note: {note}")
    tell(console, shown_size(size))
    if options.dry_run:
        return
    with display() as overseer:
        run = study(model, settings, overseer, out=options.out)
    _shapes(run)
    finish(run, report=options.report, again="Run it again to begin anew.")


def _shapes(run: object) -> None:
    """The shape of the profile, with and without the tokens that decide it."""
    from anisoscope.store.run import Run

    assert isinstance(run, Run)
    table = run.table().to_pylist()
    rows = []
    for row in table:
        if row["measure"] == "prominence" and row["step"] == 1:
            peak = next(
                r["value"]
                for r in table
                if r["measure"] == "peak_layer" and r["step"] == 1 and _same(r, row, "variant", "subset")
            )
            turned = row["note"] in ("bell", "valley")
            height = [f"{row['value']:.3g}", f"{row['low']:.3g} to {row['high']:.3g}"] if turned else ["", ""]
            rows.append([row["variant"], row["subset"], row["note"], f"{peak:.0f}" if turned else "", *height])
    print_table(["measure", "tokens", "shape", "peak layer", "prominence", "95 % interval"], rows, right=["peak layer"])


def _same(a: dict[str, object], b: dict[str, object], *names: str) -> bool:
    return all(a[name] == b[name] for name in names)
