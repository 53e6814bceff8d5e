"""Options of a scope that few need, in groups."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, get_args

from anisoscope.capture.sites import Sites
from anisoscope.errors import broken
from anisoscope.observe.collector import RESERVOIR_ROWS
from anisoscope.observe.label_passes import LossFn
from anisoscope.record.metric_names import Detail
from anisoscope.record.pipeline import Sink
from anisoscope.record.trackers import trackers_of
from anisoscope.verdict import MARGIN
from anisoscope.vocabulary import require


@dataclass(frozen=True, slots=True, kw_only=True)
class EvidenceOptions:
    """How proxies are judged.

    ``subsets`` are the tokens that proxies are fitted and judged on; ``ranks`` shows the first proxy at other ranks;
    ``anchor`` is the last step that anchored proxies are fitted on (by default 30 % of ``steps``); ``loss_fn(output,
    labels)`` serves the label nulls where the model itself returns no loss. Odds ratios between ``1/margin`` and
    ``margin`` count as equal to 1: only inside it is an effect called equal to its null.
    """

    subsets: Sequence[str] = ("all",)
    ranks: Sequence[int] = ()
    anchor: int | None = None
    loss_fn: LossFn | None = None
    margin: float = MARGIN

    def __post_init__(self) -> None:
        if not 1 < self.margin < math.inf:
            raise broken("margin must be a number above 1", self.margin, "use 1.25")


@dataclass(frozen=True, slots=True, kw_only=True)
class CaptureOptions:
    """What is tapped, and how much of it is kept.

    ``sites`` names blocks and linear maps where the structure does not tell; ``budget`` (such as ``"1%"``) takes the
    place of the schedule and spaces observations so that they cost no more than that share, evaluation included;
    ``reservoir_rows`` bounds the rows kept of a site and fold. ``labels`` names the argument of the model's forward
    that holds the labels, where it is none of ``labels``, ``targets`` and ``target``. ``maps`` are the linear maps of a
    block that the weight view watches: of the ``"mlp"``, of ``"attention"`` (each projection is a place), or both.
    """

    sites: Sites | Sequence[str] | None = None
    budget: str | float | None = None
    reservoir_rows: int = RESERVOIR_ROWS
    labels: str | None = None
    maps: Sequence[str] = ("mlp",)


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionOptions:
    """How the scope lives beside the training.

    Rows go to a ``sink`` with ``write(rows)``. A training that is resumed begins at ``first_step``; with ``resumable``
    the scope can be saved (``state``) and go on to the same rows (``restore``). ``pending`` observations may wait to be
    judged; ``timeout`` is how long ranks wait for one another, in seconds. ``keep_bases`` keeps the proxies of every
    observation in the run, not of the last alone. ``token_text(id)`` gives rows about tokens their text.

    Every observation goes to the ``trackers`` under the step that was observed: a ``SummaryWriter``, a W&B or Trackio
    run, ``mlflow``, an ``Accelerator``, a Lightning logger, or a function of a step and its numbers. ``log`` says what
    of it: the headline measures layer by layer (``"layers"``), their ``"medians"``, or ``"none"``. With ``report`` a
    report is made when the scope closes, and logged to the trackers as an artefact.
    """

    sink: Sink | None = None
    first_step: int = 0
    resumable: bool = False
    pending: int = 8
    timeout: float = 600.0
    keep_bases: bool = False
    token_text: Callable[[int], str] | None = None
    trackers: Sequence[Any] = ()
    log: Detail = "layers"
    report: bool = False

    def __post_init__(self) -> None:
        require("log", self.log, get_args(Detail))
        if isinstance(self.trackers, str) or not isinstance(self.trackers, Sequence):
            raise broken("trackers must be a list", type(self.trackers).__name__, "write trackers=[...]")
        list(trackers_of(self.trackers))
