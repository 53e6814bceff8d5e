"""Independent jobs, one after the other in this process or many at a time on Ray, with the same results.

A job is a picklable call that returns something small; what is big it writes itself, to a path that every machine
sees. A job that fails is tried again, and what fails for good costs its own result only.
"""

from __future__ import annotations

import contextlib
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from anisoscope.errors import AnisoscopeError, BrokenRuleError, broken

NOT_BEGUN = "not begun"
_LONGEST = 300  # characters of a reason

Tell = Callable[[float, str], None]
_tell: ContextVar[Tell | None] = ContextVar("_tell", default=None)


@dataclass(frozen=True, slots=True)
class Task:
    """One job to do."""

    name: str  # unique, shown to people
    act: Callable[..., Any]  # of a module that workers can import
    arguments: tuple[Any, ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class JobOutcome:
    """What became of a task."""

    task: Task
    value: Any = None
    error: str | None = None  # one line, why it failed for good
    tries: int = 1  # 0 when it was never begun
    seconds: float = 0.0  # of the last try


@dataclass(frozen=True, slots=True)
class JobResources:
    """What jobs run on."""

    ray: str | None = None  # None: one after the other in this process; "local", "auto", or an address
    threads: int = 1  # of every job, so that a serial run and one on Ray give equal bits
    gpus: float = 0.0  # share of a GPU a job
    memory: int | None = None  # bytes a job
    retries: int = 1  # tries after the first

    def __post_init__(self) -> None:
        if self.threads < 1:
            raise broken("a job needs at least 1 thread", self.threads, "raise threads")
        if self.retries < 0:
            raise broken("retries must be 0 or more", self.retries, "use 0 to try every job once")
        if self.gpus < 0 or (self.gpus > 1 and self.gpus % 1):
            raise broken("gpus must be a share from 0 to 1, or a whole number", self.gpus, "change gpus")
        if self.memory is not None and self.memory < 1:
            raise broken("memory must be a number of bytes", self.memory, "leave it out for no limit")


@runtime_checkable
class JobListener(Protocol):
    """Who wants to know how jobs go: a display."""

    def begun(self, names: Sequence[str]) -> None:
        """All jobs there are, before the first one starts."""

    def started(self, name: str) -> None:
        """A try of a job starts."""

    def progressed(self, name: str, share: float, text: str) -> None:
        """A job said how far it is."""

    def failed_once(self, name: str, why: str) -> None:
        """A try failed, and the job is tried again."""

    def ended(self, outcome: JobOutcome) -> None:
        """A job is done, or failed for good; not called for jobs that were never begun."""


@dataclass(frozen=True, slots=True, eq=False)
class Attempt:
    """One try of a job."""

    value: Any = None
    why: str | None = None  # one line when it failed
    final: bool = False  # the same input would fail the same way
    seconds: float = 0.0


def run(
    tasks: Sequence[Task], means: JobResources, listener: JobListener, *, stop: Callable[[], bool] = lambda: False
) -> list[JobOutcome]:
    """Do all tasks; outcomes come in the order of ``tasks``.

    A job that raises is tried again ``means.retries`` times, except after an ``AnisoscopeError`` or a broken rule.
    Once ``stop()`` is true no job is begun any more; those under way end, the others are ``not begun``.
    """
    names = [task.name for task in tasks]
    twice = [name for name, count in Counter(names).items() if count > 1]
    if twice:
        raise broken("names of tasks must differ", ", ".join(twice), "rename one of each")
    do = _serial
    if means.ray is not None:
        from anisoscope.jobs.ray_pool import run_on_ray as do  # Ray is imported only where it is asked for
    listener.begun(names)
    if not tasks:
        return []
    ledger = Ledger(tasks, means.retries, listener)
    do(ledger, means, stop)
    return ledger.close()


@contextlib.contextmanager
def session(means: JobResources) -> Iterator[None]:
    """One Ray for several ``run``s inside, so that workers start once; without Ray nothing happens."""
    if means.ray is None:
        yield
        return
    from anisoscope.jobs.ray_pool import connected

    with connected(means):
        yield


def report(share: float, text: str = "") -> None:
    """Say from inside a job how far it is, from 0 to 1; elsewhere it does nothing, and it never fails a job."""
    tell = _tell.get()
    if tell is not None:
        with contextlib.suppress(Exception):
            tell(min(1.0, max(0.0, float(share))), str(text))


class Ledger:
    """What is left to do and what became of the rest, counted the same way wherever jobs run."""

    def __init__(self, tasks: Sequence[Task], retries: int, listener: JobListener) -> None:
        self.listener = listener
        self._tasks, self._retries = tuple(tasks), retries
        self._waiting = deque(self._tasks)
        self._failed: dict[str, str] = {}  # why the last try failed
        self._tries: Counter[str] = Counter()
        self._ended: dict[str, JobOutcome] = {}

    def __bool__(self) -> bool:
        """Whether a task waits to be begun."""
        return bool(self._waiting)

    def take(self) -> Task:
        """The next task to begin."""
        return self._waiting.popleft()

    def put_back(self, task: Task) -> None:
        """A task that was taken and not begun."""
        self._waiting.appendleft(task)

    def tried(self, task: Task, attempt: Attempt) -> None:
        """A try is over; after a failure the task may wait for its next one."""
        if attempt.why is None or attempt.final or self._tries[task.name] >= self._retries:
            self.end(task, attempt)
        else:
            self.failed_once(task, attempt.why)
            self._waiting.appendleft(task)

    def failed_once(self, task: Task, why: str) -> None:
        """A try failed, and there will be another one."""
        self._tries[task.name] += 1
        self._failed[task.name] = why
        self.listener.failed_once(task.name, why)

    def close(self) -> list[JobOutcome]:
        """Outcomes of all tasks; one that waited for another try has failed, the others were not begun."""
        for task in self._waiting:
            if task.name in self._failed:
                self._finish(JobOutcome(task, error=self._failed[task.name], tries=self._tries[task.name]))
        return [self._ended.get(t.name, JobOutcome(t, error=NOT_BEGUN, tries=0)) for t in self._tasks]

    def end(self, task: Task, attempt: Attempt) -> None:
        """Its last try is over."""
        self._tries[task.name] += 1
        tries = self._tries[task.name]
        self._finish(JobOutcome(task, value=attempt.value, error=attempt.why, tries=tries, seconds=attempt.seconds))

    def _finish(self, outcome: JobOutcome) -> None:
        self._ended[outcome.task.name] = outcome
        self.listener.ended(outcome)


def attempt(task: Task, tell: Tell, threads: int) -> Attempt:
    """Try a job once in this process; only a wish to stop the process passes through."""
    began = time.monotonic()
    token = _tell.set(tell)
    try:
        with fixed_threads(threads):
            value = task.act(*task.arguments)
    except (Exception, SystemExit) as error:  # a library that exits ends its job, not the study
        return failed(error, time.monotonic() - began)
    finally:
        _tell.reset(token)
    return Attempt(value, seconds=time.monotonic() - began)


def failed(error: BaseException, seconds: float) -> Attempt:
    """The try that ended with ``error``."""
    ours = isinstance(error, AnisoscopeError | BrokenRuleError)
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    text = lines[0] if lines else ""
    if not ours:  # ours are sentences; of others the type says half
        text = f"{type(error).__name__}: {text}" if text else type(error).__name__
    text = text or type(error).__name__
    return Attempt(why=text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…", final=ours, seconds=seconds)


def _serial(ledger: Ledger, means: JobResources, stop: Callable[[], bool]) -> None:
    while ledger and not stop():
        task = ledger.take()
        ledger.listener.started(task.name)

        def tell(share: float, text: str, name: str = task.name) -> None:
            ledger.listener.progressed(name, share, text)

        ledger.tried(task, attempt(task, tell, means.threads))


@contextlib.contextmanager
def fixed_threads(threads: int) -> Iterator[None]:
    """Sums are split by threads, so their number decides the last bits of torch's results and of BLAS's."""
    import scipy.linalg  # noqa: F401  # brings its own BLAS, which is limited below only once it is there
    import torch
    from threadpoolctl import threadpool_limits  # comes with scikit-learn

    before = torch.get_num_threads()
    with threadpool_limits(threads):
        torch.set_num_threads(threads)
        try:
            yield
        finally:
            torch.set_num_threads(before)
