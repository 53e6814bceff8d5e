"""One training of a plan: the control's, or that of an arm at a dose. Letters: B sequences, T positions.

Control and arms of one seed share the initial weights, the data and their order, and each carries the same scope. What
an arm changes is here; at dose 0 nothing is attached, and its weights are those of the control to the last bit.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from anisoscope.data.tokens import Tokenised, prepare
from anisoscope.errors import AnisoscopeError, broken
from anisoscope.evaluate.row_builders import Row, row
from anisoscope.intervene.frequency_weights import (
    FrequencyLaw,
    drawn_exponent,
    frequency_weights,
    masking_rates,
    weighted_loss,
)
from anisoscope.intervene.penalties import CosReg, CurvatureReg, IStar, SpectralDecay
from anisoscope.intervene.regularise import Regularizer
from anisoscope.intervene.updates import UpdateProjection
from anisoscope.jobs import distributed_job as company
from anisoscope.jobs.job_pool import report
from anisoscope.models.twins import IGNORED, ModelShape, Role, build
from anisoscope.record.scope_options import SessionOptions
from anisoscope.scope import Scope
from anisoscope.store.run import Run, open_run
from anisoscope.study.dataset import collated
from anisoscope.study.fold_seed import fold_seed
from anisoscope.study.intervene.arm_data import ArmDataset, sequence_chances, words_exponent
from anisoscope.study.intervene.arm_measures import held_batches, held_out_rows, probe_text
from anisoscope.study.intervene.intervene_settings import PENALTIES, Arm, InterveneSettings
from anisoscope.study.intervene.probe_tasks import ProbeTask, probe_rows, tasks_of
from anisoscope.study.resume_checks import require_same_text

OBSERVED = (0.0, 0.3, 0.7, 1.0)  # of the steps


@dataclass(frozen=True, slots=True)
class ArmJob:
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


@lru_cache(maxsize=2)
def prepared(corpus: str, **options: Any) -> Tokenised:
    """A corpus as sequences, kept for the jobs that come after in this process."""
    return prepare(corpus, **options)


@dataclass(slots=True, eq=False)
class _Training:
    """Everything of a training before its first step."""

    job: ArmJob
    settings: InterveneSettings
    data: Tokenised
    lessons: ArmDataset
    model: Any
    law: FrequencyLaw | None
    trained_on: np.ndarray  # (V,), how often a type was asked for, by its weight
    tasks: list[ProbeTask]
    forward: Any  # the model as a step calls it

    @classmethod
    def of(cls, job: ArmJob, *, alone: bool = False) -> _Training:
        """``alone``: in this process, whichever others train along."""
        settings, arm = job.plan, job.of_arm
        data = prepared(
            settings.corpus if arm is None or arm.kind != "zipf" else f"zipf:{job.dose:g}",
            length=settings.length,
            vocabulary=settings.vocabulary,
            tokeniser=settings.tokeniser,
            seed=settings.first_seed,
        )
        shape = ModelShape(
            settings.layers, settings.width, settings.heads, data.vocabulary, settings.length, data.pad_id
        )
        samples = settings.steps * settings.batch
        attention, objective = settings.cell_of(arm)
        role: Role = "decoder" if objective == "next-token" else "encoder"
        lessons = ArmDataset(data, role, samples=samples, seed=job.seed, mask_rate=settings.mask_rate)
        law = None
        if arm is not None and job.dose:
            counts = torch.from_numpy(data.counts())
            if arm.kind == "mask-rates":
                law = masking_rates(counts, job.dose, rate=settings.mask_rate)
                lessons.rates = law.values.numpy()
            elif arm.kind == "loss-weights":
                law = frequency_weights(counts, job.dose)
            elif arm.kind == "documents":
                lessons.chances = sequence_chances(data, job.dose)
        model = build("twin", settings.role, shape, seed=job.seed, attention=attention, objective=objective).train()
        probed = settings.probes and not alone
        tasks = tasks_of(data, settings.probe_data, seed=settings.first_seed) if probed else []
        forward = model if alone else company.together(model)
        return cls(job, settings, data, lessons, model, law, np.zeros(data.vocabulary), tasks, forward)

    @property
    def corpus(self) -> str:
        """The name of what it is trained on."""
        arm = self.job.of_arm
        return f"zipf:{self.job.dose:g}" if arm is not None and arm.kind == "zipf" else self.settings.corpus

    @property
    def role(self) -> Role:
        """What it is asked for, as lessons know it."""
        return "decoder" if self.model.shifted else "encoder"

    def batch(self, step: int) -> dict[str, Tensor]:
        size = self.settings.batch
        found = collated([self.lessons[k] for k in range(step * size, (step + 1) * size)])
        found["labels"] = found["labels"].masked_fill(self.model.prefix(found["attention_mask"]), IGNORED)
        return found

    def loss(self, given: Mapping[str, Tensor]) -> Tensor:
        output = self.forward(**given)
        labels = given["labels"][:, 1:] if self.model.shifted else given["labels"]
        made = np.bincount(labels[labels != IGNORED].numpy(), minlength=len(self.trained_on))
        asked = int(made.sum())
        if not self._weighs:
            self.trained_on += made
            return company.weighed(output.loss, asked)
        assert self.law is not None, "it weighs by a law"
        self.trained_on += made * self.law.values.numpy()
        logits = output.logits[:, :-1] if self.model.shifted else output.logits
        return company.weighed(weighted_loss(logits, labels, self.law.values), asked)

    @property
    def _weighs(self) -> bool:
        arm = self.job.of_arm
        return arm is not None and arm.kind == "loss-weights" and self.law is not None


def trained(job: ArmJob) -> int:
    """Train, observe and write; a training that diverges is an error, and the others go on."""
    settings = job.plan
    company.require_shares(settings.batch)
    company.announce(job)
    report(0.0, "reading")
    training = _Training.of(job)
    about: Row = {"model": job.label, "role": settings.role, "seed": job.seed}
    run = open_run(job.run)
    if training.corpus == settings.corpus:
        require_same_text(run.manifest, "corpus", training.data.fingerprint, settings.corpus)
    due = sorted({min(settings.steps - 1, round(share * settings.steps)) for share in OBSERVED})
    optimizer = torch.optim.AdamW(
        training.model.parameters(), lr=settings.learning_rate, weight_decay=settings.weight_decay
    )
    pace = torch.optim.lr_scheduler.LambdaLR(optimizer, _pace(settings))
    scope = Scope(
        training.forward,
        steps=settings.steps,
        schedule=due,
        rank=settings.rank,
        views=settings.views,
        targets=settings.targets,
        probe=probe_text(training.data),
        frequency=training.data.counts(),
        resamples=settings.resamples,
        seed=fold_seed([training.batch(step) for step in due], seed=job.seed),
        strict=True,
        evaluate="host",
        session=SessionOptions(sink=run.sink(job.writer, **about) if company.leads() else None),
    )
    with contextlib.ExitStack() as attached:
        attached.callback(scope.close)
        penalty = _attached(training, optimizer, attached)
        for step in range(settings.steps):
            if step in due and company.leads():
                _between(training, run, job, about, step)
            with scope.step():
                loss = training.loss(company.own_share(training.batch(step)))
                whole = loss if penalty is None else loss + penalty()
                # Of all processes, so that all stop at once.
                value = float(company.summed(whole.detach())) / company.processes()
                if not math.isfinite(value):
                    raise AnisoscopeError(f"diverged: the loss is {value} at step {step}")
                whole.backward()
            nn.utils.clip_grad_norm_(training.model.parameters(), settings.clip)
            optimizer.step()
            optimizer.zero_grad()
            pace.step()
            report((step + 1) / settings.steps, f"step {step + 1}, loss {float(loss.detach()):.3f}")
    training.trained_on = company.summed(torch.from_numpy(training.trained_on)).numpy()
    if not company.leads():
        return 0
    rows = _own_rows(training, settings.steps)
    run.write(f"{job.writer}-end", [found | about for found in rows])
    return len(rows)


def require_finite_first_step(job: ArmJob) -> None:
    """Raise if a training would have no loss or no gradient at its first batch; nothing is trained."""
    training = _Training.of(job, alone=True)
    optimizer = torch.optim.AdamW(training.model.parameters(), lr=training.settings.learning_rate)
    with contextlib.ExitStack() as attached:
        penalty = _attached(training, optimizer, attached)
        loss = training.loss(training.batch(0))
        whole = loss if penalty is None else loss + penalty()
        whole.backward()
    norm = nn.utils.get_total_norm([p.grad for p in training.model.parameters() if p.grad is not None])
    for what, value in (("loss", float(whole.detach())), ("norm of the gradient", float(norm))):
        if not math.isfinite(value):
            rule = "every arm must have a finite loss and gradient at its first step"
            raise broken(rule, f"a {what} of {value} in {job.label}", "take a smaller dose")


def _attached(
    training: _Training, optimizer: torch.optim.Optimizer, attached: contextlib.ExitStack
) -> Callable[[], Tensor] | None:
    job, arm = training.job, training.job.of_arm
    if arm is None or job.dose == 0:
        return None
    if arm.kind == "updates":
        options = {"rank": arm.rank, "directions": arm.directions, "against": arm.against, "every": arm.every}
        attached.enter_context(
            UpdateProjection(
                training.forward, optimizer, strength=job.dose, layers=arm.layers, seed=job.seed, **options
            )
        )
    if arm.kind not in PENALTIES:
        return None
    made = {
        "cos": CosReg,
        "istar": IStar,
        "decay": lambda: SpectralDecay(arm.alpha),
        "curvature": CurvatureReg,
    }[arm.kind]()
    return attached.enter_context(Regularizer(training.forward, made, weight=job.dose, layers=arm.layers))


def _between(training: _Training, run: Run, job: ArmJob, about: Row, step: int) -> None:
    """Held-out loss and probes of the weights that an observation is of."""
    rows = _held_rows(training, step)
    if training.settings.probes:
        rows += probe_rows(training.model, training.tasks, {"step": step}, seed=training.settings.first_seed)
    run.write(f"{job.writer}-between-{step}", [found | about for found in rows])


def _held_rows(training: _Training, step: int) -> list[Row]:
    batches = held_batches(training.data, training.settings, training.role)
    return held_out_rows(training.model, training.data, batches, {"step": step})


def _own_rows(training: _Training, step: int) -> list[Row]:
    common = {"step": step}
    return _held_rows(training, step) + _law_rows(training, common)


def _law_rows(training: _Training, common: Row) -> list[Row]:
    """The law of the tokens that were asked for, against that of the corpus: measured, not assumed."""
    job, arm, law = training.job, training.job.of_arm, training.law
    common = common | {"subset": "all", "measure": "realised_exponent"}
    found = []
    if law is not None:
        note = f"{law.at_limit:.1%} of the tokens at the limit" if law.at_limit else None
        found.append(row(**common, value=law.realised, floor=law.asked, note=note))
    asked = None if arm is None or arm.kind not in ("loss-weights", "mask-rates") or not job.dose else 1 - job.dose
    if arm is None or arm.kind == "null":
        asked = 1.0
    counts = training.data.counts()
    made = drawn_exponent(counts, training.trained_on)
    n = round(float(training.trained_on.sum()))
    found.append(row(**common, variant="drawn", value=made, floor=asked, n=n))
    corpus = training.corpus
    if corpus.startswith("zipf:"):
        exponent = words_exponent(training.data, training.lessons.came(), seed=training.settings.first_seed)
        changed = arm is not None and arm.kind == "documents" and job.dose
        found.append(row(**common, variant="words", value=exponent, floor=None if changed else float(corpus[5:])))
    return found


def _pace(settings: InterveneSettings) -> Callable[[int], float]:
    warm = max(1, round(settings.warmup * settings.steps))
    return lambda step: min((step + 1) / warm, max(0.0, (settings.steps - step) / max(1, settings.steps - warm)))
