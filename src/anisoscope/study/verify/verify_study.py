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
from anisoscope.errors import AnisoscopeError, broken
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
from anisoscope.study.resume_checks import model_digest, require_same_model, require_same_text
from anisoscope.study.resume_state import is_done, recorded, require_progress, resume_study, settings_in
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
    allowed = settings.allow_pickle
    hashes = {_text(k): reading.data.fingerprint for k, reading in enumerate(readings)}
    hashes |= {_model(k): model_digest(card.located.path, allow_pickle=allowed) for k, card in enumerate(cards)}
    run = create_run(
        folder,
        config=settings.model_dump(mode="json"),
        kind=KIND,
        model=about(cards[0]),
        held_out=[about(card) for card in cards[1:]],
        corpus=readings[0].data.about,
        vocabulary=added(),
        **provenance(reservoir_rows=RESERVOIR_ROWS, fold_seed=readings[0].seed),
        hashes=hashes,
        units=readings[0].units,
        notes=list(cards[0].notes),
        asked=list(models),
        done=[],
    )
    return _go_on(run, cards, readings, settings, listener, page=page)


def resumed(path: str | Path, listener: JobListener, *, page: bool = False) -> Run:
    """Go on with checks that were stopped or killed: layers that are done are not done again."""

    def read(run: Run) -> tuple[Verification, list[Card], list[TokenizedText]]:
        settings = settings_in(run.manifest, Verification)
        require_progress(run.manifest)
        cards, readings = ([], []) if is_done(run) else _as_begun(run, settings)
        return settings, cards, readings

    def go_on(run: Run, needed: tuple[Verification, list[Card], list[TokenizedText]]) -> Run:
        settings, cards, readings = needed
        run.update(status="running", reason=None)
        return _go_on(run, cards, readings, settings, listener, page=page)

    return resume_study(path, KIND, read, go_on)


def _as_begun(run: Run, settings: Verification) -> tuple[list[Card], list[TokenizedText]]:
    """The models and the text that a run began with; raises if any of them is another one now."""
    asked, then = recorded(run.manifest, "asked"), [recorded(run.manifest, "model"), recorded(run.manifest, "held_out")]
    if not isinstance(asked, list) or not all(isinstance(name, str) for name in asked) or not asked:
        raise AnisoscopeError(f"the manifest of {run.name} does not name its models: it cannot go on")
    before = [then[0], *then[1]] if isinstance(then[1], list) else []
    cards = [_described(model, settings) for model in asked]
    readings = []
    for k, card in enumerate(cards):
        was, now = before[k] if k < len(before) else None, about(card)
        if not isinstance(was, dict) or any(was.get(name) != now[name] for name in now.keys() - {"path"}):
            raise AnisoscopeError(
                f"the model {asked[k]} has changed since {run.name} began; restore it, or begin a new run"
            )
        recorded(run.manifest, "hashes", _model(k))
        require_same_model(run.manifest, _model(k), card.located.path, allow_pickle=settings.allow_pickle)
        readings.append(read_text(card, settings, sequences=settings.sequences))
        require_same_text(run.manifest, _text(k), readings[k].data.fingerprint, settings.text)
    return cards, readings


def _go_on(
    run: Run,
    cards: Sequence[Card],
    readings: Sequence[TokenizedText],
    settings: Verification,
    listener: JobListener,
    *,
    page: bool,
) -> Run:
    """Check the models that are not done yet."""
    threads = torch.get_num_threads()
    torch.set_num_threads(settings.threads)
    try:
        with closing(run, page=page) as ending:
            left = [k for k, card in enumerate(cards) if _writer(k, card) not in run.manifest["done"]]
            listener.begun([cards[k].located.name for k in left])
            for k in left:
                _check(run, _writer(k, cards[k]), cards[k], readings[k], settings, listener)
            ending.status = "finished"
    finally:
        torch.set_num_threads(threads)
    return run


def _text(number: int) -> str:
    """Under which key the hash of a model's text is kept."""
    return f"text-{number}"


