"""Jobs on Ray: this machine's cores, or a cluster.

Ray schedules, carries results, and tries again what failed: a job that raised, and one whose process or machine was
lost. What jobs say on the way, tries that failed too, goes through one small actor that this process asks.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass
from pickle import PicklingError
from typing import Any

from anisoscope.errors import AnisoscopeError, broken
from anisoscope.jobs.job_pool import Attempt, JobResources, Ledger, Task, attempt, failed

# Read when Ray is imported. Under `uv run` Ray would pack the working directory (runs, weights) and send it around.
os.environ.setdefault("RAY_ENABLE_UV_RUN_RUNTIME_ENV", "0")

try:
    import ray
    from ray.exceptions import NodeDiedError, OutOfMemoryError, RayError, RayTaskError, WorkerCrashedError
except ImportError as error:
    raise AnisoscopeError('jobs on Ray need ray: pip install "anisoscope[ray]"') from error

_STORE = 200 * 2**20  # bytes; results are small
_EVERY = 0.2  # seconds between looks at what jobs say
_PATIENCE = 10.0  # seconds for an answer of a machine or of the actor
_RARELY = 0.1  # seconds between two reports of a job
_DIED = "its process died: killed, crashed, or out of memory"
_LOST = {
    OutOfMemoryError: "its machine ran out of memory, and Ray ended its process; give jobs more memory=",
    WorkerCrashedError: _DIED,
    NodeDiedError: "its machine was lost",
}


class _TryAgainError(Exception):
    """Raised for Ray in a worker: the try failed, and why was told."""


@dataclass(slots=True)
class _Flight:
    """A try that Ray has been asked for."""

    number: int
    task: Task
    began: float | None = None


class _Wire:
    """Lives in a process of its own, between jobs and whoever waits for them."""

    def __init__(self) -> None:
        self._begun: Counter[int] = Counter()
        self._failed: Counter[int] = Counter()
        self._tries: list[tuple[int, str | None]] = []  # in order: one begins, or failed for a reason
        self._news: dict[int, tuple[float, str]] = {}  # the last word of each job is enough
        self._open = True

    def begin(self, number: int) -> int:
        """Which try this is, from 1; 0 when none begins any more."""
        if not self._open:
            return 0
        if self._begun[number] > self._failed[number]:  # the try before died and could not say so
            self.fail(number, _DIED)
        self._begun[number] += 1
        self._tries.append((number, None))
        return self._begun[number]

    def fail(self, number: int, why: str) -> None:
        self._failed[number] += 1
        self._tries.append((number, why))

    def tell(self, number: int, share: float, text: str) -> None:
        self._news[number] = (share, text)

    def news(self) -> tuple[list[tuple[int, str | None]], dict[int, tuple[float, str]]]:
        tries, news = self._tries, self._news
        self._tries, self._news = [], {}
        return tries, news

    def close(self) -> list[int]:
        self._open = False
        return list(self._begun)


def run_on_ray(ledger: Ledger, means: JobResources, stop: Callable[[], bool]) -> None:
    """Do what the ledger holds on the Ray of ``means``."""
    with connected(means) as ours:
        lacking = _lacking(means)
        if lacking and ours:
            raise AnisoscopeError(f"a job asks for {lacking}, which this machine does not have; ask for less")
        pool = _Pool(ledger, means, lacking)
        try:
            pool.run(stop)
        except BaseException:
            pool.close()  # what has not begun never will, also where the cluster lives on
            raise


class _Pool:
    """Tries under way on a connected Ray."""

    def __init__(self, ledger: Ledger, means: JobResources, lacking: str) -> None:
        self._ledger, self._means, self._lacking = ledger, means, lacking
        self._flights: dict[Any, _Flight] = {}
        self._count = 0
        # Where beartype is on it gives every class a __sizeof__ that Ray, which wraps methods of actors, cannot wrap.
        wire = type("Wire", (_Wire,), {"__sizeof__": object.__sizeof__})
        self._wire: Any = ray.remote(num_cpus=0)(wire).remote()
        wanted: dict[str, Any] = {"num_cpus": means.threads, "num_gpus": means.gpus}
        if means.memory is not None:
            wanted["memory"] = means.memory
        again = {"max_retries": means.retries, "retry_exceptions": [_TryAgainError]}
        self._act: Any = ray.remote(**again, **wanted)(_on_worker)

    def run(self, stop: Callable[[], bool]) -> None:
        closed = False
        while self._flights or (self._ledger and not closed):
            if not closed and stop():
                closed = True
                self.close()
            if not closed:
                self._submit()
            if not self._flights:
                continue
            ready, _ = ray.wait(list(self._flights), num_returns=1, timeout=_EVERY)
            self._listen()
            for ref in ready:
                self._land(ref)

    def close(self) -> None:
        """Nothing begins any more: whoever has not begun by now will be refused, so cancelling harms no job."""
        try:
            begun: Any = ray.get(self._wire.close.remote(), timeout=_PATIENCE)
        except RayError:
            return  # nobody knows who has begun, so all may end
        for ref, flight in list(self._flights.items())[::-1]:
            if flight.number not in begun:
                ray.cancel(ref)
                self._ledger.put_back(flight.task)
                del self._flights[ref]

    def _submit(self) -> None:
        """Twice what runs at a time: workers never wait, and a cluster that can grow sees that it should."""
        if not self._ledger:
            return
        window = 2 * _slots(self._means)
        while self._ledger and len(self._flights) < window:
            task, self._count = self._ledger.take(), self._count + 1
            try:
                ref = self._act.options(name=task.name).remote(task, self._means, self._wire, self._count)
            except (TypeError, PicklingError) as error:
                self._ledger.end(task, Attempt(why=failed(error, 0.0).why))
                continue
            self._flights[ref] = _Flight(self._count, task)
            if self._lacking:
                self._ledger.listener.progressed(task.name, 0.0, f"waits for a machine with {self._lacking}")

    def _listen(self) -> None:
        """Hear what jobs said; without an answer they go on unheard."""
        try:
            tries, news = ray.get(self._wire.news.remote(), timeout=_PATIENCE)
        except RayError:
            return
        by_number = {flight.number: flight for flight in self._flights.values()}
        for number, why in tries:
            if number in by_number and why is None:
                self._begin(by_number[number])
            elif number in by_number:
                self._ledger.failed_once(by_number[number].task, str(why))
        for number, (share, text) in news.items():
            if number in by_number:  # else it came after the end of its job
                self._ledger.listener.progressed(by_number[number].task.name, share, text)

    def _begin(self, flight: _Flight) -> None:
        flight.began = time.monotonic()
        self._ledger.listener.started(flight.task.name)

    def _land(self, ref: Any) -> None:
        flight = self._flights[ref]
        try:
            result: Attempt | None = ray.get(ref)  # pyright: ignore[reportAssignmentType]
        except Exception as error:
            result = _explained(error, time.monotonic() - (flight.began or time.monotonic()))
        del self._flights[ref]
        if result is None:
            self._ledger.put_back(flight.task)
            return
        if flight.began is None:
            self._begin(flight)
        self._ledger.end(flight.task, result)


def _on_worker(task: Task, means: JobResources, wire: Any, number: int) -> Attempt | None:
    """One try in a process of Ray; None when it came too late to begin."""
    os.environ["OMP_NUM_THREADS"] = str(means.threads)  # for libraries that are loaded later
    last, tries = 0.0, means.retries + 1

    def asked(answer: Any) -> Any:
        """Not ray.get: Ray would lend this job's cores to another one while it waits."""
        return answer.future().result(timeout=_PATIENCE)

    this = tries  # without an answer jobs go on, and are tried once
    with contextlib.suppress(Exception):
        this = asked(wire.begin.remote(number))
    if this == 0:
        return None
    if this > tries:  # Ray itself does not count processes that it ended for want of memory
        return Attempt(why=_LOST[OutOfMemoryError], final=True)

    def tell(share: float, text: str) -> None:
        nonlocal last
        if time.monotonic() - last >= _RARELY or share == 1.0:
            last = time.monotonic()
            wire.tell.remote(number, share, text)

    result = attempt(task, tell, means.threads)
    if result.why is not None and not result.final and this < tries:
        with contextlib.suppress(Exception):  # the next try tells that this one died
            asked(wire.fail.remote(number, result.why))
        raise _TryAgainError(result.why)
    return result


