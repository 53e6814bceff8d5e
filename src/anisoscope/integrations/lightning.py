"""The scope as a callback of Lightning."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from anisoscope.errors import AnisoscopeError
from anisoscope.integrations.hosted import Hosted
from anisoscope.observe.rows import Row


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

    Headline numbers go through the module's ``log_dict``, so every logger of the trainer shows them;
    ``anisoscope/step`` says which step they are of. ``model`` names the network inside the module where it is not the
    module itself.
    """

    def __init__(self, model: str | None = None, **options: Any) -> None:
        self._hosted, self._model = Hosted(options), model

    def rows(self) -> list[Row]:
        """All rows so far, one number a row; waits for judgements under way."""
        return self._hosted.rows()

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """The length of training is known now."""
        steps = trainer.estimated_stepping_batches
        watched = pl_module if self._model is None else pl_module.get_submodule(self._model)
        self._hosted.start(
            watched, steps=int(steps) if 0 < steps < float("inf") else None, first_step=trainer.global_step
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
        for numbers in self._hosted.news(wait=over):
            pl_module.log_dict(numbers, on_step=True, on_epoch=False, rank_zero_only=True)

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """Close the scope."""
        self._hosted.close()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """Hooks go."""
        self._hosted.abandon()
