"""One checkpoint of a history as a job: load, pass the text, judge, write. Jobs share nothing but the run's folder.

What a job needs of others lies there as statistics, never as conclusions: those of the beginning (``initial``), which
the null `init` compares with, and those of the early checkpoints together (``early``), which anchored proxies are
fitted on. So a job gives the same rows wherever and whenever it runs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from anisoscope.capture.sites import SiteKey
from anisoscope.errors import AnisoscopeError, BrokenRuleError
from anisoscope.evaluate.evaluation import Evaluation
from anisoscope.evaluate.evaluator import Evaluator, EvaluatorSettings
from anisoscope.evaluate.row_builders import with_token_texts
from anisoscope.evaluate.trajectories import Trajectories
from anisoscope.jobs.job_pool import report
from anisoscope.models.cards import Card, describe
from anisoscope.models.located import locate
from anisoscope.observe.collector import RESERVOIR_ROWS
from anisoscope.observe.embedding import types_seen
from anisoscope.observe.embedding_tables import TableReading
from anisoscope.observe.finalize import finalize, with_change
from anisoscope.observe.offline import observe_model, shares_of
from anisoscope.observe.site_selection import choose
from anisoscope.observe.state import ScopeState
from anisoscope.observe.statistics import Name, Observation, SkippedSteps, Statistics
from anisoscope.stats.reservoir import Reservoir
from anisoscope.store.run import Run, open_run
from anisoscope.study.checkpoints.histories import Origin
from anisoscope.study.model_settings import Examination
from anisoscope.study.relations import aligned_probe
from anisoscope.study.resume_checks import require_same_checkpoint
from anisoscope.study.tokenized_text import TokenizedText, loaded, twin
from anisoscope.vocabulary import LABEL_NULLS

Wave = Literal["initial", "early", "late"]
_TABLE = Name("embedding", 0, "weight", 0, "sum")
_COUNTS = Name("tally", 0, "text", 0, "sum")
_WANDERERS = 2048  # types whose places are kept of every checkpoint until the last one is judged


@dataclass(frozen=True, slots=True)
class CheckpointJob:
    """A checkpoint (or, without an origin, the untrained twin) under one seed; in ``shards`` parts of the text."""

    run: str
    seed: int
    step: int
    wave: Wave
    origin: Origin | None
    like: Origin  # whose configuration a twin has
    name: str  # the model as rows call it
    settings: Mapping[str, Any] = field(default_factory=dict)
    anchor: int | None = None
    shards: int = 1
    probe: int = 0
    after: Origin | None = None  # the next checkpoint, to which the embedding changes

    @property
    def label(self) -> str:
        """The checkpoint's name, as a plain word."""
        label = "twin" if self.origin is None else self.origin.label
        return "".join(c if c.isalnum() or c in "-_." else "-" for c in label)

    @property
    def writer(self) -> str:
        """Who writes its rows."""
        return f"{self.label}-{self.seed}"

    @property
    def examination(self) -> Examination:
        """The settings under its seed."""
        return Examination(**{**self.settings, "seed": self.seed})

    def shard_file(self, shard: int) -> str:
        """Where a part of it waits to be judged."""
        return f"seen-{self.writer}-{shard}.work"


def initial_file(seed: int) -> str:
    """Statistics of the beginning."""
    return f"initial-{seed}.work"


def early_file(seed: int, label: str | None = None) -> str:
    """What anchored proxies are fitted on: of one checkpoint, or of all."""
    return f"early-{seed}{'' if label is None else '-' + label}.work"


def places(job: CheckpointJob) -> str:
    """Where embeddings and contextual means of some types are kept until all checkpoints are judged."""
    return f"places-{job.writer}"


def aligned(job: CheckpointJob) -> str:
    """Where vectors of the same tokens are kept until all checkpoints are judged."""
    return f"aligned-{job.writer}"


def subspaces(job: CheckpointJob, timing: str) -> str:
    """The name under which a job's proxies are kept."""
    return f"subspaces-{job.writer}-{timing}"


def examine(job: CheckpointJob) -> int:
    """Everything, in one go; returns how many rows there are."""
    run = open_run(job.run)
    reading = TokenizedText.kept(run, job.seed)
    return _judged(job, run, reading, _seen(job, reading, range(1), share=0.7))


def gather(job: CheckpointJob, shard: int) -> None:
    """Pass one part of the text and leave what was seen in the run's folder."""
    run = open_run(job.run)
    found = _seen(job, TokenizedText.kept(run, job.seed), range(shard, shard + 1), share=1.0)
    run.write_file(job.shard_file(shard), _packed(found))