def _explained(error: Exception, seconds: float) -> Attempt:
    """Why Ray has no result."""
    for kind, why in _LOST.items():
        if isinstance(error, kind):
            return Attempt(why=why, seconds=seconds)
    cause = error.cause if isinstance(error, RayTaskError) and error.cause is not None else error
    return failed(cause, seconds)


_ours: ContextVar[bool] = ContextVar("_ours", default=False)  # whether the Ray that is connected was started here


@contextlib.contextmanager
def connected(means: JobResources) -> Iterator[bool]:
    """Ray as asked for; whether it was started here, and so ends here. One that was there is left as it was."""
    where = str(means.ray)
    if ray.is_initialized():
        there = ray.get_runtime_context().gcs_address
        if where not in ("local", "auto", there):
            raise AnisoscopeError(
                f"this process is connected to Ray at {there} and cannot go to {where}; "
                'call ray.shutdown() first, or use "auto"'
            )
        yield _ours.get()
        return
    address = os.environ.get("RAY_ADDRESS", "auto") if where == "auto" else where  # as Ray itself reads "auto"
    if address not in ("local", "auto"):
        _must_answer(address)
    options: dict[str, Any] = {"address": where, "log_to_driver": False, "logging_level": logging.ERROR}
    if where == "local":
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # nothing is sent anywhere that nobody asked for
        cores = max(os.cpu_count() or 1, means.threads)
        options |= {"num_cpus": cores, "include_dashboard": False, "object_store_memory": _STORE}
    try:
        ray.init(**options)
    except Exception as error:
        raise AnisoscopeError(f"no Ray at {where}: {failed(error, 0.0).why}; {_remedy(where, error)}") from error
    token = _ours.set(where == "local")
    try:
        yield where == "local"
    finally:
        _ours.reset(token)
        ray.shutdown()