def _model(number: int) -> str:
    """Under which key the hash of a model is kept."""
    return f"model-{number}"


def _require_different(cards: Sequence[Card]) -> None:
    """Rows go by the name of their model: those of a second one of that name could not be told from the first's."""
    names = [card.located.name for card in cards]
    for name in names:
        if names.count(name) > 1:
            raise broken("models must differ in name", f"{name} twice", "rename one of the folders")


def _writer(number: int, card: Card) -> str:
    """Who writes what is settled of a model; the writer of a layer has its number behind it."""
    plain = "".join(c if c.isalnum() or c in "-_." else "-" for c in card.located.name)
    return f"{number:02d}-{plain}"


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


def _check(
    run: Run, writer: str, card: Card, reading: TokenizedText, settings: Verification, listener: JobListener
) -> None:
    """All layers of one model, each of which ends with its rows in the run, and what is settled by them."""
    name, began = card.located.name, time.monotonic()
    task = Task(name, _check)
    listener.started(name)
    try:
        listener.progressed(name, 0.0, "loading")
        common = {"model": name, "role": reading.role, "seed": settings.seed}
        clouds = _clouds(loaded(card, settings), reading, settings, listener, name)
        for number, (at, cloud) in enumerate(clouds.items()):
            if _of_layer(writer, at) not in run.manifest["done"]:
                listener.progressed(name, 0.3 + 0.7 * number / len(clouds), f"layer {at.layer}")
                rows = [_row(one, at, card.width) | common for one in _layer(at, cloud, settings)]
                _write(run, _of_layer(writer, at), rows)
        kept = [row for row in run.whole_table().to_pylist() if row["model"] == name and row["layer"] is not None]
        gone = sorted({at.layer for at in clouds} - {row["layer"] for row in kept})
        if gone:
            raise AnisoscopeError(
                f"the rows of layer {gone[0]} of {name} were removed from {run.path}; begin a new run"
            )
        found = [_read_back(row) for row in kept]
        _write(run, writer, [_row(one, None, card.width) | common for one in settling(found, settings.proxies)])
    except Exception as error:  # an interrupt is no failure
        why = str(error) or type(error).__name__
        listener.ended(JobOutcome(task, error=why, seconds=time.monotonic() - began))
        raise
    listener.ended(JobOutcome(task, seconds=time.monotonic() - began))


def _of_layer(writer: str, at: SiteKey) -> str:
    """Who writes the rows of a layer."""
    return f"{writer}-layer-{at.layer:03d}"


def _write(run: Run, writer: str, rows: list[Row]) -> None:
    run.write(writer, rows)
    done = run.manifest["done"]
    run.update(done=done if writer in done else [*done, writer])


def _layer(at: SiteKey, cloud: tuple[Tensor, Tensor, Tensor], settings: Verification) -> list[VerifyRow]:
    """The checks of one layer."""
    x_ND, g_ND, unit_N = cloud
    cell = (settings.seed, at.layer)
    table = verify(
        {cell: x_ND},
        {cell: g_ND},
        ranks=[settings.number],
        methods=settings.proxies,
        groups=unit_N,
        resamples=settings.resamples or RESAMPLES,
        generator=torch.Generator().manual_seed(settings.seed),
    )
    return [one for one in table.rows if not one.check.startswith("settling")]


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


def _row(one: VerifyRow, at: SiteKey | None, width: int) -> Row:
    common: dict[str, Any] = {} if at is None else at_columns(at)
    common |= {"view": "representation", "tensor": "gradients", "measure": "check", "variant": one.check}
    numbers = {"value": one.value, "low": one.low, "high": one.high, "floor": one.chance, "p": one.p}
    return row(**common, **numbers, n=one.n, note=one.note, proxy=one.method, rank=one.rank, width=width, step=0)


def _read_back(row: Row) -> VerifyRow:
    """What a row of a layer was made of."""
    at = (row["variant"], row["proxy"], row["rank"], row["seed"], row["layer"])
    return VerifyRow(*at, row["value"], row["low"], row["high"], row["p"], row["floor"], row["n"], row["note"])
