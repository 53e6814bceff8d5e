"""The scope as a callback of transformers' ``Trainer``."""

from __future__ import annotations

import copy
import inspect
import warnings
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

from anisoscope.errors import AnisoscopeError, ScopeWarning
from anisoscope.evaluate.row_builders import Row
from anisoscope.integrations.hosted import Hosted
from anisoscope.record.metric_names import headlines
from anisoscope.store.files import Folder

try:
    from transformers import Trainer, TrainerCallback
except ImportError as error:
    raise AnisoscopeError('ScopeCallback needs transformers: pip install "anisoscope[train]"') from error


STATE_NAME = "anisoscope.safetensors"
_LOGGED = ("loss", "eval_loss", "learning_rate", "grad_norm")
_RAW = {"TensorBoardCallback": "tb_writer", "WandbCallback": "_wandb", "TrackioCallback": "_trackio"}
_RAW |= {"MLflowCallback": "_ml_flow", "DagsHubCallback": "_ml_flow"}
"""Where the reporters of transformers keep what they write to."""
_NOT_SETTINGS = ("output_dir", "logging_dir", "run_name", "resume_from_checkpoint", "local_rank", "deepspeed_plugin")


class ScopeCallback(TrainerCallback):
    """Observes a ``Trainer`` run; takes the options of ``Scope``, except those that the Trainer knows (the steps).

    Example::

        callback = ScopeCallback(rank=32)
        Trainer(model, args, train_dataset=data, callbacks=[callback]).train()
        callback.rows()

    ``session=SessionOptions(resumable=True)`` saves the scope with every checkpoint (as ``anisoscope.safetensors``), so
    that a training resumed from it goes on to the rows of an uninterrupted one, in the same ``store``. ``tokens(step)``
    may tell how many tokens a step trains on, ``documents(step)`` the documents of its sequences, as ``Scope.step``
    takes them.

    Every observation goes to what ``report_to`` names (TensorBoard, W&B, MLflow, Trackio) under the step that was
    observed; medians over layers go to ``log_history`` and to the other callbacks. With a ``store`` the loss, the
    learning rate and the norm of the gradient are rows of the run, and the ``TrainingArguments`` in its manifest.
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
        self._resumable = self._hosted.session.resumable
        self._trainer: Trainer | None = None
        self._step_of_trainer: Any = None

    @property
    def scope(self) -> Any:
        """The scope of the training under way, or of the last one."""
        return self._hosted.scope

    def rows(self) -> list[Row]:
        """All rows so far, one number a row; waits for judgements under way."""
        return self._hosted.rows()

    def on_train_begin(self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any) -> None:
        """The length of training is known now."""
        self._trainer, resumed_from = _trainer_above(inspect.currentframe())
        if self._trainer is not None:
            self._guard(self._trainer)
            handler = self._trainer.callback_handler
            # Before the reporters: what is left is logged before they end their runs. A new list: this one is in use.
            handler.callbacks = [self, *(each for each in handler.callbacks if each is not self)]

        def saved() -> bytes | None:
            folder = _checkpoint(args, state) if resumed_from is None else Path(resumed_from)
            found = folder / STATE_NAME
            return found.read_bytes() if self._resumable and state.global_step and found.exists() else None

        self._hosted.start(
            model,
            steps=state.max_steps,
            first_step=state.global_step,
            config=_settings(args),
            trackers=lambda: self._trackers(args, state, control),
            state=saved,
        )

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
        self._hosted.flush(wait=state.global_step >= state.max_steps)

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        """Keep what belongs beside the observations."""
        values = {name: logs[name] for name in _LOGGED if isinstance((logs or {}).get(name), int | float)}
        if values and state.is_world_process_zero:
            self._hosted.log(values)

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Put the scope beside the checkpoint, as the last file of it: whole, or not at all."""
        if self._resumable and state.is_world_process_zero:
            try:
                content = self._hosted.state()
                if content is not None:
                    Folder(_checkpoint(args, state)).write(STATE_NAME, content)
            except AnisoscopeError as error:  # the training goes on; from this checkpoint the scope cannot
                warnings.warn(str(error), ScopeWarning, stacklevel=2)

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Close the scope and leave the trainer as it was."""
        self._hosted.close()
        if self._trainer is not None and self._step_of_trainer is not None:
            del self._trainer.training_step
        self._trainer = self._step_of_trainer = None

    def _guard(self, trainer: Trainer) -> None:
        """No event tells of an exception in the training step, so the step itself is watched for one."""
        if self._step_of_trainer is not None:  # an earlier training of this trainer ended in an exception
            del trainer.training_step
        original = self._step_of_trainer = trainer.training_step

        def training_step(*args: Any, **kwargs: Any) -> Any:
            try:
                return original(*args, **kwargs)
            except BaseException:
                self._hosted.abandon()
                raise

        trainer.training_step = training_step

    def _trackers(self, args: Any, state: Any, control: Any) -> list[Any]:
        """What the reporters write to; the others hear of medians, at the step that was observed."""
        handler = None if self._trainer is None else self._trainer.callback_handler
        found: list[Any] = []
        others: list[Any] = []
        for callback in () if handler is None else handler.callbacks:
            name = next((kind.__name__ for kind in type(callback).__mro__ if kind.__name__ in _RAW), None)
            raw = None if name is None else getattr(callback, _RAW[name], None)
            if raw is not None:
                found.append(getattr(raw, "run", None) or raw if name == "WandbCallback" else raw)
            elif callback is not self:
                others.append(callback)

        def told(step: int, numbers: dict[str, float]) -> None:
            then = copy.copy(state)
            then.global_step = step
            few = headlines(numbers)
            state.log_history.append(few | {"step": step})
            for callback in others:
                is_reporter = type(callback).__module__.startswith("transformers.integrations")
                logs = dict(numbers if is_reporter else few)
                callback.on_log(args, then, copy.copy(control), logs=logs, model=handler.model if handler else None)

        return [*found, told]


def _checkpoint(args: Any, state: Any) -> Path:
    return Path(args.output_dir) / f"checkpoint-{state.global_step}"


def _settings(args: Any) -> dict[str, Any]:
    """The ``TrainingArguments``, without places and secrets."""
    given = args.to_sanitized_dict() if hasattr(args, "to_sanitized_dict") else {}
    return {name: value for name, value in given.items() if "token" not in name and name not in _NOT_SETTINGS}


def _trainer_above(frame: FrameType | None) -> tuple[Trainer | None, str | None]:
    """The trainer that is calling, and the checkpoint that it goes on from: events tell neither."""
    while frame is not None:
        owner, resumed_from = frame.f_locals.get("self"), frame.f_locals.get("resume_from_checkpoint")
        if isinstance(owner, Trainer):
            found = owner
            while frame is not None and frame.f_locals.get("self") is owner and not isinstance(resumed_from, str):
                frame = frame.f_back
                resumed_from = None if frame is None else frame.f_locals.get("resume_from_checkpoint")
            return found, resumed_from if isinstance(resumed_from, str) else None
        frame = frame.f_back
    return None, None
