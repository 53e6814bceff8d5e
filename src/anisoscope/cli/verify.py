"""``anisoscope verify``: whether the proxies of a model are more than their construction, and tangent at all."""

from __future__ import annotations

import time
from datetime import datetime
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter
from pydantic import Field
from rich.console import Console

from anisoscope.cli.command_end import end_with_answer
from anisoscope.cli.early_checks import require_corpus, require_models, require_new_run, require_tokeniser
from anisoscope.cli.model_command import ExaminationRun, display, shown_size, threads_to_go_on_with
from anisoscope.cli.output import print_table, visible
from anisoscope.cli.resume_command import again, require_own, told_how_to_go_on
from anisoscope.errors import broken
from anisoscope.escape_text import tell
from anisoscope.study.device import require_device, resolve_device
from anisoscope.study.setting_fields import Words, part_of
from anisoscope.study.verify.verify_settings import Verification

if TYPE_CHECKING:
    from anisoscope.store.run import Run


class VerifyRun(ExaminationRun):
    """What `verify` takes beside its settings."""

    held_out: Words = Field(default=(), description="Models that play no part in any choice, separated by commas.")
    resume: str | None = Field(
        default=None, description="Go on with this run. Its own settings count, so no others may be given."
    )


class VerifyCommand(Verification, VerifyRun):
    """Every option of `verify`."""


def verify(
    model: str = "",
    /,
    *,
    options: Annotated[VerifyCommand, Parameter(name="*")] = VerifyCommand(),  # noqa: B008
) -> None:
    """Check the tangent proxies of a MODEL: the referee's questions, answered on one page.

    Proxies are fitted on one half of the sequences and checked on the other, both ways: against random directions and
    those of largest variance (semi-NMF and PCA are compared on the same sequences), for their angle to estimated
    normals, their stability, and the curvature along them. What is settled is said for energy and for anisotropy, and
    again for each model of --held-out. Checks that were stopped or killed go on with --resume, layer by layer.

    For example:

    * `anisoscope verify ./my-model`
    * `anisoscope verify EleutherAI/pythia-160m --held-out openai-community/gpt2 --rank 16`
    * `anisoscope verify SmolLM2-135M.gguf --layers 4 --sequences 32 --dry-run`
    * `anisoscope verify --resume runs/20260101-120000-verify`

    Parameters
    ----------
    model
        A hub name with an optional @revision, a name of the literature (pythia-160m), a folder, or a GGUF file.

    """
    began = time.monotonic()
    if options.resume is not None:
        _resumed(model, options, began)
        return
    if not model:
        raise broken("verify needs a MODEL", "none", "name a folder, a .gguf file or a model of the hub")
    settings = part_of(options, Verification)
    models = [model, *options.held_out]
    require_device(settings.device)
    require_new_run(options.out)
    require_corpus(settings.text)
    require_tokeniser(settings.tokeniser)
    require_models(models, allow_pickle=settings.allow_pickle)
    from anisoscope.study.verify.verify_study import planned, verified

    resolve_device(settings.device)
    console = Console(highlight=False, soft_wrap=True)
    for card, size in planned(models, settings):
        what = f"{visible(card.located.name)}: {card.objective}, {card.layers} layers of width {card.width}"
        tell(console, f"{what}, {card.parameters / 1e6:,.1f} million parameters")
        for note in card.notes:
            tell(console, f"note: {note}")
        tell(console, shown_size(size))
    if options.dry_run:
        return
    folder = options.out or f"runs/{datetime.now():%Y%m%d-%H%M%S}-verify"
    with told_how_to_go_on("verify", folder, "layers"), display() as listener:
        run = verified(models, settings, listener, out=folder, page=options.report)
    _end(run, began, options)


def _resumed(model: str, options: VerifyCommand, began: float) -> None:
    require_own(options, named=["MODEL"] if model else [])
    folder = str(options.resume)
    threads_to_go_on_with(folder, "verify")  # its own, as its settings say
    from anisoscope.study.verify.verify_study import resumed

    with told_how_to_go_on("verify", folder, "layers"), display() as listener:
        run = resumed(folder, listener, page=options.report)
    _end(run, began, options)


def _end(run: Run, began: float, options: VerifyCommand) -> None:
    _settled(run)
    end_with_answer(run, began, report=options.report, again=again("verify", run.path))


def _settled(run: Run) -> None:
    """What is settled, model by model."""
    rows = [
        [row["model"], row["proxy"], (row["variant"] or "").partition("-")[2] or "energy", row["note"].split(";")[0]]
        for row in run.whole_table().to_pylist()
        if row["measure"] == "check" and (row["variant"] or "").startswith("settling")
    ]
    print_table(["model", "proxy", "by", "random directions are not shown to do worse in"], rows)
