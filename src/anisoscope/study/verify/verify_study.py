"""The referee's checks on models that exist: activations and gradients of a text, and `verify` layer by layer."""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from anisoscope.capture.sites import SiteKey
from anisoscope.errors import broken
from anisoscope.evaluate.row_builders import Row, at_columns, row
from anisoscope.evidence.referee_checks import VerifyRow, settling, verify
from anisoscope.jobs.job_pool import JobListener, JobOutcome, Task
from anisoscope.models.cards import Card, describe
from anisoscope.models.located import locate
from anisoscope.observe.collector import RESERVOIR_ROWS
from anisoscope.observe.finalize import finalize
from anisoscope.observe.offline import observe_model
from anisoscope.observe.site_selection import choose
from anisoscope.record.run_provenance import provenance
from anisoscope.store.run import Run, create_run
from anisoscope.study.estimates import Size, rate_of, size_of
from anisoscope.study.profile.profile_study import about
from anisoscope.study.run_closing import closing
from anisoscope.study.tokenized_text import TokenizedText, loaded, read_text, require_fitting
from anisoscope.study.verify.verify_settings import Verification
from anisoscope.vocabulary import added

KIND = "verify"
RESAMPLES = 199


def planned(models: Sequence[str], settings: Verification) -> list[tuple[Card, Size]]:
    """What would be done, from the configurations alone."""
    cards = [_described(model, settings) for model in models]
    _require_different(cards)
    return [(card, size_of(card, settings, rate=rate_of(settings))) for card in cards]


def verified(
    models: Sequence[str],
    settings: Verification,
    listener: JobListener,
    *,
    out: str | Path | None = None,
    page: bool = False,
) -> Run:
    """Check the proxies of one model, and of held-out ones after it, into a new run."""
    cards = [_described(model, settings) for model in models]
    _require_different(cards)
    readings = [read_text(card, settings, sequences=settings.sequences) for card in cards]
    folder = out if out is not None else Path("runs") / f"{datetime.now():%Y%m%d-%H%M%S}-verify"
    run = create_run(
        folder,
        config=settings.model_dump(mode="json"),
        kind=KIND,
        model=about(cards[0]),
        held_out=[about(card) for card in cards[1:]],
        corpus=readings[0].data.about,
        vocabulary=added(),
        **provenance(reservoir_rows=RESERVOIR_ROWS, fold_seed=readings[0].seed),
        hashes={f"text-{k}": reading.data.fingerprint for k, reading in enumerate(readings)},
        units=readings[0].units,
        notes=list(cards[0].notes),
    )
    threads = torch.get_num_threads()
    torch.set_num_threads(settings.threads)
    try:
        with closing(run, page=page) as ending:
            listener.begun([card.located.name for card in cards])
            for card, reading in zip(cards, readings, strict=True):
                _check(run, card, reading, settings, listener)
            ending.status = "finished"
    finally:
        torch.set_num_threads(threads)
    return run


def _require_different(cards: Sequence[Card]) -> None:
    """Rows go by the name of their model: the rows of a second one of that name would replace those of the first."""
    names = [_writer(card) for card in cards]
    for name, card in zip(names, cards, strict=True):
        if names.count(name) > 1:
            raise broken("models must differ in name", f"{card.located.name} twice", "rename one of the folders")


def _writer(card: Card) -> str:
    return "".join(c if c.isalnum() or c in "-_." else "-" for c in card.located.name)


def _described(model: str, settings: Verification) -> Card:
    located = locate(model, allow_pickle=settings.allow_pickle)
    card = describe(located, objective=settings.objective, trust_remote_code=settings.trust_remote_code)
    require_fitting(card, settings, settings.number)
    if settings.number > card.width // 4:
        most = card.width // 4
        raise broken(
            f"the rank must be at most a quarter of the width, {most}", settings.number, "lower it with --rank"
        )
    return card


def _check(run: Run, card: Card, reading: TokenizedText, settings: Verification, listener: JobListener) -> None:
    """All layers of one model; its rows are written once they are all there."""
    name, began = card.located.name, time.monotonic()
    task = Task(name, _check)
    listener.started(name)
    try:
        listener.progressed(name, 0.0, "loading")
        clouds = _clouds(loaded(card, settings), reading, settings, listener, name)
        found: list[VerifyRow] = []
        places: dict[int, SiteKey] = {}
        for number, (at, (x_ND, g_ND, unit_N)) in enumerate(clouds.items()):
            listener.progressed(name, 0.3 + 0.7 * number / len(clouds), f"layer {at.layer}")
            generator = torch.Generator().manual_seed(settings.seed)
            table = verify(
                {(settings.seed, at.layer): x_ND},
                {(settings.seed, at.layer): g_ND},
                ranks=[settings.number],
                methods=settings.proxies,
                groups=unit_N,
                resamples=settings.resamples or RESAMPLES,
                generator=generator,
            )
            found += [one for one in table.rows if not one.check.startswith("settling")]
            places[at.layer] = at
        common = {"model": name, "role": reading.role, "seed": settings.seed}
        rows = [_row(one, places, card.width) | common for one in [*found, *settling(found, settings.proxies)]]
        run.write(_writer(card), rows)
    except BaseException as error:
        why = str(error) or type(error).__name__
        listener.ended(JobOutcome(task, error=why, seconds=time.monotonic() - began))
        raise
    listener.ended(JobOutcome(task, seconds=time.monotonic() - began))


def _clouds(
    model: torch.nn.Module, reading: TokenizedText, settings: Verification, listener: JobListener, name: str
) -> dict[SiteKey, tuple[Tensor, Tensor, Tensor]]:
    """Activations, gradients and units of the sequences that were kept, at evenly spread layers."""
    choice = choose(model, None, ("representation",))
    seen = observe_model(
        model,
        choice,
        reading.chunks(settings),
        step=0,
        rows=RESERVOIR_ROWS,
        seed=reading.seed,
        progress=lambda share: listener.progressed(name, 0.3 * share, "forward and backward"),
    )
    observed = finalize(seen, rows=RESERVOIR_ROWS, seed=reading.seed, device="cpu")
    sites = observed.sites("representation", "gradients")
    if len(sites) > settings.layers:
        last = max(settings.layers - 1, 1)
        sites = [sites[round(k * (len(sites) - 1) / last)] for k in range(settings.layers)]
    found = {}
    for at in sites:
        x, g = (
            [observed.cloud("representation", at, tensor, fold).sample() for fold in (0, 1)]
            for tensor in ("activations", "gradients")
        )
        units = torch.cat([sample.sequences for sample in x])
        found[at] = torch.cat([s.values for s in x]).float(), torch.cat([s.values for s in g]).float(), units
    return found


def _row(one: VerifyRow, places: dict[int, SiteKey], width: int) -> Row:
    common: dict[str, Any] = {} if one.layer is None else at_columns(places[one.layer])
    common |= {"view": "representation", "tensor": "gradients", "measure": "check", "variant": one.check}
    numbers = {"value": one.value, "low": one.low, "high": one.high, "floor": one.chance, "p": one.p}
    return row(**common, **numbers, n=one.n, note=one.note, proxy=one.method, rank=one.rank, width=width, step=0)
