"""Where observations are evaluated: on the GPU that trains, or on the host."""

from __future__ import annotations

import os
import weakref

import torch
from torch import nn

from anisoscope.errors import broken
from anisoscope.vocabulary import require

CHOICES = ("auto", "device", "host")
FEWEST_CORES = 4
_FREE = 0.1  # share of the GPU's memory that must be free for ``auto`` to evaluate there


class Where:
    """The choice of ``evaluate=``, settled when the first observation is to be evaluated and kept from then on.

    ``host`` moves statistics to the host and, where cores are spare, deals the sites out to processes of their own: the
    training goes on undisturbed. ``device`` leaves them on the GPU and works on them there, in a thread of the
    training's process and on a stream of its own: wide matrices take a small part of the time, but every kernel that
    the training launches then shares Python's lock with that thread. ``auto`` takes the host if cores are spare, and
    the device if not, where a tenth of its memory is free. Draws are the same in both places, so p-values are equal and
    values agree to rounding.
    """

    def __init__(self, evaluate: str, model: nn.Module) -> None:
        require("evaluate", evaluate, CHOICES)
        if evaluate == "device" and not torch.cuda.is_available():
            raise broken("evaluate='device' needs a GPU", "none on this machine", "use 'host' or 'auto'")
        self._evaluate, self._model = evaluate, weakref.ref(model)  # a scope that is dropped must not hold on to it
        self._device: torch.device | None = None
        self._settled = False

    @property
    def device(self) -> torch.device | None:
        """The GPU that evaluates; None for the host."""
        if not self._settled:
            self._device, self._settled = self._chosen(), True
        return self._device

    def _chosen(self) -> torch.device | None:
        if self._evaluate == "host":
            return None
        model = self._model()
        parameter = None if model is None else next(model.parameters(), None)
        if parameter is None or not parameter.is_cuda:
            if self._evaluate == "device":
                where = "no parameters" if parameter is None else str(parameter.device)
                raise broken("evaluate='device' needs a model on a GPU", where, "move the model first, or use 'host'")
            return None
        if self._evaluate == "device":
            return parameter.device
        if cores_are_spare():
            return None
        free, total = torch.cuda.mem_get_info(parameter.device)
        kept = torch.cuda.memory_reserved(parameter.device) - torch.cuda.memory_allocated(parameter.device)
        return parameter.device if free + kept >= _FREE * total else None


def cores_are_spare() -> bool:
    """Whether evaluation may take cores beside a training on a GPU."""
    return torch.cuda.is_initialized() and os.name == "posix" and cores() >= FEWEST_CORES


def cores() -> int:
    """Cores that this process may use: a scheduler often binds it to some of the machine's."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
