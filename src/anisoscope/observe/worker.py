"""Judging off the training path: a thread that takes observations one by one, in order.

At most ``pending`` observations wait; after that the training waits for the thread, so that nothing is lost and two
runs give the same rows. On a GPU the statistics are moved to the host first, on a stream of their own, so that waiting
observations take no memory there.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable

import torch

from anisoscope.observe.statistics import Observed


class Worker:
    """Runs ``judge`` on every observation submitted, and keeps the first error."""

    def __init__(self, judge: Callable[[Observed], None], *, pending: int = 8) -> None:
        self._judge = judge
        self._moving: queue.Queue[tuple[Observed, torch.cuda.Event | None] | None] = queue.Queue(maxsize=2)
        self._waiting: queue.Queue[Observed | None] = queue.Queue(maxsize=max(1, pending))
        self._threads: list[threading.Thread] = []
        self._left: list[int] = []
        self._lock = threading.Condition()

    @property
    def busy(self) -> bool:
        """Whether anything is waiting or under way."""
        return bool(self._left)

    def submit(self, observed: Observed) -> None:
        """Hand over an observation; waits only if too many are waiting already."""
        if not self._threads:
            self._threads = [
                threading.Thread(target=self._move, name="anisoscope-move", daemon=True),
                threading.Thread(target=self._work, name="anisoscope-judge", daemon=True),
            ]
            for thread in self._threads:
                thread.start()
        with self._lock:
            self._left.append(observed.step)
        event = None
        if observed.on_cuda:
            event = torch.cuda.Event()
            event.record()
        self._moving.put((observed, event))

    def drain(self, timeout: float | None = None) -> list[int]:
        """Wait until all is judged; returns the steps that were not within ``timeout`` seconds."""
        until = None if timeout is None else time.monotonic() + timeout
        with self._lock:
            while self._left:
                left = None if until is None else until - time.monotonic()
                if left is not None and left <= 0:
                    break
                self._lock.wait(left)
            return list(self._left)

    def stop(self) -> None:
        """Let the threads go once they have finished what they hold."""
        if self._threads:
            self._moving.put(None)
            self._threads = []

    def _move(self) -> None:
        stream: torch.cuda.Stream | None = None
        while (item := self._moving.get()) is not None:
            observed, event = item
            try:
                if event is not None:
                    stream = stream or torch.cuda.Stream()
                    with torch.cuda.stream(stream):
                        stream.wait_event(event)
                        observed = observed.to("cpu")
            except Exception:  # no memory on the host: it is judged from where it is
                event = None
            self._waiting.put(observed)
            del observed, item
        self._waiting.put(None)

    def _work(self) -> None:
        while (observed := self._waiting.get()) is not None:
            with torch.no_grad():
                self._judge(observed)
            del observed
            with self._lock:
                self._left.pop(0)
                self._lock.notify_all()
