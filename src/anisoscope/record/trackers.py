"""Experiment trackers: numbers at the step that was observed, whenever they are judged, and the report as an artefact.

A tracker is known by what it can do, so that none of these libraries is needed here.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from anisoscope.errors import broken
from anisoscope.evaluate.row_builders import Row
from anisoscope.record.metric_names import STEP, Detail, metrics
from anisoscope.record.notices import Notices

_KINDS = "a SummaryWriter, a W&B or Trackio run, mlflow, an Accelerator, a Lightning logger, or a function"


@runtime_checkable
class Tracker(Protocol):
    """Where numbers go."""

    def write(self, step: int, numbers: dict[str, float]) -> None:
        """Take the numbers of one observation."""

    def artefact(self, path: Path) -> None:
        """Take a file."""


class TensorBoard:
    """A ``SummaryWriter``; it keeps no files, so it is told where the report is."""

    def __init__(self, writer: Any) -> None:
        self._writer = writer

    def write(self, step: int, numbers: dict[str, float]) -> None:
        """Scalars at the step that was observed."""
        for name, value in numbers.items():
            self._writer.add_scalar(name, value, step)
        self._writer.flush()

    def artefact(self, path: Path) -> None:
        """Where the file is, as text."""
        self._writer.add_text("anisoscope/report", str(path), 0)
        self._writer.flush()


class WandB:
    """A run of W&B, or the module with its current one; its own step only grows, so a metric of ours is the axis."""

    def __init__(self, run: Any) -> None:
        self._run, self._defined = run, False

    def write(self, step: int, numbers: dict[str, float]) -> None:
        """A row of its own, with ``anisoscope/step`` as the axis of all that is ours."""
        if not self._defined:
            self._run.define_metric(STEP)
            self._run.define_metric("anisoscope/*", step_metric=STEP)
            self._defined = True
        self._run.log(numbers | {STEP: step})

    def artefact(self, path: Path) -> None:
        """An artefact of type ``report``."""
        import wandb

        found = wandb.Artifact(f"anisoscope-{path.parent.name}", type="report")
        found.add_file(str(path))
        self._run.log_artifact(found)


class Trackio:
    """A run of Trackio, or the module with its current one."""

    def __init__(self, run: Any) -> None:
        self._run = run

    def write(self, step: int, numbers: dict[str, float]) -> None:
        """At the step that was observed."""
        self._run.log(numbers, step=step)

    def artefact(self, path: Path) -> None:
        """An artefact of type ``report``; of the project, where this Trackio knows no artefacts of runs."""
        keep, save = (getattr(self._run, name, None) for name in ("log_artifact", "save"))
        if keep is not None:
            keep(str(path), name=f"anisoscope-{path.parent.name}", type="report")
        elif save is not None:
            save(str(path))
        else:
            raise TypeError("this Trackio keeps no files")


class MLflow:
    """The module ``mlflow`` with its active run."""

    def __init__(self, module: Any) -> None:
        self._module = module

    def write(self, step: int, numbers: dict[str, float]) -> None:
        """At the step that was observed."""
        self._module.log_metrics(numbers, step=step)

    def artefact(self, path: Path) -> None:
        """A file of the run."""
        self._module.log_artifact(str(path))


class Logger:
    """A logger of Lightning, which all have one method."""

    def __init__(self, logger: Any) -> None:
        self._logger = logger

    def write(self, step: int, numbers: dict[str, float]) -> None:
        """At the step that was observed."""
        self._logger.log_metrics(numbers, step=step)
        self._logger.save()

    def artefact(self, path: Path) -> None:
        """A file of the run, where the logger has a client that keeps files."""
        client: Any = getattr(self._logger, "experiment", None)
        run = getattr(self._logger, "run_id", None)
        if run is None or not hasattr(client, "log_artifact"):
            raise TypeError(f"a {type(self._logger).__name__} keeps no files")
        client.log_artifact(run, str(path))


class Function:
    """Any function of a step and its numbers."""

    def __init__(self, function: Callable[[int, dict[str, float]], object]) -> None:
        self._function = function

    def write(self, step: int, numbers: dict[str, float]) -> None:
        """Call it."""
        self._function(step, numbers)

    def artefact(self, path: Path) -> None:
        """It takes none."""


def trackers_of(given: Iterable[Any]) -> Iterator[Tracker]:
    """What was given, as trackers; an ``Accelerator`` stands for all of its own."""
    for one in given:
        inner = getattr(one, "trackers", None)
        if isinstance(inner, list | tuple):
            yield from trackers_of(inner)
        elif (raw := _raw(one)) is not None:
            yield raw
        else:
            raise broken(f"a tracker must be {_KINDS}", type(one).__name__, "wrap it in a function of step and numbers")


def _raw(one: Any) -> Tracker | None:
    kind = type(one)
    library = (one.__name__ if kind.__name__ == "module" else kind.__module__).split(".")[0]
    if callable(getattr(one, "add_scalar", None)):
        return TensorBoard(one)
    if library == "wandb" and hasattr(one, "define_metric"):
        return WandB(one)
    if library == "trackio" and hasattr(one, "log"):
        return Trackio(one)
    if library == "mlflow" and hasattr(one, "log_metrics"):
        return MLflow(one)
    if library == "mlflow":  # accelerate hands out the active run, which has no methods
        mlflow = import_module("mlflow")
        return MLflow(mlflow)
    if callable(getattr(one, "log_metrics", None)):
        found = _raw(one.experiment) if kind.__name__ in ("WandbLogger", "TensorBoardLogger") else None
        return found or Logger(one)
    if kind.__module__.startswith("accelerate") and hasattr(one, "tracker"):
        return _raw(one.tracker)
    return Function(one) if callable(one) else None


class Publisher:
    """Numbers on their way: made where observations are judged, written by the thread that trains.

    What goes wrong with a tracker is said once, and that tracker is left alone from then on.
    """

    def __init__(self, detail: Detail, notices: Notices) -> None:
        self._detail: Detail = detail
        self._notices = notices
        self._waiting: deque[tuple[int, dict[str, float]]] = deque()
        self._given: Callable[[], Iterable[Any]] = tuple
        self._made: list[Tracker] | None = None
        self._broken: list[Tracker] = []
        self._lock = threading.Lock()

    def to(self, given: Callable[[], Iterable[Any]]) -> None:
        """Where numbers go, asked for when there are the first."""
        self._given, self._made = given, None

    def take(self, step: int, rows: list[Row]) -> None:
        """Rows of an observation, in any thread."""
        found = metrics(rows, self._detail)
        if found:
            with self._lock:
                self._waiting.append((step, found))

    def flush(self, most: int | None = None) -> None:
        """Write what waits, ``most`` observations of it.

        One between two steps: W&B counts every row as a step of its own, and whoever names steps to it must not fall
        behind that count.
        """
        while most is None or most > 0:
            with self._lock:
                if not self._waiting:
                    return
                step, numbers = self._waiting.popleft()
            self._each("numbers", lambda tracker, s=step, n=numbers: tracker.write(s, n))
            most = None if most is None else most - 1

    def artefact(self, path: str | os.PathLike[str]) -> None:
        """A file for every tracker that keeps files."""
        self._each("the report", lambda tracker: tracker.artefact(Path(path)))

    def _each(self, what: str, act: Callable[[Tracker], None]) -> None:
        if self._made is None:
            try:
                self._made = list(trackers_of(self._given()))
            except Exception as error:
                self._made = []
                self._notices.warn(f"nothing is logged to trackers: {error}")
        for tracker in self._made:
            if tracker in self._broken:
                continue
            try:
                act(tracker)
            except Exception as error:
                self._broken.append(tracker)
                name = type(tracker).__name__
                self._notices.warn(f"{what} could not be logged to {name}: {type(error).__name__}: {error}")
