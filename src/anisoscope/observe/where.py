"""Where observations are evaluated: on the GPU that trains, or on the host."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from anisoscope.capture.sites import Sites
from anisoscope.errors import broken

CHOICES = ("auto", "device", "host")
WIDE = 512  # from this width on ``auto`` evaluates on the device
_FREE = 0.1  # share of its memory that must be free for that


class Where:
    """The choice of ``evaluate=``, settled when the first observation is to be evaluated and kept from then on.

    ``device`` leaves statistics on the GPU and works on them there, in a thread of the training's process and on a
    stream of its own: wide matrices take a hundredth of the time, but the training shares Python's lock with the
    thread. ``host`` moves them to the host and, where cores are spare, deals the sites out to processes of their own:
    the training goes on undisturbed. ``auto`` takes the device for wide models, if a tenth of its memory is free, and
    the host for others: on an H200 with 16 cores the host was faster at a width of 256, the device at 768. Draws are
    the same in both places, so p-values are equal and values agree to rounding.
    """

    def __init__(self, evaluate: str, model: nn.Module, sites: Sites) -> None:
        if evaluate not in CHOICES:
            raise broken(f"evaluate must be one of {' '.join(CHOICES)}", repr(evaluate), "use auto")
        if evaluate == "device" and not torch.cuda.is_available():
            raise broken("evaluate='device' needs a GPU", "none on this machine", "use 'host' or 'auto'")
        self._evaluate, self._model, self._width = evaluate, model, _width(sites)
        self._device: torch.device | None = None
        self._settled = False

    @property
    def device(self) -> torch.device | None:
        """The GPU that evaluates; None for the host."""
        if not self._settled:
            self._device, self._settled = self._chosen(), True
            self._model = nn.Identity()  # not held on to
        return self._device

    def _chosen(self) -> torch.device | None:
        if self._evaluate == "host":
            return None
        parameter = next(self._model.parameters(), None)
        if parameter is None or not parameter.is_cuda:
            if self._evaluate == "device":
                where = "no parameters" if parameter is None else str(parameter.device)
                raise broken("evaluate='device' needs a model on a GPU", where, "move the model first, or use 'host'")
            return None
        if self._evaluate == "device":
            return parameter.device
        if self._width < WIDE:
            return None
        free, total = torch.cuda.mem_get_info(parameter.device)
        kept = torch.cuda.memory_reserved(parameter.device) - torch.cuda.memory_allocated(parameter.device)
        return parameter.device if free + kept >= _FREE * total else None


def _width(sites: Sites) -> int:
    """Of the residual stream, as the embedding or the first map tells; 0 where neither does."""
    for site in (sites.embedding, *sites.weights):
        weight = None if site is None else getattr(site.module, "weight", None)
        if isinstance(weight, Tensor) and weight.ndim == 2:
            return weight.shape[1] if site is sites.embedding else min(weight.shape)
    return 0