def _remedy(where: str, error: BaseException) -> str:
    """The next step after Ray could not be started or reached."""
    if where == "local":
        return "its logs are below /tmp/ray; without Ray jobs run one after the other"
    reasons: list[str] = []
    reason: BaseException | None = error
    while reason is not None:
        reasons.append(str(reason))
        reason = reason.__cause__ or reason.__context__
    if any("AuthToken" in text or "AuthenticationError" in text for text in reasons):
        return "the cluster asks for a token: give this machine the same one, and set RAY_AUTH_MODE=token"
    if where.startswith("ray://"):
        return 'ray:// needs pip install "ray[client]", here and there; HOST:PORT of the head works without'
    return 'start one with "ray start --head", or use "local"'


def _must_answer(address: str) -> None:
    """Ray itself would try for minutes."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not host or not port.isdecimal():
        rule = 'where Ray is must be "local", "auto", HOST:PORT or ray://HOST:PORT'
        raise broken(rule, address, "correct the address")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=_PATIENCE).close()
    except (OSError, OverflowError) as error:
        raise AnisoscopeError(
            f"no Ray answers at {address}: {error}; check the address and that the port is open, "
            'start one with "ray start --head", or use "local"'
        ) from error


def _wanted(means: JobResources) -> dict[str, float]:
    return {"CPU": means.threads, "GPU": means.gpus, "memory": means.memory or 0}


def _slots(means: JobResources) -> int:
    """How many jobs run at a time."""
    have = ray.cluster_resources()
    return max(1, min(int(have.get(name, 0) // much) for name, much in _wanted(means).items() if much))


def _lacking(means: JobResources) -> str:
    """What a job needs that no machine has now; empty when there is one."""
    wanted = {name: much for name, much in _wanted(means).items() if much}
    machines = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    if any(all(machine.get(name, 0) >= much for name, much in wanted.items()) for machine in machines):
        return ""
    return ", ".join(f"{much:g} {name}" for name, much in wanted.items())
