"""One model trained on transformers' Trainer with the scope's callback: the path a user walks."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, cast, runtime_checkable

import torch
from torch.utils.data import SequentialSampler

from anisoscope.data.tokens import Tokenised
from anisoscope.errors import AnisoscopeError
from anisoscope.evaluate.row_builders import Row, row
from anisoscope.integrations.transformers import STATE_NAME, ScopeCallback
from anisoscope.models.twins import ModelShape, Role, build
from anisoscope.record.scope_options import CaptureOptions, EvidenceOptions, SessionOptions
from anisoscope.store.disk import make_folder, tree_to_disk
from anisoscope.store.run import Run
from anisoscope.study.dataset import TrainingDataset, collated
from anisoscope.study.file_errors import failing_files
from anisoscope.study.fold_seed import fold_seed, use_documents
from anisoscope.study.pair.pair_settings import PairSettings
from anisoscope.study.saved_checkpoints import (
    discard,
    discard_going,
    discard_newer,
    discard_older,
    seal,
    whole_checkpoints,
)

try:
    from transformers import PrinterCallback, Trainer, TrainerCallback, TrainingArguments
    from transformers.utils.logging import disable_progress_bar, enable_progress_bar, is_progress_bar_enabled
except ImportError as error:
    raise AnisoscopeError('training needs transformers: pip install "anisoscope[train]"') from error


@runtime_checkable
class Watcher(Protocol):
    """Who wants to know how a training goes: a display."""

    def stepped(self, step: int, loss: float, tokens: int) -> None:
        """A step is done; ``tokens`` is how many it trained on."""

    def observed(self, rows: list[Row]) -> None:
        """An observation is judged."""


@dataclass(slots=True)
class Stop:
    """A wish to stop after the step under way, once it is saved."""

    wished: bool = False


@dataclass(frozen=True, slots=True)
class TrainingJob:
    """One training of a run."""

    settings: PairSettings
    role: Role
    seed: int
    folder: Path  # of the whole run

    @property
    def name(self) -> str:
        """The writer of its rows."""
        return f"{self.role}-{self.seed}"

    @property
    def model_name(self) -> str:
        """The model as the rows call it."""
        kind = self.settings.models
        if kind == "twin":
            return f"twin-{self.role}"
        return "gpt-neox" if self.role == "decoder" else kind.removeprefix("neox-")

    @property
    def checkpoints(self) -> Path:
        """Where its checkpoints are while it runs."""
        return self.folder / "checkpoints" / self.name

    @property
    def history(self) -> Path:
        """Where its weights at every observation are, if they are kept."""
        return self.folder / "history" / self.name

    @property
    def weights(self) -> Path:
        """Where its weights are when it is done."""
        return self.folder / "models" / self.name

    def newest(self) -> Path | None:
        """The newest checkpoint that is whole."""
        return next(whole_checkpoints(self.checkpoints), None)

    def clean_up(self) -> None:
        """Let the checkpoints go, once it is recorded that the training is done."""
        discard(self.checkpoints)
        discard_going(self.checkpoints.parent)
        with contextlib.suppress(OSError):  # others are still in there
            self.checkpoints.parent.rmdir()


def train(job: TrainingJob, newest: Path | None, data: Tokenised, run: Run, watcher: Watcher, stop: Stop) -> bool:
    """Train one model from a checkpoint, or from the beginning; returns whether it came to its end."""
    settings = job.settings
    samples = settings.steps * settings.batch
    lessons = TrainingDataset(data, job.role, samples=samples, seed=job.seed, mask_rate=settings.mask_rate)
    shape = ModelShape(
        settings.layers,
        settings.width,
        settings.heads,
        data.vocabulary,
        settings.length,
        data.pad_id,
        settings.dropout,
    )
    model = build(settings.models, job.role, shape, seed=job.seed)
    batch = settings.batch
    about = {"model": job.model_name, "role": job.role, "seed": job.seed}
    sink = _Told(run.sink(job.name, **about), watcher, stop)
    documents = _documents(job, lessons)
    seed = _scope_seed(job, lessons, documents)
    run.update(
        fold_seeds=run.manifest.get("fold_seeds", {}) | {job.name: seed},
        units=run.manifest.get("units", {}) | {job.name: "sequence" if documents is None else "document"},
    )
    observer = ScopeCallback(
        documents=documents,
        tokens=lambda step: lessons.tokens(step * batch, (step + 1) * batch),
        rank=settings.rank,
        proxies=settings.proxies,
        schedule=settings.observed,
        targets=settings.targets,
        resamples=settings.resamples,
        probe=_probe(data, settings),
        frequency=lessons.counts() if settings.frequency else False,
        seed=seed,
        evaluate=settings.evaluate,
        memory=settings.memory,
        evidence=EvidenceOptions(ranks=settings.other_ranks, margin=settings.margin),
        capture=CaptureOptions(maps=settings.maps),
        session=SessionOptions(
            sink=sink, resumable=True, keep_bases=settings.keep_bases, token_text=data.tokeniser.text
        ),
    )
    journal, held = _Journal(run, job, lessons, watcher, stop), _held(data, job)
    trainer = _TellingTrainer(
        model=model,
        args=_arguments(job, len(held)),
        data_collator=collated,
        train_dataset=lessons,
        eval_dataset=held,
        callbacks=[observer, journal],
    )
    trainer.journal = journal
    trainer.remove_callback(PrinterCallback)
    journal.loaded = newest
    with _no_bars(), failing_files(job.folder):
        trainer.train(resume_from_checkpoint=None if newest is None else str(newest))
    if sink.failed is not None:
        raise sink.failed
    if trainer.state.global_step < settings.steps:
        return False
    with _no_bars(), failing_files(job.folder):
        _save(model, data.tokeniser.to_json(), job.weights)
    run.write_tensors(f"counts-{job.name}", {"counts": lessons.counts()})
    return True


def weights_hash(folder: Path) -> str:
    """What tells the weights of a training from others."""
    digest = hashlib.sha256()
    for file in sorted(folder.glob("*.safetensors")):
        digest.update(file.read_bytes())
    return digest.hexdigest()


@contextlib.contextmanager
def _no_bars() -> Iterator[None]:
    """The display has a bar of its own; afterwards the library is as it was."""
    shown = is_progress_bar_enabled()
    disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            enable_progress_bar()


def _save(model: Any, tokeniser: str, folder: Path) -> None:
    """Weights with the tokeniser beside them, so that the folder is a model that anyone can load."""
    make_folder(folder)
    model.save_pretrained(folder)
    (folder / "tokenizer.json").write_text(tokeniser, encoding="utf-8")
    tree_to_disk(folder)  # before the run says that they are there


def _documents(job: TrainingJob, lessons: TrainingDataset) -> Callable[[int], torch.Tensor | None] | None:
    """Which documents the sequences of a step are of, where these are the units."""
    size, steps = job.settings.batch, job.settings.observed

    def of(step: int) -> torch.Tensor | None:
        return lessons.documents(step * size, (step + 1) * size)

    observed = range(0, job.settings.steps, steps) if isinstance(steps, int) else steps
    return of if use_documents([of(step) for step in observed], job.settings.units) else None


def _scope_seed(
    job: TrainingJob, lessons: TrainingDataset, documents: Callable[[int], torch.Tensor | None] | None
) -> int:
    """The training's own seed, or one under which no observed batch falls apart; of every n-th step there are many."""
    steps, size = job.settings.observed, job.settings.batch
    if isinstance(steps, int):
        return job.seed
    batches = [collated([lessons[number] for number in range(step * size, (step + 1) * size)]) for step in steps]
    for step, batch in zip(steps, batches, strict=True):
        known = None if documents is None else documents(step)
        if known is not None:
            batch["documents"] = known
    return fold_seed(batches, seed=job.seed)


