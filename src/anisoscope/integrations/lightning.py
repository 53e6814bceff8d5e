"""The scope as a callback of Lightning."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any

import torch

from anisoscope.errors import AnisoscopeError
from anisoscope.evaluate.row_builders import Row
from anisoscope.integrations.hosted import Hosted
from anisoscope.record.metric_names import headlines


def _callback_class() -> Any:
    """Lightning is published under two names; a trainer takes callbacks of its own."""
    for package in ("lightning.pytorch", "pytorch_lightning"):
        try:
            return import_module(f"{package}.callbacks").Callback
        except ImportError:
            continue
    raise AnisoscopeError('ScopeCallback needs Lightning: pip install "anisoscope[lightning]"')


class ScopeCallback(_callback_class()):
    """Observes a Lightning run; takes the options of ``Scope``, except those that the Trainer knows (the steps).

    Example::

        callback = ScopeCallback(rank=32)
        lightning.Trainer(callbacks=[callback]).fit(module, loader)
        callback.rows()

    Every observation goes to every logger of the trainer under the step that was observed, whatever
    ``log_every_n_steps`` is; medians over layers are in ``trainer.callback_metrics`` too.
    ``session=SessionOptions(resumable=True)`` puts the scope into every checkpoint, so that ``fit(ckpt_path=…)`` goes
    on to the rows of an uninterrupted training. ``model`` names the network inside the module where it is not the
    module itself.
    """

    def __init__(self, model: str | None = None, **options: Any) -> None:
        self._hosted, self._model = Hosted(options), model
        self._state: bytes | None = None

    @property
    def scope(self) -> Any:
        """The scope of the training under way, or of the last one."""
        return self._hosted.scope

    def rows(self) -> list[Row]:
        """All rows so far, one number a row; waits for judgements under way."""
        return self._hosted.rows()

    def state_dict(self) -> dict[str, Any]:
        """For a checkpoint: the scope as one tensor of bytes."""
        state = self._hosted.state() if self._hosted.session.resumable else None
        return {} if state is None else {"scope": torch.frombuffer(bytearray(state), dtype=torch.uint8)}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """From a checkpoint: the scope itself is made when the training starts."""
        found = state_dict.get("scope")
        self._state = None if found is None else found.cpu().numpy().tobytes()

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """The length of training is known now."""
        steps = trainer.estimated_stepping_batches
        watched = pl_module if self._model is None else pl_module.get_submodule(self._model)
        state, self._state = self._state, None

        def trackers() -> list[Any]:
            return [*trainer.loggers, lambda step, numbers: _for_callbacks(trainer, numbers)]

        self._hosted.start(
            watched,
            steps=int(steps) if 0 < steps < float("inf") else None,
            first_step=trainer.global_step,
            config=_settings(trainer, pl_module),
            trackers=trackers,
            state=lambda: state,
        )

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        """The first micro-batch of a step opens it; the others find it open."""
        self._hosted.begin()

    def on_before_optimizer_step(self, trainer: Any, pl_module: Any, optimizer: Any) -> None:
        """All micro-batches are through."""
        self._hosted.end()

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Log what has been judged; at the last step wait for the rest, while loggers still listen."""
        over = (
            0 <= trainer.max_steps <= trainer.global_step or trainer.global_step >= trainer.estimated_stepping_batches
        )
        loss = outputs.get("loss") if isinstance(outputs, Mapping) else outputs
        if isinstance(loss, torch.Tensor) and loss.numel() == 1:
            self._hosted.log({"loss": loss})
        self._hosted.flush(wait=over)

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """Close the scope."""
        self._hosted.close()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """Hooks go, and the run is left so that it can be resumed."""
        self._hosted.close(interrupted=True)


def _for_callbacks(trainer: Any, numbers: dict[str, float]) -> None:
    """Medians where checkpoints and early stopping look."""
    trainer.callback_metrics.update({name: torch.tensor(value) for name, value in headlines(numbers).items()})


def _settings(trainer: Any, module: Any) -> dict[str, Any]:
    """What the training was set to: the module's hyper-parameters, and those of the trainer that change it."""
    names = ("max_steps", "max_epochs", "accumulate_grad_batches", "gradient_clip_val", "precision", "world_size")
    own = getattr(module, "hparams", None)
    given = {str(key): value for key, value in dict(own or {}).items()}
    return given | {name: getattr(trainer, name, None) for name in names}
