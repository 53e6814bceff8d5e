"""Remove a proxy from the residual stream of one block at a time, and measure what that costs.

Letters: B sequences, T positions, D width, K rank.

The functional side of enrichment: a proxy may hold much of the gradient's energy and still not matter, or the reverse.
The proxy is fitted on one fold of sequences and removed from the other, ``h − a·QQᵀ(h − m)``, m the mean of the fold it
was fitted on. A top-variance subspace costs most because it is large, so every control is compared twice: removed whole
beside the proxy removed whole, and at equal displacement (the larger of the two removed in part).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from anisoscope.capture.sites import Sites, choose_sites
from anisoscope.capture.taps import Taps
from anisoscope.errors import AnisoscopeError, broken
from anisoscope.evaluate.row_builders import Row
from anisoscope.evidence.frequency_evidence import frequency_bins
from anisoscope.intervene.directions import SAMPLE_ROWS, Frames, Removal, RemovedLayer, StreamMoments, Tokens, fit_layer
from anisoscope.intervene.edits import Change, Edits, borrowed
from anisoscope.intervene.effects import LossLedger
from anisoscope.intervene.removal_rows import MeasuredRemovals, removal_rows
from anisoscope.intervene.token_losses import TokenLoss, asked, require_own_loss, token_losses
from anisoscope.stats.hashing import unit_keys
from anisoscope.vocabulary import CAPTURED_SUBSETS, PROXIES, require

MARGIN = 0.01
"""Nats a token: two removals whose difference surely lies below it are called equal."""
Told = Callable[[float, str], None]
ModelInput = Mapping[str, Tensor]


@dataclass(frozen=True, slots=True, eq=False)
class Ablation:
    """What removals cost, one number a row; see ``docs/ablate.md`` for the measures.

    ``loss`` is the mean loss of a token without removal, in nats.
    """

    rows: list[Row]
    loss: float
    notes: tuple[str, ...] = ()

    def row(self, measure: str, layer: int, **where: object) -> Row:
        """The one row of a measure and layer with these columns; columns that are not named may be anything.

        Columns ``null``, ``variant`` and ``subset`` are those of the proxy removed whole unless they are named.
        """
        usual: dict[str, object] = {"null": None, "variant": None, "subset": self.rows[0]["subset"]}
        wanted = usual | {"measure": measure, "layer": layer} | where
        found = [row for row in self.rows if all(row[name] == value for name, value in wanted.items())]
        if len(found) != 1:
            raise broken("columns must choose one row", f"{len(found)} rows with {wanted}", "look through .rows")
        return found[0]


def ablate(
    model: nn.Module,
    batches: Sequence[ModelInput],
    *,
    proxy: str = "pca",
    ranks: Sequence[int] = (32,),
    layers: Sequence[int] | None = None,
    subset: str = "all",
    draws: int = 4,
    seed: int = 0,
    counts: Tensor | None = None,
    margin: float = MARGIN,
    sites: Sites | Sequence[str] | None = None,
    loss_fn: TokenLoss | None = None,
    progress: Told = lambda share, what: None,
) -> Ablation:
    """Remove a proxy from the stream after one block at a time and measure the loss of held-out tokens.

    ``batches`` hold ``input_ids``, ``labels``, and if need be ``attention_mask`` and ``documents (B,)``, the units of
    folds and intervals (else sequences are). ``layers`` are numbers of blocks from 1, 0 what enters the first; all by
    default. ``subset="no-first"`` fits on and removes from all tokens but the first of a sequence, which in many
    decoders is far from all others. ``draws`` are those of each random control, ``counts`` how often each token id
    comes in the corpus (by default in the batches), ``margin`` the difference in nats below which removals are equal.
    The model is as it was afterwards: weights, mode, buffers, random states.

    >>> import torch
    >>> from anisoscope.models.twins import ModelShape, build
    >>> model = build("twin", "decoder", ModelShape(layers=2, width=16, heads=2, vocabulary=50, length=16), seed=0)
    >>> ids = torch.randint(50, (24, 16), generator=torch.Generator().manual_seed(0))
    >>> found = ablate(model, [{"input_ids": ids, "labels": ids}], ranks=(2,), layers=(1,), draws=2)
    >>> row = found.row("removal_cost", 1)
    >>> row["low"] < row["value"] < row["high"]
    True
    """
    _require(batches, proxy, ranks, subset, draws, margin)
    found = choose_sites(model, sites)
    chosen = _chosen_layers(layers, len(found.blocks))
    with borrowed(model), Edits(model, found) as edits:
        run = _Runner(model, batches, loss_fn, subset, seed)
        stream = _seen(run, found, chosen, proxy, lambda share: progress(0.05 * share, "fitting"))
        places = [
            fit_layer(stream, layer, method=proxy, rank=rank, draws=draws, seed=seed)
            for layer in chosen
            for rank in ranks
        ]
        ledger = LossLedger(frequency_bins(run.counts() if counts is None else counts, by="tokens"))
        notes = _pass(run, edits, places, ledger, lambda share, what: progress(0.05 + 0.95 * share, what))
    measured = MeasuredRemovals(ledger, tuple(places), subset, margin, len(chosen))
    total, tokens = float(ledger.totals(None).sum()), float(ledger.counts.sum())
    return Ablation(removal_rows(measured), total / tokens, notes)


def removals_of(place: RemovedLayer) -> dict[tuple[object, ...], Removal]:
    """All that is removed from one place, by what its sums are kept under; equal removals are made once."""
    whole = Frames("whole", None, place.spread)
    found: dict[tuple[object, ...], Removal] = {("whole", 0): Removal(whole)}
    found[place.proxy.name, 0] = Removal(place.proxy)
    for control, frames in place.controls.items():
        own, others = place.strengths(control)
        found["proxy", control] = own
        for draw, (frame, part) in enumerate(zip(frames, others, strict=True)):
            found[control, draw] = Removal(frame)
            found["part", control, draw] = part
    return found


class _Runner:
    """Passes of the model over batches, and what is asked in each."""

    def __init__(
        self, model: nn.Module, batches: Sequence[ModelInput], loss_fn: TokenLoss | None, subset: str, seed: int
    ) -> None:
        self.model, self.batches, self.seed, self.subset = model, batches, seed, subset
        self._loss_fn = loss_fn
        self._device = next(model.parameters()).device

    def forward(self, batch: ModelInput) -> Tensor:
        """Losses ``(B, T)`` of a batch."""
        output = self.model(**{name: part.to(self._device) for name, part in batch.items() if name != "documents"})
        if self._loss_fn is not None:
            return self._loss_fn(output, batch)
        return token_losses(output, batch)

    def checked(self, batch: ModelInput) -> None:
        """One pass that compares the losses with the model's own."""
        output = self.model(**{name: part.to(self._device) for name, part in batch.items() if name != "documents"})
        if self._loss_fn is None:
            require_own_loss(output, token_losses(output, batch))

    def tokens(self, batch: ModelInput) -> Tokens:
        """Which tokens are removed from, and folds."""
        return Tokens.of(batch, subset=self.subset, seed=self.seed)

    def counts(self) -> Tensor:
        """How often each token id comes in the batches; a masked token is the one that is asked for."""
        ids = [
            torch.where(asked(batch), batch["labels"], batch["input_ids"])[Tokens.of(batch, subset="all", seed=0).where]
            for batch in self.batches
        ]
        return torch.bincount(torch.cat(ids).cpu())


