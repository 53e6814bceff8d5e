"""What an observation cost."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Cost:
    """Seconds of one observation.

    ``watched``: in the training's own thread, extra passes under other labels included (on a GPU the time to launch the
    work, not to do it); ``moved``: until the statistics are on the host, beside the training, waiting for the GPU to
    make them included; ``evaluated``: to be judged.
    """

    watched: float = 0.0
    moved: float = 0.0
    evaluated: float = 0.0
