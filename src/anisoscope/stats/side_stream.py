"""Work that the training need not wait for: on a GPU it is queued on a stream beside the training's.

The many small kernels of an accumulated step then run in the gaps of the training's large ones. Nothing here waits for
the device; on a CPU everything happens where it stands.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor


class SideStream:
    """A stream of our own, made when first needed."""

    def __init__(self) -> None:
        self._stream: torch.cuda.Stream | None = None

    @contextmanager
    def reading(self, *tensors: Tensor | None) -> Iterator[None]:
        """Queue what follows beside the training, after all that it has queued so far; ``tensors`` are its own."""
        on_device = [tensor for tensor in tensors if tensor is not None and tensor.is_cuda]
        if not on_device:
            yield
            return
        if self._stream is None:
            self._stream = torch.cuda.Stream(on_device[0].device)
        self._stream.wait_stream(torch.cuda.current_stream(on_device[0].device))
        for tensor in on_device:
            tensor.record_stream(self._stream)  # its memory is not given away before we have read it
        with torch.cuda.stream(self._stream):
            yield

    def mark(self) -> torch.cuda.Event | None:
        """The end of all that was queued here so far."""
        if self._stream is None:
            return None
        event = torch.cuda.Event()
        event.record(self._stream)
        return event

    def join(self, *tensors: Tensor) -> None:
        """Let the training's stream go on only after what was queued here; it then reads our ``tensors``."""
        if self._stream is None:
            return
        current = torch.cuda.current_stream(self._stream.device)
        current.wait_stream(self._stream)
        for tensor in tensors:
            tensor.record_stream(current)
