"""Judging off the training path: threads that take observations one by one, in order.

At most ``pending`` observations wait; after that the training waits for the thread, so that nothing is lost and two
runs give the same rows. Statistics on a GPU stay there and are judged on a stream of their own, or are moved to the
host first (``placement``); those on the GPU take at most a tenth of its memory (or one observation). On the host each
site is judged on one core, so that numbers do not depend on how many there are; where cores are spare, in a process of
its own (``evaluate.remote.auto``).
"""

from __future__ import annotations

import atexit
import contextlib
import os
import queue
import threading
import time
import traceback
import weakref
from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from anisoscope.observe.statistics import Observation

_NICE = 10
_PATIENCE = 5.0  # seconds to wait for a thread that has nothing left to do
_AT_EXIT = 60.0  # and for judgements that nobody asked for any more


def _modest() -> None:
    torch.set_grad_enabled(False)
    torch.set_num_threads(1)  # of this thread alone
    if not torch.cuda.is_initialized():
        return  # the cores are shared: one that always gives way would come to nothing before the training ends
    with contextlib.suppress(AttributeError, OSError):  # the training goes first, where threads have ranks of their own
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICE)


class Ferry:
    """Copies tensors from a GPU to the host through a pinned buffer, on a stream of its own.

    A plain copy would hold up every kernel that the training launches meanwhile.
    """

    def __init__(self, size: int = 1 << 26) -> None:
        self.stream = torch.cuda.Stream()
        self._buffer = torch.empty(size, dtype=torch.uint8, device="cpu", pin_memory=True)

    def to_host(self, tensor: Tensor) -> Tensor:
        """The same numbers in ordinary memory."""
        with torch.cuda.stream(self.stream):
            source = tensor.contiguous().reshape(-1).view(torch.uint8)
            target = torch.empty(source.shape, dtype=torch.uint8, device="cpu")
            for start in range(0, source.numel(), self._buffer.numel()):
                part = source[start : start + self._buffer.numel()]
                staged = self._buffer[: part.numel()]
                staged.copy_(part, non_blocking=True)
                self.stream.synchronize()
                target[start : start + part.numel()] = staged
        return target.view(tensor.dtype).reshape(tensor.shape)


class Worker:
    """Judges every observation submitted; those on a GPU stay there if ``on_device`` says so.

    ``begin`` starts on an observation and returns what ends it. Both are called in order, each in a thread of its own,
    and one observation may be begun while the one before is not ended.
    """

    def __init__(
        self,
        begin: Callable[[Observation], Callable[[], None]],
        *,
        pending: int = 8,
        on_device: Callable[[], bool] = lambda: False,
    ) -> None:
        self._begin, self._stays = begin, on_device
        self._under_way: queue.Queue[tuple[Callable[[], None], Observation, torch.cuda.Event | None] | None] = (
            queue.Queue(1)
        )
        self._moving: queue.Queue[tuple[Observation, torch.cuda.Event] | None] = queue.Queue()
        self._waiting: queue.Queue[tuple[Observation, torch.cuda.Event | None] | None] = queue.Queue(max(1, pending))
        self._threads: list[threading.Thread] = []
        self._left: list[int] = []
        self._on_device = 0  # bytes that wait to be moved, or judged where they are
        self._lock = threading.Condition()
        self._process = os.getpid()
        self._over: Callable[[], None] = lambda: None
        # A thread that is still at work when the interpreter goes would take the whole program down with it.
        atexit.register(_end_in_peace, weakref.ref(self))

    @property
    def busy(self) -> bool:
        """Whether anything is waiting or under way."""
        return bool(self._left)

    @property
    def waiting(self) -> int:
        """Observations that are waiting or under way."""
        return len(self._left)

    @property
    def forked(self) -> bool:
        """Whether this process is a child of the one that trains: it has a copy of everything but the threads."""
        return os.getpid() != self._process

    def abandon(self, over: Callable[[], None]) -> None:
        """Let the threads end by themselves, and then do ``over``; does not wait."""
        if self._threads:
            self._over = over
            self._moving.put(None)
        else:
            over()

    def submit(self, observed: Observation) -> None:
        """Hand over an observation; waits only if too many are waiting already."""
        if not self._threads:
            self._threads = [
                threading.Thread(target=self._move, name="anisoscope-move", daemon=True),
                threading.Thread(target=self._work, name="anisoscope-lead", daemon=True),
                threading.Thread(target=self._finish, name="anisoscope-end", daemon=True),
            ]
            for thread in self._threads:
                thread.start()
        event, size, room, stays = None, 0, 0, False
        if observed.on_cuda:
            stays = self._stays()
            event = torch.cuda.Event()
            event.record()
            size, room = observed.bytes, torch.cuda.get_device_properties().total_memory // 10
        with self._lock:
            self._lock.wait_for(lambda: self._on_device == 0 or self._on_device + size <= room)
            self._on_device += size
            self._left.append(observed.step)
        if event is None or stays:
            self._waiting.put((observed, event))  # in order: a training is on one device
        else:
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
            for thread in self._threads:
                thread.join(_PATIENCE)
            self._threads = []

    def _move(self) -> None:
        ferry: Ferry | None = None
        while (item := self._moving.get()) is not None:
            observed, event = item
            size = observed.bytes
            ferry = ferry or Ferry()
            ferry.stream.wait_event(event)
            began = time.perf_counter()
            observed = observed.copied(ferry.to_host)
            observed = replace(observed, cost=replace(observed.cost, moved=time.perf_counter() - began))
            with self._lock:
                self._on_device -= size
                self._lock.notify_all()
            self._waiting.put((observed, None))
            del observed, item
        self._waiting.put(None)

    def _work(self) -> None:
        while (item := self._waiting.get()) is not None:
            observed, event = item
            try:
                finish = self._begin(observed)
            except BaseException:  # a judge records what goes wrong; if even that fails, the training must not wait
                traceback.print_exc()
                finish = _nothing
            self._under_way.put((finish, observed, event))
            del finish, observed, item
        self._under_way.put(None)

    def _finish(self) -> None:
        _modest()
        stream: torch.cuda.Stream | None = None
        while (item := self._under_way.get()) is not None:
            finish, observed, event = item
            size = 0 if event is None else observed.bytes
            if event is not None:
                stream = stream or torch.cuda.Stream()
                stream.wait_event(event)
            try:
                with contextlib.nullcontext() if event is None else torch.cuda.stream(stream):
                    finish()
            except BaseException:
                traceback.print_exc()
            if stream is not None:
                stream.synchronize()  # the training may be given this memory as soon as it is let go
            tensors = observed.tensors()
            del finish, observed, item
            _let_go(tensors)
            with self._lock:
                self._on_device -= size
                self._left.pop(0)
                self._lock.notify_all()
        self._over()


def _nothing() -> None:
    """What is left to do of an observation that could not be begun."""


def _let_go(tensors: list[Tensor]) -> None:
    """Free memory piece by piece: gigabytes at once would hold Python's global lock, and with it the training."""
    while tensors:
        tensors.pop()
        time.sleep(0)


def _end_in_peace(worker: weakref.ref[Worker]) -> None:
    found = worker()
    if found is not None and not found.forked:
        found.drain(_AT_EXIT)
        found.stop()
