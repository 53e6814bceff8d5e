"""``anisoscope profile``: every layer of one model, and its gradients on a text."""

from __future__ import annotations

import os
from typing import Annotated

from cyclopts import Parameter
from rich.console import Console

from anisoscope.cli.examining import display, finish, settings_from, shown_size
from anisoscope.cli.showing import print_table, visible

Flag = Annotated[bool, Parameter(negative=())]


def profile(
    model: str,
    /,
    *,
    text: str | None = None,
    out: str | None = None,
    tokeniser: str | None = None,
    objective: str | None = None,
    length: int | None = None,
    sequences: int | None = None,
    vectors: int | None = None,
    batches: int | None = None,
    rank: int | None = None,
    ranks: Annotated[str | None, Parameter(help="Other ranks to show, separated by commas.")] = None,
    proxies: Annotated[str | None, Parameter(help="Methods, separated by commas; pca,svd.")] = None,
    views: Annotated[str | None, Parameter(help="representation, weight, embedding; all that have sites.")] = None,
    gradients: bool | None = None,
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
    trust_remote_code: Flag = False,
    allow_pickle: Flag = False,
    dry_run: Flag = False,
    report: bool = True,
) -> None:
    """Measure every layer of a MODEL that exists: isotropy, intrinsic dimension, and gradients against all nulls.

    Each layer is measured with and without first positions and special tokens, over several batches of vectors. The
    gradients on the text are judged beside the untrained twin of the same configuration. Everything goes into a run
    with a report.

    For example:

    * `anisoscope profile EleutherAI/pythia-160m@step512`
    * `anisoscope profile ./my-model --text "books/*.txt"`
    * `anisoscope profile SmolLM2-135M.gguf --text kjv --batches 2`
    * `anisoscope profile bert-base-uncased --dry-run`

    Parameters
    ----------
    model
        A hub name with an optional @revision, a name of the literature (pythia-160m), a folder, or a GGUF file.
    text
        kjv, zipf:s, enwik8:PATH, hf:NAME[:CONFIG], or text files, folders and globs.
    out
        Folder of the run; by default runs/DATE-TIME-profile.
    tokeniser
        A tokenizer.json, or a folder or hub name with one, where the model has none of its own.
    objective
        causal or masked, where the configuration does not tell.
    length
        Tokens of a sequence; 128.
    sequences
        Sequences that gradients are taken of; 64.
    vectors
        Vectors of a batch, of each layer and selection of tokens; 4608.
    batches
        Batches of vectors, for the deviation; 4.
    rank
        Rank of the tangent proxies; 32.
    gradients
        Judge gradients; without them only layers are measured.
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
        Threads of torch; by default all cores.
    seed
        Decides which text is drawn, folds, masks and the twin's weights.
    trust_remote_code
        Run code that comes with the model. Off.
    allow_pickle
        Read .bin weights, with weights_only=True. Off.
    dry_run
        Say what would be done, the memory and a guess of the time, and stop.
    report
        Write report.html into the run.

    """
    given = {
        name: value
        for name, value in locals().items()
        if name not in ("model", "out", "dry_run", "report") and value is not None
    }
    settings = settings_from({"threads": os.cpu_count()} | given)
    from anisoscope.study.profile import planned
    from anisoscope.study.profile import profile as study

    card, size = planned(model, settings)
    console = Console(highlight=False, soft_wrap=True)
    what = f"{visible(card.located.name)}: {card.objective}, {card.layers} layers of width {card.width}"
    console.print(f"{what}, {card.parameters / 1e6:,.1f} million parameters", markup=False)
    for note in card.notes:
        console.print(f"note: {note}", markup=False)
    console.print(shown_size(size), markup=False)
    if dry_run:
        return
    with display() as overseer:
        run = study(model, settings, overseer, out=out)
    _shapes(run)
    finish(run, report=report, again="Run it again to begin anew.")


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
                if r["measure"] == "peak_layer" and r["step"] == 1 and _same(r, row, "variant", "cloud")
            )
            turned = row["note"] in ("bell", "valley")
            height = [f"{row['value']:.3g}", f"{row['low']:.3g} to {row['high']:.3g}"] if turned else ["", ""]
            rows.append([row["variant"], row["cloud"], row["note"], f"{peak:.0f}" if turned else "", *height])
    print_table(["measure", "tokens", "shape", "peak layer", "prominence", "95 % interval"], rows, right=["peak layer"])


def _same(a: dict[str, object], b: dict[str, object], *names: str) -> bool:
    return all(a[name] == b[name] for name in names)