def _arguments(job: TrainingJob, held: int) -> TrainingArguments:
    s = job.settings
    on_cpu = not torch.accelerator.is_available() if s.device == "auto" else s.device == "cpu"
    every = max(1, s.steps // s.checkpoints) if s.checkpoints else s.steps + 1
    return TrainingArguments(
        output_dir=str(job.checkpoints),
        max_steps=s.steps,
        per_device_train_batch_size=s.batch,
        per_device_eval_batch_size=min(s.batch, held),  # of fewer sequences no batch would be left: none may be short
        learning_rate=s.learning_rate,
        warmup_steps=round(s.warmup * s.steps),
        weight_decay=s.weight_decay,
        max_grad_norm=s.clip,
        bf16=s.precision == "bf16",
        use_cpu=on_cpu,  # else bf16 wants a GPU
        dataloader_pin_memory=not on_cpu and torch.cuda.is_available(),
        seed=job.seed,
        dataloader_drop_last=True,
        remove_unused_columns=False,
        eval_strategy="steps",
        eval_steps=max(1, s.steps // s.evaluations),
        eval_on_start=True,
        prediction_loss_only=True,
        save_strategy="steps" if s.checkpoints else "no",
        save_steps=every,
        save_total_limit=None,  # Trainer goes by the clock of the file system, which may be set back
        logging_strategy="no",
        report_to="none",
        disable_tqdm=True,
    )


def _held(data: Tokenised, job: TrainingJob) -> TrainingDataset:
    """A part of the held-out sequences, the same at every evaluation."""
    s = job.settings
    samples = min(len(data.held.ids), 4 * s.batch)
    return TrainingDataset(data, job.role, samples=samples, seed=job.seed, mask_rate=s.mask_rate, held=True)


def _probe(data: Tokenised, settings: PairSettings) -> dict[str, torch.Tensor] | None:
    """Held-out sequences of about so many tokens, or none where there are not enough."""
    if not settings.probe:
        return None
    total, count = 0, 0
    while count < len(data.held.ids) and total < settings.probe:
        total += int(data.held.lengths[count])
        count += 1
    if total < 4096:
        return None
    ids = torch.from_numpy(data.held.ids[:count].astype("int64"))
    mask = torch.arange(ids.shape[1])[None] < torch.from_numpy(data.held.lengths[:count].astype("int64"))[:, None]
    return {"input_ids": ids, "attention_mask": mask.long()}


@dataclass(slots=True)
class _Told:
    """Rows on their way into the run, of which the display hears.

    What cannot be written ends the training: it would go on without being observed.
    """

    sink: Any
    watcher: Watcher
    stop: Stop
    failed: AnisoscopeError | None = None

    def write(self, rows: list[Row]) -> None:
        """Take the rows of one observation."""
        with self._needed():
            self.sink.write(rows)
        self.watcher.observed(rows)

    def read(self) -> list[Row]:
        """The rows, from the run."""
        return self.sink.read()

    def keep(self, what: str, timing: str | None, step: int, tensors: dict[str, Any], *, every: bool) -> None:
        """Take proxies and spectra."""
        with self._needed():
            self.sink.keep(what, timing, step, tensors, every=every)

    @contextlib.contextmanager
    def _needed(self) -> Iterator[None]:
        try:
            yield
        except AnisoscopeError as error:
            self.failed, self.stop.wished = error, True
            raise


class _Journal(TrainerCallback):
    """Losses into the run, progress to the display, and a clean stop when one is wished for."""

    def __init__(self, run: Run, job: TrainingJob, lessons: TrainingDataset, watcher: Watcher, stop: Stop) -> None:
        self._run, self._job, self._lessons, self._watcher, self._stop = run, job, lessons, watcher, stop
        self.loss: torch.Tensor | None = None
        self.loaded: Path | None = None  # the checkpoint that the training goes on from
        steps = job.settings.steps
        self._every = max(1, steps // 50)
        self._evaluated = max(1, steps // job.settings.evaluations)

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Everything is loaded: what was torn, or came after the checkpoint, is of no use any more."""
        discard_newer(self._job.checkpoints, self.loaded)

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """The scope has put its state there: the checkpoint is whole, and older ones may go."""
        saved = self._job.checkpoints / f"checkpoint-{state.global_step}"
        if (saved / STATE_NAME).exists():
            seal(saved)
            discard_older(self._job.checkpoints, saved)

    def on_step_begin(self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any) -> None:
        """Keep the weights that an observation is of, named as Trainer names checkpoints."""
        step, due = state.global_step, self._job.settings.observed
        if self._job.settings.history and (step % due == 0 if isinstance(due, int) else step in due):
            tokeniser = self._lessons.data.tokeniser.to_json()
            _save(model, tokeniser, self._job.history / f"checkpoint-{step}")

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Write the loss of every few steps."""
        step, batch = state.global_step, self._job.settings.batch
        loss = float("nan") if self.loss is None else float(self.loss)
        self._watcher.stepped(step, loss, self._lessons.tokens((step - 1) * batch, step * batch))
        if (step - 1) % self._every == 0 or step == state.max_steps:
            self._write("train", step - 1, loss)
        if self._stop.wished:
            control.should_save = control.should_training_stop = True

    def on_evaluate(self, args: Any, state: Any, control: Any, metrics: Any = None, **kwargs: Any) -> None:
        """Write the held-out loss, at the steps an uninterrupted training would."""
        step = state.global_step
        if step % self._evaluated == 0 or step == state.max_steps:
            self._write("held-out", step, metrics["eval_loss"])

    def _write(self, variant: str, step: int, value: float) -> None:
        about = {"model": self._job.model_name, "role": self._job.role, "seed": self._job.seed}
        found = row(step=step, subset=None, measure="loss", variant=variant, value=value)
        self._run.write(f"{self._job.name}-loss-{variant}", [found | about])


class _TellingTrainer(Trainer):
    """A Trainer that takes the lessons in their order and tells the journal the loss of each step."""

    journal: _Journal | None = None

    def _get_train_sampler(self, *args: Any, **kwargs: Any) -> Any:
        return SequentialSampler(cast(TrainingDataset, self.train_dataset))

    def training_step(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        """As always, and remember the loss."""
        loss = super().training_step(*args, **kwargs)
        if self.journal is not None:
            self.journal.loss = loss.detach()
        return loss