def _seen(
    run: _Runner, sites: Sites, layers: Sequence[int], proxy: str, told: Callable[[float], None]
) -> StreamMoments:
    """One pass over the text for what directions are fitted on."""
    stream = StreamMoments(frozenset(layers), rows=SAMPLE_ROWS if PROXIES[proxy].needs == "sample" else 0)
    with Taps(run.model, sites, stream, evaluations=True) as taps:
        for number, batch in enumerate(run.batches):
            stream.tokens = run.tokens(batch)
            if number:
                run.forward(batch)
            else:
                run.checked(batch)
            taps.require_no_error()
            told((number + 1) / len(run.batches))
    silent = sorted(set(layers) - stream.sites.keys())
    if silent:
        raise AnisoscopeError(f"layers {silent} were not seen: does the model call all of its blocks?")
    for layer in layers:
        if any(float(stream.moments[layer, fold].count) < 2 for fold in (0, 1)):
            raise broken(
                "both folds must hold sequences", f"{sum(len(b['input_ids']) for b in run.batches)} in all", "give more"
            )
        if not all(bool(torch.isfinite(stream.moments[layer, fold].scatter).all()) for fold in (0, 1)):
            raise AnisoscopeError(f"layer {layer} has activations that are not finite: the checkpoint is damaged")
    return stream


