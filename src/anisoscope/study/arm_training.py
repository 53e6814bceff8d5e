"""One training of a plan: the control's, or that of an arm at a dose. Letters: B sequences, T positions.

Control and arms of one seed share the initial weights, the data and their order, and each carries the same scope. What
an arm changes is here; at dose 0 nothing is attached, and its weights are those of the control to the last bit.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from anisoscope.data.tokens import Tokenised, prepare
from anisoscope.errors import AnisoscopeError
from anisoscope.intervene.frequency_weights import FrequencyLaw, frequency_weights, masking_rates, weighted_loss
from anisoscope.intervene.penalties import CosReg, CurvatureReg, IStar, SpectralDecay
from anisoscope.intervene.regularise import Regularizer
from anisoscope.intervene.updates import UpdateProjection
from anisoscope.models.twins import Shape, build
from anisoscope.observe.options import SessionOptions
from anisoscope.observe.rows import Row, row
from anisoscope.scope import Scope
from anisoscope.store.run import open_run
from anisoscope.study.folds import fold_seed
from anisoscope.study.intervene_settings import PENALTIES, Arm, InterveneSettings
from anisoscope.study.lessons import Lessons, collated
from anisoscope.study.pool import report
from anisoscope.study.unchanged import require_same_text

OBSERVED = (0.0, 0.3, 0.7, 1.0)  # of the steps
_HELD = 4  # batches of held-out text


@dataclass(frozen=True, slots=True)
class Job:
    """A training under one seed; without an arm it is the control."""

    run: str
    seed: int
    settings: Mapping[str, Any] = field(default_factory=dict)
    arm: str | None = None
    dose: float = 0.0

    @property
    def plan(self) -> InterveneSettings:
        """The settings of the whole plan."""
        return InterveneSettings(**self.settings)

    @property
    def of_arm(self) -> Arm | None:
        """Its arm."""
        return next((arm for arm in self.plan.every_arm if arm.name == self.arm), None)

    @property
    def label(self) -> str:
        """The model as rows call it."""
        arm = self.of_arm
        return "control" if arm is None else arm.label(self.dose)

    @property
    def writer(self) -> str:
        """Who writes its rows."""
        return f"{self.label.replace(' ', '_').replace('+', '')}-{self.seed}"


class _ByType(Lessons):
    """Masked tokens are chosen with a rate of their own type."""

    rates: np.ndarray | None = None

    def _masked(self, ids_T: np.ndarray, mask_T: np.ndarray, number: int) -> tuple[np.ndarray, np.ndarray]:
        if self.rates is None:
            return super()._masked(ids_T, mask_T, number)
        constant, self._mask_rate = self._mask_rate, self.rates[ids_T]  # pyright: ignore[reportAttributeAccessIssue]
        try:
            return super()._masked(ids_T, mask_T, number)
        finally:
            self._mask_rate = constant


@dataclass(slots=True, eq=False)
class _Training:
    """Everything of a training before its first step."""

    job: Job
    settings: InterveneSettings
    data: Tokenised
    lessons: _ByType
    model: Any
    law: FrequencyLaw | None
    changes_corpus: bool = False

    @classmethod
    def of(cls, job: Job) -> _Training:
        settings, arm = job.plan, job.of_arm
        changes_corpus = arm is not None and arm.kind == "zipf"
        data = prepare(
            f"zipf:{job.dose:g}" if changes_corpus else settings.corpus,
            length=settings.length,
            vocabulary=settings.vocabulary,
            tokeniser=settings.tokeniser,
            seed=settings.first_seed,
        )
        shape = Shape(settings.layers, settings.width, settings.heads, data.vocabulary, settings.length, data.pad_id)
        samples = settings.steps * settings.batch
        lessons = _ByType(data, settings.role, samples=samples, seed=job.seed, mask_rate=settings.mask_rate)
        law = None
        if arm is not None and arm.kind in ("loss-weights", "mask-rates") and job.dose:
            counts = torch.from_numpy(data.counts())
            if arm.kind == "mask-rates":
                law = masking_rates(counts, job.dose, rate=settings.mask_rate)
                lessons.rates = law.values.numpy()
            else:
                law = frequency_weights(counts, job.dose)
        model = build("twin", settings.role, shape, seed=job.seed).train()
        return cls(job, settings, data, lessons, model, law, changes_corpus)

    def batch(self, step: int) -> dict[str, Tensor]:
        size = self.settings.batch
        return collated([self.lessons[k] for k in range(step * size, (step + 1) * size)])

    def loss(self, given: Mapping[str, Tensor]) -> Tensor:
        output = self.model(**given)
        arm = self.job.of_arm
        if arm is None or arm.kind != "loss-weights" or self.law is None:
            return output.loss
        logits, labels = output.logits, given["labels"]
        if self.settings.role == "decoder":
            logits, labels = logits[:, :-1], labels[:, 1:]
        return weighted_loss(logits, labels, self.law.values)

    def held_out(self) -> float:
        """The mean loss of a token of held-out text, the same text for every arm of the corpus."""
        settings = self.settings
        samples = min(len(self.data.held.ids), _HELD * settings.batch)
        lessons = Lessons(
            self.data, settings.role, samples=samples, seed=settings.first_seed, mask_rate=settings.mask_rate, held=True
        )
        self.model.eval()
        with torch.no_grad():
            parts = [
                collated([lessons[k] for k in range(start, min(start + settings.batch, samples))])
                for start in range(0, samples, settings.batch)
            ]
            counts = [int((part["labels"] != -100).sum()) for part in parts]
            losses = [float(self.model(**part).loss) for part in parts]
        self.model.train()
        return float(np.average(losses, weights=counts))


def trained(job: Job) -> int:
    """Train, observe and write; a training that diverges is an error, and the others go on."""
    settings = job.plan
    report(0.0, "reading")
    training = _Training.of(job)
    about = {"model": job.label, "role": settings.role, "seed": job.seed}
    run = open_run(job.run)
    if not training.changes_corpus:
        require_same_text(run.manifest, "corpus", training.data.fingerprint, settings.corpus)
    due = sorted({min(settings.steps - 1, round(share * settings.steps)) for share in OBSERVED})
    optimizer = torch.optim.AdamW(
        training.model.parameters(), lr=settings.learning_rate, weight_decay=settings.weight_decay
    )
    pace = torch.optim.lr_scheduler.LambdaLR(optimizer, _pace(settings))
    scope = Scope(
        training.model,
        steps=settings.steps,
        schedule=due,
        rank=settings.rank,
        views=("representation",),
        resamples=settings.resamples,
        seed=fold_seed([training.batch(step) for step in due], seed=job.seed),
        strict=True,
        evaluate="host",
        session=SessionOptions(sink=run.sink(job.writer, **about)),
    )
    with contextlib.ExitStack() as attached:
        attached.callback(scope.close)
        penalty = _attached(training, optimizer, attached)
        for step in range(settings.steps):
            with scope.step():
                loss = training.loss(training.batch(step))
                whole = loss if penalty is None else loss + penalty()
                if not math.isfinite(float(whole.detach())):
                    raise AnisoscopeError(f"diverged: the loss is {float(whole.detach())} at step {step}")
                whole.backward()
            nn.utils.clip_grad_norm_(training.model.parameters(), settings.clip)
            optimizer.step()
            optimizer.zero_grad()
            pace.step()
            report((step + 1) / settings.steps, f"step {step + 1}, loss {float(loss.detach()):.3f}")
    rows = _own_rows(training, settings.steps)
    run.write(f"{job.writer}-end", [found | about for found in rows])
    return len(rows)


def _attached(
    training: _Training, optimizer: torch.optim.Optimizer, attached: contextlib.ExitStack
) -> Callable[[], Tensor] | None:
    job, arm = training.job, training.job.of_arm
    if arm is None or job.dose == 0:
        return None
    if arm.kind == "updates":
        options = {"rank": arm.rank, "directions": arm.directions, "against": arm.against, "every": arm.every}
        attached.enter_context(
            UpdateProjection(training.model, optimizer, strength=job.dose, layers=arm.layers, seed=job.seed, **options)
        )
    if arm.kind not in PENALTIES:
        return None
    made = {
        "cos": CosReg,
        "istar": IStar,
        "decay": lambda: SpectralDecay(arm.alpha),
        "curvature": CurvatureReg,
    }[arm.kind]()
    return attached.enter_context(Regularizer(training.model, made, weight=job.dose, layers=arm.layers))


def _own_rows(training: _Training, step: int) -> list[Row]:
    common = {"step": step, "subset": "all"}
    found = [row(**common, measure="loss", variant="held-out", value=training.held_out())]
    if training.law is not None:
        law = training.law
        note = f"{law.at_limit:.1%} of the tokens at the limit" if law.at_limit else None
        found.append(row(**common, measure="realised_exponent", value=law.realised, floor=law.asked, note=note))
    return found


def _pace(settings: InterveneSettings) -> Callable[[int], float]:
    warm = max(1, round(settings.warmup * settings.steps))
    return lambda step: min((step + 1) / warm, max(0.0, (settings.steps - step) / max(1, settings.steps - warm)))
