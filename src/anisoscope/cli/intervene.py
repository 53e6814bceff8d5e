"""``anisoscope intervene``: arms × doses × seeds against a control."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter
from pydantic import Field
from rich.console import Console

from anisoscope.cli.command_end import end_with_answer
from anisoscope.cli.early_checks import require_corpus, require_new_run, require_tokeniser
from anisoscope.cli.model_command import ExaminationRun, display
from anisoscope.cli.output import print_table
from anisoscope.cli.resume_command import again, means_of, resume
from anisoscope.errors import broken
from anisoscope.escape_text import tell
from anisoscope.jobs.time_left import clock
from anisoscope.study.intervene.intervene_settings import ARMS, InterveneSettings, example
from anisoscope.study.model_settings import JobOptions
from anisoscope.study.setting_fields import given_in, made_of, part_of, read_toml

if TYPE_CHECKING:
    from anisoscope.store.run import Run


class InterveneCommand(JobOptions, ExaminationRun):
    """Every option of `intervene`; the plan itself is a TOML file."""

    resume: str | None = Field(
        default=None, description="Resume this run with its own plan; only options for where jobs run may be given."
    )
    pilot: str | None = Field(
        default=None, description="An earlier run of intervene, to estimate which effects the plan could find (power)."
    )
    seeds: int | None = Field(default=None, ge=1, description="Overrides the plan.")
    steps: int | None = Field(default=None, ge=1, description="Overrides the plan.")
    probe_data: str | None = Field(
        default=None, description="A CSV file with the columns text and label (and document) for one more probe."
    )


def intervene(
    plan: str | None = None,
    /,
    *,
    options: Annotated[InterveneCommand, Parameter(name="*")] = InterveneCommand(),  # noqa: B008
) -> None:
    """Train a control and the arms of a PLAN with the same seeds, and report effects with intervals.

    An arm changes one thing: a penalty on geometry (istar, cos, decay, curvature), directions removed from weight
    updates (updates), the token law (loss-weights, mask-rates, zipf), or nothing (null, added to every plan). Control
    and arms share initial weights, data and data order. Without a PLAN, a small one is run. A plan that was stopped or
    killed can be resumed with --resume. Under torchrun, every training uses all processes (data parallel, gloo).

    For example:

    * `anisoscope intervene --dry-run`
    * `anisoscope intervene plan.toml --seeds 5`
    * `anisoscope intervene plan.toml --dry-run --pilot runs/20260101-120000-intervene`
    * `anisoscope intervene --resume runs/20260101-120000-intervene`
    * `torchrun --nproc-per-node 2 -m anisoscope intervene plan.toml`

    Parameters
    ----------
    plan
        A TOML file: settings of the training, and a table [[arms]] with name, kind and doses for each arm.

    """
    began = time.monotonic()
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        _in_company(plan, options, began)
        return
    _alone(plan, options, began)


def _in_company(plan: str | None, options: InterveneCommand, began: float) -> None:
    """Under torchrun: the first process runs the plan, the others train along with each of its trainings."""
    if options.ray is not None:
        raise broken("a plan must run under torchrun or on Ray", "both", "leave --ray out")
    from anisoscope.jobs import distributed_job as company
    from anisoscope.jobs.job_pool import fixed_threads
    from anisoscope.study.intervene.arm_training import trained

    with company.joined():
        if company.leads():
            with company.followed():
                _alone(plan, options, began)
        else:
            with fixed_threads(1):
                company.follow(trained)


def _alone(plan: str | None, options: InterveneCommand, began: float) -> None:
    jobs = part_of(options, JobOptions)
    if options.resume is not None:
        named = [] if plan is None else ["PLAN"]
        resume("intervene", options.resume, options, began, named=named, show=_effects)
        return
    given = example() if plan is None else read_toml(plan)
    changed = {name: value for name, value in given_in(options).items() if name in ("seeds", "steps", "probe_data")}
    settings = made_of(InterveneSettings, given, changed)
    require_new_run(options.out)
    require_corpus(settings.corpus)
    require_tokeniser(settings.tokeniser)
    from anisoscope.study.intervene import intervention_study as study

    study.require_labels(settings)
    _shown(study, settings, options.pilot)
    if options.dry_run:
        return
    with display() as listener:
        means = means_of(jobs, settings.threads)
        run = study.begun(settings, means, listener, out=options.out, page=options.report)
    _effects(run)
    end_with_answer(run, began, report=options.report, again=again("intervene", run.path))


def _shown(study: Any, settings: InterveneSettings, pilot: str | None) -> None:
    """Arms, jobs, time, disk and power, before anything starts."""
    console = Console(highlight=False, soft_wrap=True)
    rows = [
        [arm.name, arm.kind, ", ".join(f"{dose:g}" for dose in arm.doses), ARMS[arm.kind].dose]
        for arm in settings.every_arm
    ]
    print_table(["arm", "kind", "doses", "what a dose is"], rows)
    from anisoscope.study.estimates import cpu_rate, in_words

    cost = study.cost_of(settings, cpu_rate())
    tell(
        console,
        f"{cost.jobs} training runs of {settings.steps} steps, {settings.seeds} seeds each: about "
        f"{clock(cost.seconds)} one after the other, {in_words(cost.bytes)} of disk (estimates)",
    )
    found = study.power_of(settings, pilot)
    for outcome, smallest in found.items():
        tell(console, f"could find in 80 % of plans: {outcome} {smallest:.3g}")
    if not found:
        tell(console, "power is unknown without an earlier run of at least 3 seeds: give --pilot RUN")


def _effects(run: Run) -> None:
    """What became of the causal sentences, then the price of each arm and what it moved."""
    from anisoscope.report.sections.causal_verdicts import verdict_of
    from anisoscope.verdict import ABOVE, BELOW
    from anisoscope.vocabulary import SENTENCES

    table = run.whole_table().to_pylist()
    told: dict[str, list[dict[str, Any]]] = {}
    for row in table:
        if row["measure"] == "sentence":
            told.setdefault(row["variant"].partition("/")[0], []).append(row)
    if told:
        lines = [[SENTENCES[name].text, verdict_of(SENTENCES[name], own)[0]] for name, own in told.items()]
        print_table(["sentence", "verdict"], lines)
    rows, left = [], 0
    for row in table:
        if row["measure"] != "effect" or row["layer"] is not None:
            continue
        if row["variant"] != "loss" and row["outcome"] not in ABOVE | BELOW:
            left += 1
            continue
        ends = "" if row["low"] is None else f" [{row['low']:.3g}, {row['high']:.3g}]"
        rows.append([row["model"], row["variant"], f"{row['value']:.3g}{ends}", f"{row['n']}", row["outcome"]])
    if rows:
        print_table(["arm and dose", "outcome", "effect", "seeds", ""], rows, right=["seeds"])
    if left:
        tell(
            Console(highlight=False, soft_wrap=True), f"and {left} effects that are equal or undecided: see the report"
        )