def _pass(
    run: _Runner, edits: Edits, places: Sequence[RemovedLayer], ledger: LossLedger, told: Told
) -> tuple[str, ...]:
    """All removals over all batches; notes of what had to be done otherwise."""
    removals = [removals_of(place) for place in places]
    total, done, replay = sum(map(len, removals)) * len(run.batches), 0, True
    for number, batch in enumerate(run.batches):
        tokens, asked_BT = run.tokens(batch), asked(batch)
        keys = unit_keys(batch["input_ids"], batch.get("attention_mask"), batch.get("documents"), seed=run.seed)
        ledger.batch(keys, tokens.second, batch["labels"], asked_BT)
        with edits.recording():
            plain_BT = run.forward(batch)
        ledger.add(None, plain_BT)
        if not number:
            replay = edits.can_replay and _replays_exactly(run, edits, batch, places, plain_BT)
        for place, of_place in zip(places, removals, strict=True):
            made: dict[tuple[object, ...], Tensor] = {}  # the same removal may stand under several keys
            for key, removal in of_place.items():
                same = (id(removal.frames), removal.strength)
                if same not in made:
                    change = removal.change(place.means, tokens)
                    made[same] = _changed(run, edits, batch, place.at.layer, change, replay) - plain_BT
                ledger.add((place.at.layer, place.rank, key), made[same])
                done += 1
            told(done / total, f"layer {place.at.layer}, batch {number + 1} of {len(run.batches)}")
    return () if replay else ("blocks depend on more than the block before: every pass went through all of them",)


def _changed(run: _Runner, edits: Edits, batch: ModelInput, layer: int, change: Change, replay: bool) -> Tensor:
    with edits.changed(layer, change, replay=replay):
        return run.forward(batch)


def _replays_exactly(
    run: _Runner, edits: Edits, batch: ModelInput, places: Sequence[RemovedLayer], plain_BT: Tensor
) -> bool:
    """Whether a pass that replays the blocks up to each place gives the very losses of a whole pass."""
    for layer in dict.fromkeys(place.at.layer for place in places):
        try:
            replayed_BT = _changed(run, edits, batch, layer, torch.clone, True)
        except Exception:  # a block that waits for what an earlier one leaves behind may fail in any way
            return False
        if not torch.equal(replayed_BT.nan_to_num(), plain_BT.nan_to_num()):
            return False
    return True


def _chosen_layers(layers: Sequence[int] | None, blocks: int) -> tuple[int, ...]:
    if layers is None:
        return tuple(range(blocks + 1))
    for layer in layers:
        if isinstance(layer, bool) or not isinstance(layer, int) or not 0 <= layer <= blocks:
            raise broken(f"layers must lie in 0…{blocks}", repr(layer), "0 is what enters the first block")
    if not layers:
        raise broken("at least one layer must be named", "none", "leave layers out for all")
    return tuple(dict.fromkeys(layers))


def _require(
    batches: Sequence[ModelInput], proxy: str, ranks: Sequence[int], subset: str, draws: int, margin: float
) -> None:
    require("proxy", proxy, PROXIES)
    require("subset", subset, CAPTURED_SUBSETS)
    if not ranks or any(isinstance(rank, bool) or not isinstance(rank, int) or rank < 1 for rank in ranks):
        raise broken("ranks must be whole numbers of at least 1", repr(tuple(ranks)), "use ranks=(32,)")
    if draws < 1:
        raise broken("each random control must be drawn at least once", draws, "use 4")
    if not margin > 0:
        raise broken("the margin must be above 0 nats", margin, f"use {MARGIN}")
    if not batches:
        raise broken("there must be at least one batch", 0, "pass token ids with labels")
    for batch in batches:
        missing = {"input_ids", "labels"} - batch.keys()
        if missing:
            raise broken("a batch must have input_ids and labels", f"no {sorted(missing)}", "labels may be the ids")
        if batch["labels"].shape != batch["input_ids"].shape:
            raise broken(
                f"labels must have the shape of input_ids {tuple(batch['input_ids'].shape)}",
                tuple(batch["labels"].shape),
                "give one label a token, -100 where nothing is asked",
            )
        if not bool(asked(batch).any()):
            raise broken("a batch must ask for at least one token", "labels of -100 alone", "label some tokens")