def conclude(job: CheckpointJob) -> int:
    """Judge what all parts left, and take it away."""
    run = open_run(job.run)
    parts = [_unpacked(run.read_file(job.shard_file(shard))) for shard in range(job.shards)]
    whole = parts[0]
    for part in parts[1:]:
        whole = whole.merge(part)
    rows = _judged(job, run, TokenizedText.kept(run, job.seed), whole)
    for shard in range(job.shards):
        run.remove_file(job.shard_file(shard))
    return rows


def _seen(job: CheckpointJob, reading: TokenizedText, shards: range, *, share: float) -> Observation:
    settings = job.examination
    report(0.0, "loading")
    like = job.like if job.origin is None else job.origin
    if like.path is not None:
        manifest = open_run(job.run).manifest
        require_same_checkpoint(manifest, like.label, like.path, allow_pickle=settings.allow_pickle)
    card = card_of(like.here(allow_pickle=settings.allow_pickle), settings)
    model = twin(card, settings) if job.origin is None else loaded(card, settings)
    chunks = reading.chunks(settings)
    shares = shares_of(chunks)
    mine = [k for k in range(len(chunks)) if k % job.shards in shards]
    choice = choose(model, None, settings.views, settings.maps)
    return observe_model(
        model,
        choice,
        [chunks[k] for k in mine],
        step=job.step,
        shares=[shares[k] for k in mine],
        rows=RESERVOIR_ROWS,
        seed=reading.seed,
        targets=settings.targets,
        probe=reading.probe(job.probe) if 0 in shards else None,
        frequency=reading.frequency(choice.sites) if settings.frequency else None,
        progress=lambda done: report(share * done, "forward and backward"),
    )


def card_of(path: Path, settings: Examination) -> Card:
    """The card of a checkpoint on this disk."""
    located = locate(str(path), allow_pickle=settings.allow_pickle)
    return describe(located, objective=settings.objective, trust_remote_code=settings.trust_remote_code)


def _judged(job: CheckpointJob, run: Run, reading: TokenizedText, seen: Observation) -> int:
    report(0.7, "judging")
    begins = job.wave == "initial"
    judge = Evaluator(
        EvaluatorSettings(job.examination.request(), job.anchor, resumable=begins, keep=job.origin is not None)
    )
    if not begins:
        judge.load_state(_remembered(job, run))
    observed = finalize(seen, rows=RESERVOIR_ROWS, seed=reading.seed, device="cpu")
    found = judge.judged(_changed(job, seen, observed, reading.seed))
    memory = judge.memory(job.step, SkippedSteps())
    pool = ScopeState(job.step, 0, occasions={"early": memory.occasions.get("early", {})})
    if begins:
        kept = ScopeState(job.step, 0, steps={"initial": job.step}, occasions={"initial": memory.occasions["initial"]})
        run.write_file(initial_file(job.seed), kept.to_bytes())
    if job.wave != "late" and job.origin is not None:
        run.write_file(early_file(job.seed, job.label), pool.to_bytes())
    if job.origin is None:  # the twin is a null, not a checkpoint: it has no rows
        return 0
    if seen.tables:
        run.write_tensors(places(job), _places(seen.tables, judge.trajectories), step=str(job.step))
    if seen.probe:
        run.write_tensors(aligned(job), aligned_probe(seen.probe), step=str(job.step))
    _write(job, run, reading, found)
    return len(found.rows)


def _changed(job: CheckpointJob, seen: Observation, observed: Observation, seed: int) -> Observation:
    """The observation with the change of its embedding to the next checkpoint, or a note why there is none."""
    if seen.embedding is None or job.after is None or "gradients" in observed.missing:
        return observed
    settings, own = job.examination, seen.embedding
    try:
        model = loaded(card_of(job.after.here(allow_pickle=settings.allow_pickle), settings), settings)
        module: Any = model.get_input_embeddings()  # pyright: ignore[reportCallIssue]
        other = module.weight.detach()
    except (AnisoscopeError, BrokenRuleError, OSError, NotImplementedError) as error:
        return replace(observed, missing=observed.missing | {"change": f"no change to {job.after.label}: {error}"})
    why = None if bool(torch.isfinite(other).all()) else "its embedding is not finite"
    if other.shape != own.shape:
        why = f"its embedding has shape {tuple(other.shape)}, this one {tuple(own.shape)}"
    if why is not None:
        return replace(observed, missing=observed.missing | {"change": f"no change to {job.after.label}: {why}"})
    options = {"rows": RESERVOIR_ROWS, "seed": seed}
    return with_change(observed, types_seen(seen.statistics), own, other, **options)


