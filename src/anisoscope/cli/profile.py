"""``anisoscope profile``: every layer of one model, and its gradients on a text."""

from __future__ import annotations

import time
from datetime import datetime
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter
from pydantic import Field
from rich.console import Console

from anisoscope.cli.command_end import end_with_answer
from anisoscope.cli.early_checks import require_corpus, require_models, require_new_run, require_tokeniser
from anisoscope.cli.layer_table import print_layers
from anisoscope.cli.model_command import ExaminationRun, display, shown_size, threads_to_go_on_with
from anisoscope.cli.output import print_table, visible
from anisoscope.cli.resume_command import again, require_own, told_how_to_go_on
from anisoscope.cpu_cores import usable_cores
from anisoscope.errors import broken
from anisoscope.escape_text import tell
from anisoscope.study.device import require_device, resolve_device
from anisoscope.study.model_settings import ProfileSettings
from anisoscope.study.setting_fields import given_in, made_of, part_of

if TYPE_CHECKING:
    from anisoscope.store.run import Run


class ProfileRun(ExaminationRun):
    """What `profile` takes beside what it measures."""

    resume: str | None = Field(
        default=None, description="Resume this run with its own settings; no others may be given."
    )


class ProfileCommand(ProfileSettings, ProfileRun):
    """Every option of `profile`."""


def profile(
    model: str = "",
    /,
    *,
    options: Annotated[ProfileCommand, Parameter(name="*")] = ProfileCommand(),  # noqa: B008
) -> None:
    """Measure every layer of an existing MODEL: isotropy, intrinsic dimension, and gradients against all nulls.

    Each layer is measured with and without first positions and special tokens, over several batches of vectors. The
    gradients on the text are compared with those of an untrained twin of the same configuration. Everything goes into a
    run with a report, and a table of the layers is printed. By default, there are as many threads as this process has
    cores (or OMP_NUM_THREADS). --quick gives a first look in about a seventh of the time. A profile that was stopped
    can be resumed with --resume, stage by stage.

    For example:

    * `anisoscope profile EleutherAI/pythia-160m@step512`
    * `anisoscope profile ./my-model --text "books/*.txt"`
    * `anisoscope profile SmolLM2-135M.gguf --text kjv --batches 2`
    * `anisoscope profile ./my-model --quick`
    * `anisoscope profile bert-base-uncased --dry-run`
    * `anisoscope profile --resume runs/20260101-120000-profile`

    Parameters
    ----------
    model
        A hub name with an optional @revision, a name from the literature (pythia-160m), a folder, or a GGUF file.

    """
    began = time.monotonic()
    if options.resume is not None:
        _resumed(model, options, began)
        return
    if not model:
        raise broken("profile needs a MODEL", "none", "name a folder, a .gguf file or a model of the hub")
    given = given_in(part_of(options, ProfileSettings))
    settings = made_of(ProfileSettings, {"threads": usable_cores()}, given)
    require_device(settings.device)
    require_new_run(options.out)
    require_corpus(settings.text)
    require_tokeniser(settings.tokeniser)
    require_models([model], allow_pickle=settings.allow_pickle)
    from anisoscope.study.profile.profile_study import planned
    from anisoscope.study.profile.profile_study import profile as study

    resolve_device(settings.device)
    card, size = planned(model, settings)
    console = Console(highlight=False, soft_wrap=True)
    what = f"{visible(card.located.name)}: {card.objective}, {card.layers} layers of width {card.width}"
    tell(console, f"{what}, {card.parameters / 1e6:,.1f} million parameters")
    for note in card.notes:
        tell(console, f"note: {note}")
    tell(console, shown_size(size))
    if options.dry_run:
        return
    folder = options.out or f"runs/{datetime.now():%Y%m%d-%H%M%S}-profile"
    with told_how_to_go_on("profile", folder, "stages"), display() as listener:
        run = study(model, settings, listener, out=folder, page=options.report)
    _end(run, began, options)


def _resumed(model: str, options: ProfileCommand, began: float) -> None:
    require_own(options, named=["MODEL"] if model else [])
    threads_to_go_on_with(str(options.resume), "profile")  # its own, as its settings say
    from anisoscope.study.profile.profile_study import resume as study

    with told_how_to_go_on("profile", str(options.resume), "stages"), display() as listener:
        run = study(str(options.resume), listener, page=options.report)
    _end(run, began, options)


def _end(run: Run, began: float, options: ProfileCommand) -> None:
    print_layers(run.whole_table().to_pylist())
    _shapes(run)
    end_with_answer(run, began, report=options.report, again=again("profile", run.path))


def _shapes(run: Run) -> None:
    """The shape of the profile, with and without the tokens that decide it."""
    table = run.whole_table().to_pylist()
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
