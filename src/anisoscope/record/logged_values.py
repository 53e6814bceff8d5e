"""Values that the training itself knows, such as its loss, as rows beside the observations."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from typing import Any

from anisoscope.errors import broken
from anisoscope.evaluate.row_builders import Row, row

POINTS = 200
"""About as many values of a name are kept: a curve needs no more, and each is a file while the training runs."""
_LOSSES = {"loss": "train", "train_loss": "train", "eval_loss": "held-out", "val_loss": "held-out"}


class LoggedValues:
    """Thins what is logged, name by name: of a known length ``POINTS`` evenly, of an unknown one ever more sparsely.

    The first value of a name is always kept, and the last one when the training ends.
    """

    def __init__(self, steps: int | None) -> None:
        self._every = None if steps is None else max(1, steps // POINTS)
        self._last: dict[str, int] = {}
        self._left: dict[str, tuple[int, float]] = {}

    def log(self, step: int, values: dict[str, Any]) -> Iterator[tuple[str, Row]]:
        """Rows, with the name of their value, of what is kept: that is read now, which waits for a GPU."""
        for name, value in values.items():
            _require_name(name)
            last = self._last.get(name)
            if last is None or step >= last + (self._every or max(1, last // 50)):
                found = _row(step, name, _number(name, value))
                self._last[name] = step
                self._left.pop(name, None)
                yield name, found
            elif last != step:
                self._left[name] = step, value.detach() if hasattr(value, "detach") else value

    def end(self) -> Iterator[tuple[str, Row]]:
        """The last value of each name."""
        left, self._left = self._left, {}
        for name, (step, value) in left.items():
            yield name, _row(step, name, _number(name, value))


def _row(step: int, name: str, value: float) -> Row:
    loss = _LOSSES.get(name)
    measure, variant = ("loss", loss) if loss else ("logged", name)
    note = None if math.isfinite(value) else f"the training logged {value}"
    return row(step=step, subset=None, measure=measure, variant=variant, value=value, note=note)


def _require_name(name: str) -> None:
    if not re.fullmatch(r"[\w.-]+", name):
        raise broken("a logged value must have a name of letters, digits, _ . and -", repr(name), "rename it")


def _number(name: str, value: Any) -> float:
    try:
        return float(value.detach() if hasattr(value, "detach") else value)
    except (TypeError, ValueError, RuntimeError) as error:
        raise broken(f"{name} must be a number or a tensor of one element", type(value).__name__, str(error)) from error
