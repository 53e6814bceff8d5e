"""``anisoscope pair``: a decoder and its encoder twin trained from scratch, observed, stored, reported."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter
from rich.console import Console

from anisoscope.errors import broken

if TYPE_CHECKING:
    from anisoscope.store.run import Run


def pair(
    *,
    preset: str = "tiny",
    config: Path | None = None,
    resume: str | None = None,
    out: str | None = None,
    models: str | None = None,
    corpus: str | None = None,
    tokeniser: str | None = None,
    layers: int | None = None,
    width: int | None = None,
    heads: int | None = None,
    vocabulary: int | None = None,
    length: int | None = None,
    batch: int | None = None,
    steps: int | None = None,
    learning_rate: float | None = None,
    warmup: float | None = None,
    weight_decay: float | None = None,
    clip: float | None = None,
    dropout: float | None = None,
    mask_rate: float | None = None,
    held_out: float | None = None,
    precision: str | None = None,
    device: str | None = None,
    seeds: int | None = None,
    first_seed: int | None = None,
    rank: int | None = None,
    ranks: Annotated[str | None, Parameter(help="Other ranks to show, separated by commas.")] = None,
    proxies: Annotated[str | None, Parameter(help="Methods, separated by commas; the first is the main one.")] = None,
    schedule: str | None = None,
    observations: int | None = None,
    targets: bool | None = None,
    frequency: bool | None = None,
    resamples: int | None = None,
    probe: int | None = None,
    evaluations: int | None = None,
    checkpoints: int | None = None,
    history: bool | None = None,
    report: bool = True,
) -> None:
    """Train a decoder and an encoder that differ in mask and objective alone, and watch their geometry.

    Both are trained from scratch on one corpus while the scope observes them; rows, weights and a report go into one
    folder. A run that was stopped (Ctrl-C saves first) or killed goes on with --resume, to the same rows and weights.

    For example:

    * `anisoscope pair`
    * `anisoscope pair --corpus "books/*.txt" --steps 1000 --seeds 3`
    * `anisoscope pair --preset small --corpus zipf:1.2 --out runs/zipf12`
    * `anisoscope pair --models neox-bert --config mine.toml`
    * `anisoscope pair --resume runs/20260101-120000-pair`

    Parameters
    ----------
    preset
        tiny (minutes on two cores), small, or pythia-160m (a GPU).
    config
        A TOML file with any of these settings, underscores for dashes; flags go first.
    resume
        Go on with this run. Its own settings count, so no others may be given.
    out
        Folder of the run; by default runs/DATE-TIME-pair.
    models
        twin (one architecture, the default), neox-bert or neox-modernbert.
    corpus
        kjv, zipf:s, enwik8:PATH, hf:NAME[:CONFIG], or text files, folders and globs.
    tokeniser
        A tokenizer.json, a folder or hub name with one; by default byte-level BPE is trained on the corpus.
    layers
        Blocks of each model; tiny has 4.
    width
        Width of the residual stream; 128.
    heads
        Attention heads; 4.
    vocabulary
        Size of the tokeniser that is trained; 4096.
    length
        Tokens of a sequence at most; 128.
    batch
        Sequences a step; 16.
    steps
        Optimiser steps of each training; 400.
    learning_rate
        The largest one, after warming up; then it falls to 0; 2e-3.
    warmup
        Share of the steps to warm up in; 0.05.
    weight_decay
        Decoupled decay of AdamW; 0.01.
    clip
        Largest norm of the gradient; 1.
    dropout
        Share of activations dropped; 0.
    mask_rate
        Share of tokens that the encoder is asked for; 0.15.
    held_out
        Share of documents that are held out; 0.05.
    precision
        float32 or bf16.
    device
        auto or cpu.
    seeds
        How many trainings of each model; error bars are then over seeds.
    first_seed
        The seeds count from here.
    rank
        Rank of the tangent proxies; 32.
    schedule
        log (and twice more near the end), or a number n for every n-th step.
    observations
        How many observations log makes at most; 12.
    targets
        The nulls with other labels, for an extra pass each.
    frequency
        What goes with how frequent tokens are, and curvature; on unless switched off.
    resamples
        Draws of the nulls.
    probe
        Held-out tokens for the intrinsic dimension; 0 for none.
    evaluations
        How often the held-out loss is measured.
    checkpoints
        How many checkpoints are made on the way, to go on from; 0 for none.
    history
        Keep the weights at every observation, for `anisoscope checkpoints RUN/history/decoder-0`.
    report
        Write report.html into the run when it is finished.

    """
    flags: dict[str, Any] = {
        name: value
        for name, value in locals().items()
        if name not in ("preset", "config", "resume", "out", "report") and value is not None
    }
    if resume is not None and (flags or config is not None or out is not None or preset != "tiny"):
        given = ", ".join(sorted(flags)) or "preset, config or out"
        raise broken("a run that goes on must keep its own settings", f"--resume with {given}", "leave them out")
    for name in ("ranks", "proxies"):
        if name in flags:
            flags[name] = tuple(part.strip() for part in flags[name].split(",") if part.strip())
    if "schedule" in flags and flags["schedule"].isdigit():
        flags["schedule"] = int(flags["schedule"])
    run = _run(preset, config, resume, out, flags)
    console = Console(soft_wrap=True, highlight=False)
    if not run.finished:
        console.print(f"stopped. Go on with: anisoscope pair --resume {run.path}", markup=False)
    if report:
        _report(run, console)
    console.print(f"rows: anisoscope rows {run.path}", markup=False)


def _run(preset: str, config: Path | None, resume: str | None, out: str | None, flags: dict[str, Any]) -> Run:
    from anisoscope.study.settings import settings_of

    settings = None if resume is not None else settings_of(preset, config, flags)
    from anisoscope.study import pair as study  # after the settings are known to be right: this imports torch
    from anisoscope.study.progress import Board, Lines

    console = Console(highlight=False)
    display = Board(console) if console.is_terminal else Lines(console)
    with display.shown() if isinstance(display, Board) else contextlib.nullcontext():
        if settings is None:
            assert resume is not None, "one of the two is given"
            return study.resume(resume, display)
        return study.pair(settings, display, out=out)


def _report(run: Run, console: Console) -> None:
    """The page of the run, whatever has come of it."""
    from anisoscope.report.make import make_report, write_whole

    page = Path(run.path) / "report.html"
    write_whole(page, make_report([run.path]).encode())
    console.print(f"report: {page}", markup=False)
