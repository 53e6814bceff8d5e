"""``anisoscope checkpoints``: a training history, studied after the fact."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter
from rich.console import Console

from anisoscope.cli.examining import display, finish, settings_from, shown_size
from anisoscope.cli.showing import visible
from anisoscope.errors import broken

if TYPE_CHECKING:
    from anisoscope.study.pool import Means

Flag = Annotated[bool, Parameter(negative=())]
_MEANS = ("ray", "gpus", "memory", "retries")
_PLAN = ("revisions", "seeds", "shards", "probe", "steps", "keep")
_OTHER = ("checkpoints", "out", "resume", "include_untrusted", "dry_run", "report")


def checkpoints(
    *checkpoints: Annotated[str, Parameter(negative=())],
    revisions: str | None = None,
    resume: str | None = None,
    text: str | None = None,
    out: str | None = None,
    tokeniser: str | None = None,
    objective: str | None = None,
    length: int | None = None,
    sequences: int | None = None,
    probe: int | None = None,
    steps: int | None = None,
    rank: int | None = None,
    ranks: Annotated[str | None, Parameter(help="Other ranks to show, separated by commas.")] = None,
    proxies: Annotated[str | None, Parameter(help="Methods, separated by commas; pca,svd.")] = None,
    views: Annotated[str | None, Parameter(help="representation, weight, embedding; all that have sites.")] = None,
    targets: bool | None = None,
    frequency: bool | None = None,
    resamples: int | None = None,
    mask_rate: float | None = None,
    chunk: int | None = None,
    precision: str | None = None,
    device: str | None = None,
    device_map: str | None = None,
    threads: int | None = None,
    seed: int | None = None,
    seeds: int | None = None,
    shards: int | None = None,
    keep: int | None = None,
    include_untrusted: Flag = False,
    ray: str | None = None,
    gpus: float | None = None,
    memory: float | None = None,
    retries: int | None = None,
    trust_remote_code: Flag = False,
    allow_pickle: Flag = False,
    dry_run: Flag = False,
    report: bool = True,
) -> None:
    """Study the CHECKPOINTS of a training history: every one reads one text and is judged as an observation.

    First every tensor is hashed: checkpoints that are not what their labels say are listed and left out of curves.
    Proxies are rolling, and anchored on the first 30 % of training. A study that was stopped or killed goes on with
    --resume.

    For example:

    * `anisoscope checkpoints runs/mine/checkpoint-*`
    * `anisoscope checkpoints EleutherAI/pythia-160m --revisions step0,step512,step4000,step143000`
    * `anisoscope checkpoints pythia-410m --revisions pythia --keep 4 --ray auto --gpus 0.5`
    * `anisoscope checkpoints --resume runs/20260101-120000-checkpoints`

    Parameters
    ----------
    checkpoints
        Folders or files of weights, or with --revisions the name of one model on the hub.
    revisions
        Names by commas; `auto` for all that tell a step or a number of tokens; `pythia` for its 154 steps.
    resume
        Go on with this run. Its own settings count; only --ray, --gpus, --memory, --retries and --threads may be given.
    text
        kjv, zipf:s, enwik8:PATH, hf:NAME[:CONFIG], or text files, folders and globs.
    out
        Folder of the run (or an fsspec URL); by default runs/DATE-TIME-checkpoints. Workers must see it too.
    tokeniser
        A tokenizer.json, or a folder or hub name with one, where checkpoints have none of their own.
    objective
        causal or masked, where the configuration does not tell.
    length
        Tokens of a sequence; 128.
    sequences
        Sequences that gradients are taken of; 64.
    probe
        Other tokens of the text, for the intrinsic dimension; 5120, 0 for none.
    steps
        Length of the training, if it goes on after the last checkpoint.
    rank
        Rank of the tangent proxies; 32.
    targets
        The nulls with other labels, for an extra pass each.
    frequency
        What goes with how frequent tokens are, and curvature; on unless switched off.
    resamples
        Draws of the nulls; 999.
    mask_rate
        Share of tokens that a masked model is asked for; 0.15.
    chunk
        Sequences that pass at once, which bounds the memory; 8.
    precision
        float32 or bf16; statistics are float32 and float64 either way.
    device
        auto, cpu, cuda, cuda:1 …
    device_map
        auto spreads a model over several devices, through accelerate.
    threads
        Threads of every job, the same wherever it runs; 2.
    seed
        The first seed: it decides which text is drawn, folds and masks.
    seeds
        How many draws of the text; error bars are then over them.
    shards
        Parts of the text, each a job of its own; they add up exactly.
    keep
        Downloaded revisions to keep on disk at most; what was there before stays.
    include_untrusted
        Draw curves through checkpoints that the integrity check would leave out.
    ray
        `local`, `auto` (a cluster that this machine belongs to) or an address; without it jobs run one by one.
    gpus
        Share of a GPU for every job on Ray.
    memory
        GiB of every job on Ray.
    retries
        Tries after the first before a job counts as failed; 1.
    trust_remote_code
        Run code that comes with the model. Off.
    allow_pickle
        Read .bin weights, with weights_only=True. Off.
    dry_run
        Hash the checkpoints, list the jobs with memory and a guess of the time, and stop.
    report
        Write report.html into the run.

    """
    given: dict[str, Any] = {name: value for name, value in locals().items() if value is not None}
    if resume is not None:
        _resumed(resume, given)
        return
    if not checkpoints:
        raise broken("checkpoints needs checkpoints", "none", "name their folders, or a model with --revisions")
    apart = (*_MEANS, *_PLAN, *_OTHER)
    settings = settings_from({name: value for name, value in given.items() if name not in apart})
    from anisoscope.study import checkpoints as study

    plan = study.Plan(untrusted=include_untrusted, **{name: given[name] for name in _PLAN if name in given})
    means = _means(given, settings.threads)
    with display() as overseer:
        course = study.charted(checkpoints, settings, plan, overseer)
    _plan_shown(study, course, settings, plan)
    if dry_run:
        return
    with display() as overseer:
        run = study.begun(course, settings, plan, means, overseer, out=out)
    finish(run, report=report, again=f"Go on with: anisoscope checkpoints --resume {run.path}")


def _means(given: dict[str, Any], threads: int) -> Means:
    from anisoscope.study.pool import Means

    memory = None if given.get("memory") is None else int(given["memory"] * (1 << 30))
    return Means(
        ray=given.get("ray"),
        threads=threads,
        gpus=given.get("gpus", 0.0),
        memory=memory,
        retries=given.get("retries", 1),
    )


def _resumed(resume: str, given: dict[str, Any]) -> None:
    flags = ("trust_remote_code", "allow_pickle", "dry_run", "include_untrusted")
    extra = sorted(
        name
        for name, value in given.items()
        if name not in ("resume", "report", "threads", *_MEANS)
        and not (name in flags and value is False)
        and value != ()
    )
    if extra:
        raise broken(
            "a study that goes on must keep its own settings", f"--resume with {', '.join(extra)}", "leave them out"
        )
    from anisoscope.store.run import open_run
    from anisoscope.study import checkpoints as study

    there = open_run(resume)
    if there.manifest.get("kind") == study.KIND and there.finished and not there.manifest.get("failed"):
        Console(highlight=False, soft_wrap=True).print(
            f"{resume} is finished; there is nothing left to do", markup=False
        )
    threads = given.get("threads") or there.manifest.get("config", {}).get("threads", 1)
    with display() as overseer:
        run = study.resumed(resume, _means(given, threads), overseer)
    finish(run, report=given.get("report", True), again=f"Go on with: anisoscope checkpoints --resume {run.path}")


def _plan_shown(study: Any, course: Any, settings: Any, plan: Any) -> None:
    console = Console(highlight=False, soft_wrap=True)
    card = course.card
    for label, why in course.left_out.items():
        console.print(f"left out: {visible(label)}: {visible(why)}", markup=False)
    jobs = study.jobs_of("", card.located.name, settings, plan, course.points)
    labels = ", ".join(visible(point.origin.label) for point in course.points)
    size = study.estimated(course, settings, plan)
    console.print(f"{len(course.points)} checkpoints: {labels}", markup=False)
    parts = "" if plan.shards == 1 else f" ({len(jobs)} × {plan.shards} parts of the text)"
    console.print(f"{len(jobs) * plan.shards} jobs{parts}, each with:", markup=False)
    console.print(shown_size(size), markup=False)
