"""The scope as a callback of transformers' ``Trainer``."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

from anisoscope.errors import AnisoscopeError
from anisoscope.integrations.hosted import Hosted
from anisoscope.observe.rows import Row
from anisoscope.store.files import Folder

try:
    from transformers import Trainer, TrainerCallback
except ImportError as error:
    raise AnisoscopeError('ScopeCallback needs transformers: pip install "anisoscope[train]"') from error


STATE_NAME = "anisoscope.safetensors"


class ScopeCallback(TrainerCallback):
    """Observes a ``Trainer`` run; takes the options of ``Scope``, except those that the Trainer knows (the steps).

    Example::

        callback = ScopeCallback(rank=32)
        Trainer(model, args, train_dataset=data, callbacks=[callback]).train()
        callback.rows()

    ``session=SessionOptions(resumable=True)`` saves the scope with every checkpoint (as ``anisoscope.safetensors``), so
    that a training resumed from it goes on to the rows of an uninterrupted one. ``tokens(step)`` may tell how many
    tokens a step trains on, ``documents(step)`` the documents of its sequences, as ``Scope.step`` takes them.

    Headline numbers go through ``Trainer.log``, so whatever ``report_to`` names shows them. An observation is judged
    beside the training and logged when it is ready; ``anisoscope/step`` says which step it is of.
    """

    def __init__(
        self,
        *,
        tokens: Callable[[int], int] | None = None,
        documents: Callable[[int], Any] | None = None,
        **options: Any,
    ) -> None:
        self._hosted = Hosted(options)
        self._tokens, self._documents = tokens, documents
        session = options.get("session")
        self._resumable = session is not None and session.resumable
        self._trainer: Trainer | None = None
        self._step_of_trainer: Any = None

    def rows(self) -> list[Row]:
        """All rows so far, one number a row; waits for judgements under way."""
        return self._hosted.rows()

    def on_train_begin(self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any) -> None:
        """The length of training is known now."""
        self._trainer = _trainer_above(inspect.currentframe())
        if self._trainer is not None:
            self._guard(self._trainer)
        self._hosted.start(model, steps=state.max_steps, first_step=state.global_step)
        saved = _checkpoint(args, state) / STATE_NAME
        if self._resumable and state.global_step and saved.exists():
            self._hosted.restore(saved.read_bytes())

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """The first micro-batch of a step is about to come."""
        step = state.global_step
        tokens = None if self._tokens is None else self._tokens(step)
        self._hosted.begin(tokens, None if self._documents is None else self._documents(step))

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """All micro-batches are through. Gradients are clipped by now; the taps saw them before."""
        self._hosted.end()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Log what has been judged; at the last step wait for the rest, while reporters still listen."""
        self._hosted.end()
        over = state.global_step >= state.max_steps or control.should_training_stop
        if self._trainer is not None:
            for numbers in self._hosted.news(wait=over):
                self._trainer.log(numbers)

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Put the scope beside the checkpoint, as the last file of it: whole, or not at all."""
        if self._resumable and state.is_world_process_zero:
            try:
                content = self._hosted.state()
                if content is not None:
                    Folder(_checkpoint(args, state)).write(STATE_NAME, content)
            except AnisoscopeError as error:  # the training goes on; from this checkpoint the scope cannot
                warnings.warn(str(error), stacklevel=2)

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Close the scope and leave the trainer as it was."""
        self._hosted.close()
        if self._trainer is not None and self._step_of_trainer is not None:
            del self._trainer.training_step
        self._trainer = self._step_of_trainer = None

    def _guard(self, trainer: Trainer) -> None:
        """No event tells of an exception in the training step, so the step itself is watched for one."""
        original = self._step_of_trainer = trainer.training_step

        def training_step(*args: Any, **kwargs: Any) -> Any:
            try:
                return original(*args, **kwargs)
            except BaseException:
                self._hosted.abandon()
                raise

        trainer.training_step = training_step


def _checkpoint(args: Any, state: Any) -> Path:
    return Path(args.output_dir) / f"checkpoint-{state.global_step}"


def _trainer_above(frame: FrameType | None) -> Trainer | None:
    """The trainer that is calling: events do not say which one it is, and ``log`` is its method."""
    while frame is not None:
        owner = frame.f_locals.get("self")
        if isinstance(owner, Trainer):
            return owner
        frame = frame.f_back
    return None
