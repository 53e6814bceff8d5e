"""``anisoscope ablate``: remove a proxy from one block at a time, and see what it costs."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter
from pydantic import Field
from rich.console import Console

from anisoscope.cli.command_end import end_with_answer
from anisoscope.cli.early_checks import require_corpus, require_new_run, require_paths, require_tokeniser
from anisoscope.cli.model_command import ExaminationRun, display
from anisoscope.cli.output import print_table, visible
from anisoscope.cli.resume_command import again, means_of, resume
from anisoscope.errors import broken
from anisoscope.escape_text import tell
from anisoscope.jobs.time_left import clock
from anisoscope.study.ablate.ablate_settings import AblateSettings
from anisoscope.study.device import require_device, resolve_device
from anisoscope.study.model_settings import JobOptions
from anisoscope.study.setting_fields import given_in, made_of, part_of
from anisoscope.vocabulary import EQUAL_DISPLACEMENT, REMOVAL_CONTROLS

if TYPE_CHECKING:
    from anisoscope.store.run import Run
    from anisoscope.study.ablate.removal_study import Plan

_SHOWN = 40


class AblateRun(ExaminationRun):
    """What `ablate` takes beside what it removes and where."""

    resume: str | None = Field(
        default=None,
        description="Resume this run with its own settings; only --ray, --gpus, --memory and --retries may be given.",
    )


class AblateCommand(JobOptions, AblateSettings, AblateRun):
    """Every option of `ablate`."""


def ablate(
    *models: Annotated[str, Parameter(negative=())],
    options: Annotated[AblateCommand, Parameter(name="*")] = AblateCommand(),  # noqa: B008
) -> None:
    """Remove a proxy from the residual stream of one block at a time, and measure the loss on held-out tokens.

    The proxy is fitted on one fold of the text and removed from the other. The cost is compared with that of removing
    as many random directions (haar), random directions orthogonal to the proxy (normal) and the next directions by
    variance (next), each removed whole and at equal displacement; by layer, rank and frequency of the target, with
    paired intervals. The models are not changed. A study that was stopped or killed can be resumed with --resume, model
    by model.

    For example:

    * `anisoscope ablate EleutherAI/pythia-160m`
    * `anisoscope ablate SmolLM2-135M.gguf --every 5 --sequences 32 --subset no-first`
    * `anisoscope ablate ./my-model --ranks 1,8,32 --layers 4,8,12`
    * `anisoscope ablate runs/mine/checkpoint-*`
    * `anisoscope ablate runs/20260101-120000-pair --dry-run`

    Parameters
    ----------
    models
        Hub names, folders, GGUF files, a folder of checkpoints, or a run that holds models.

    """
    began = time.monotonic()
    jobs = part_of(options, JobOptions)
    if options.resume is not None:
        resume("ablate", options.resume, options, began, named=["models"] if models else [], show=_costs)
        return
    if not models:
        raise broken("ablate needs a model", "none", "name a folder, a GGUF file, a hub name or a run")
    if options.every is not None and options.layers is not None:
        raise broken("--every and --layers exclude each other", f"{options.every} and {options.layers}", "give one")
    settings = made_of(AblateSettings, {"threads": os.cpu_count() or 1}, given_in(part_of(options, AblateSettings)))
    require_device(settings.device)
    require_new_run(options.out)
    require_corpus(settings.text)
    require_tokeniser(settings.tokeniser)
    require_paths(models)
    from anisoscope.study.ablate import removal_study as study

    resolve_device(settings.device)
    plan = study.planned(models, settings)
    _shown(plan)
    if options.dry_run:
        return
    with display() as listener:
        run = study.begun(
            plan, settings, means_of(jobs, settings.threads), listener, out=options.out, page=options.report
        )
    _costs(run)
    end_with_answer(run, began, report=options.report, again=again("ablate", run.path))


def _shown(plan: Plan) -> None:
    console = Console(highlight=False, soft_wrap=True)
    for model, card in zip(plan.models, plan.cards, strict=True):
        what = (
            f"{visible(model.name)}, step {model.step:,}: {card.objective}, {card.layers} layers of width {card.width}"
        )
        tell(console, f"{what}, {card.parameters / 1e6:,.1f} million parameters")
        for note in card.notes:
            tell(console, f"note: {note}")
    tell(console, f"{plan.passes:,} passes of the text, about {clock(plan.seconds)} (an estimate)")


def _costs(run: Run) -> None:
    """By layer: what the proxy costs, and how it stands to each control at equal displacement."""
    table = run.whole_table().to_pylist()
    usual = run.manifest.get("config", {}).get("subset")
    excess = {
        (row["model"], row["step"], row["layer"], row["rank"], row["null"]): row
        for row in table
        if row["measure"] == "removal_excess" and row["variant"] == EQUAL_DISPLACEMENT and row["subset"] == usual
    }
    rows = []
    for row in table:
        own = row["measure"] == "removal_cost" and row["null"] is None and row["variant"] is None
        if own and row["subset"] == usual:
            key = (row["model"], row["step"], row["layer"], row["rank"])
            named = [visible(str(row["model"])), f"{row['step']}", f"{row['layer']}", f"{row['rank']}", _number(row)]
            rows.append([*named, *(excess[*key, control]["outcome"] for control in REMOVAL_CONTROLS)])
    heads = ["model", "step", "layer", "rank", "cost, nats", *(f"over {control}" for control in REMOVAL_CONTROLS)]
    if not rows:
        return
    print_table(heads, rows[:_SHOWN], right=["step", "layer", "rank", "cost, nats"])
    console = Console(highlight=False, soft_wrap=True)
    if len(rows) > _SHOWN:
        tell(console, f"and {len(rows) - _SHOWN} more")
    tell(console, "over CONTROL: cost of the proxy compared with that of the control, at equal displacement")


def _number(row: dict[str, float | None]) -> str:
    low, high = row["low"], row["high"]
    ends = "" if low is None or high is None else f" [{low:.3g}, {high:.3g}]"
    return f"{row['value']:.3g}{ends}"