def _remembered(job: CheckpointJob, run: Run) -> ScopeState:
    start = ScopeState.from_bytes(run.read_file(initial_file(job.seed)), initial_file(job.seed))
    occasions, frozen = dict(start.occasions), False
    if job.wave == "late" and run.has_file(early_file(job.seed)):
        early = ScopeState.from_bytes(run.read_file(early_file(job.seed)), early_file(job.seed)).occasions["early"]
        occasions, frozen = occasions | {"early": early}, bool(early)
    return ScopeState(job.step, 0, frozen=frozen, steps=start.steps, occasions=occasions)


def _write(job: CheckpointJob, run: Run, reading: TokenizedText, found: Evaluation) -> None:
    common = {"model": job.name, "role": reading.role, "seed": job.seed, "tokens": None}
    rows = [row | common for row in with_token_texts(found.rows, reading.data.tokeniser.text)]
    for timing, bases in found.bases.items():
        run.write_tensors(subspaces(job, timing), bases, step=str(job.step))
    if found.spectra:
        run.write_tensors(f"spectra-{job.writer}", found.spectra, step=str(job.step))
    run.write(job.writer, rows)  # last: rows that are there say that the job is done


def _places(tables: Mapping[str, TableReading], observed: Trajectories) -> dict[str, np.ndarray]:
    """Of tables by name, of contextual means by layer and module; after one observation the mean place is the place."""
    chosen = {f"table/{name}": (r.ids[:_WANDERERS], r.rows[:_WANDERERS]) for name, r in tables.items()}
    contexts = observed.contexts.items()
    chosen |= {f"context/{at.layer}/{at.name}": (types.ids, types.mean) for at, types in contexts}
    parts = {
        f"{name}/{part}": t for name, pair in chosen.items() for part, t in zip(("ids", "rows"), pair, strict=True)
    }
    return {name: tensor.cpu().numpy() for name, tensor in parts.items()}


def _packed(seen: Observation) -> bytes:
    """An observation that is not finalized, as named tensors."""
    occasions: dict[str, Statistics] = {"seen": seen.statistics, **seen.others}
    probe = seen.probe.items()
    occasions["probe"] = {Name("probe", at.layer, "activations", 0, "kept", at.name): kept for at, kept in probe}
    reasons = {what: torch.frombuffer(bytearray(why.encode()), dtype=torch.uint8) for what, why in seen.missing.items()}
    occasions["missing"] = {_reason_name(what): letters for what, letters in reasons.items()}
    if seen.embedding is not None:
        occasions["table"] = {_TABLE._replace(site=seen.embedding_site): seen.embedding}
    if seen.frequency is not None:
        occasions["frequency"] = {_COUNTS: seen.frequency}
        for name, reading in seen.tables.items():
            parts = {Name("tables", 0, name, k, "sum"): part for k, part in enumerate(reading.tensors())}
            occasions["frequency"] |= parts
    return ScopeState(seen.step, 0, occasions=occasions).to_bytes()


def _reason_name(what: str | SiteKey) -> Name:
    """What a reason is kept under: a place by itself, a null or a tensor by its name."""
    if isinstance(what, SiteKey):
        return Name("missing", what.layer, "", 0, "sum", what.name)
    return Name("missing", 0, what, 0, "sum")


def _unpacked(content: bytes) -> Observation:
    memory = ScopeState.from_bytes(content, "a part of a checkpoint")
    occasions = memory.occasions
    if "seen" not in occasions:
        raise AnisoscopeError("a part of a checkpoint holds no statistics")
    missing = occasions.get("missing", {}).items()
    tables = [(name.site, table) for name, table in occasions.get("table", {}).items() if isinstance(table, Tensor)]
    frequency, readings = _counted(occasions.get("frequency", {}))
    return Observation(
        memory.step,
        occasions["seen"],
        {null: occasions[null] for null in LABEL_NULLS if null in occasions},
        {name.tensor or name.at: bytes(text.tolist()).decode() for name, text in missing if isinstance(text, Tensor)},
        {name.at: kept for name, kept in occasions.get("probe", {}).items() if isinstance(kept, Reservoir)},
        frequency=frequency,
        tables=readings,
        embedding=tables[0][1] if tables else None,
        embedding_site=tables[0][0] if tables else "",
    )


def _counted(statistics: Statistics) -> tuple[Tensor | None, dict[str, TableReading]]:
    tensors = {name: s for name, s in statistics.items() if isinstance(s, Tensor)}
    tables = {name.tensor for name in tensors if name.view == "tables"}
    readings = {t: TableReading(*(tensors[Name("tables", 0, t, k, "sum")] for k in range(4))) for t in tables}
    return tensors.get(_COUNTS), {name: readings[name] for name in sorted(readings)}
