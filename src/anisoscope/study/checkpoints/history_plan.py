"""The course of a training history: which checkpoints are studied, in what order, and what was found of the others."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from anisoscope.errors import AnisoscopeError, broken
from anisoscope.jobs.job_pool import JobListener, JobOutcome, Task
from anisoscope.models.cards import Card
from anisoscope.models.revisions import counts_tokens, place
from anisoscope.study.checkpoints.checkpoint_jobs import card_of
from anisoscope.study.checkpoints.download_cache import Keeping
from anisoscope.study.checkpoints.histories import History, Origin, checked, origins_of
from anisoscope.study.model_settings import Examination, HistoryPlan
from anisoscope.study.tokenized_text import require_fitting


@dataclass(frozen=True, slots=True)
class HistoryPoint:
    """A checkpoint that curves go through."""

    origin: Origin
    step: int


@dataclass(frozen=True, slots=True, eq=False)
class StudiedHistory:
    """A history brought into order: what was found of it, and what is studied."""

    history: History
    points: tuple[HistoryPoint, ...]
    left_out: dict[str, str]
    tokens: bool  # whether labels count tokens
    card: Card


def build_plan(
    sources: Sequence[str], settings: Examination, plan: HistoryPlan, listener: JobListener
) -> StudiedHistory:
    """Hash every checkpoint, leave out what cannot be trusted, and find the step of the others."""
    origins, expected = origins_of(sources, plan.revisions)
    keeping = Keeping(origins, plan.keep, settings.allow_pickle)
    listener.begun(["integrity"])
    listener.started("integrity")

    def begun(label: str, number: int, total: int) -> None:
        listener.progressed("integrity", number / total, f"hashing {label}")

    began = time.monotonic()
    history = checked(origins, expected=expected, allow_pickle=settings.allow_pickle, begun=begun, done=keeping.used)
    listener.ended(JobOutcome(Task("integrity", checked), seconds=time.monotonic() - began))
    by_label = {origin.label: origin for origin in origins}
    findings = {f.label: f.text for f in history.findings if f.excluded}
    trusted = history.checkpoints if plan.include_untrusted else history.trusted
    there = [one for one in trusted if one.weights is not None]
    tokens = sum(counts_tokens(one.label) for one in there) * 2 > len(there)
    points, left_out = _placed([by_label[one.label] for one in there], tokens)
    if not plan.include_untrusted:
        left_out = findings | left_out
    if len(points) < 2:
        why = "; ".join(left_out.values()) or "the labels give no step"
        raise AnisoscopeError(f"fewer than two checkpoints are left to study: {why}")
    card = card_of(points[-1].origin.here(allow_pickle=settings.allow_pickle), settings)
    require_fitting(card, settings, settings.rank)
    if plan.revisions is None and plan.steps is not None and plan.steps < points[-1].step:
        raise broken("--steps must not be before the last checkpoint", plan.steps, f"it is at {points[-1].step}")
    return StudiedHistory(history, tuple(points), left_out, tokens, card)


def _placed(origins: Sequence[Origin], tokens: bool) -> tuple[list[HistoryPoint], dict[str, str]]:
    """Steps of labels, later stages after earlier ones; those that tell none are left out."""
    found: list[HistoryPoint] = []
    left_out: dict[str, str] = {}
    stage, offset = 0, 0
    for origin in origins:
        at = place(origin.label)
        if at is None or counts_tokens(origin.label) != tokens:
            what = "number of tokens" if tokens else "step"
            left_out[origin.label] = f"{origin.label} tells no {what}"
            continue
        if at[0] != stage and found:
            offset = found[-1].step
        stage = at[0]
        step = offset + int(at[1])
        if found and step <= found[-1].step:
            left_out[origin.label] = f"{origin.label} is at the step of {found[-1].origin.label}"
            continue
        found.append(HistoryPoint(origin, step))
    return found, left_out
