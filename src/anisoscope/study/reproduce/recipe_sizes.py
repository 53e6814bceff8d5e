"""What a study of a recipe takes, told without its model on this disk: from the dimensions that the recipe gives.

Time of a training counts 6 operations a parameter and token (forward 2, backward 4), that of a study of finished
weights what ``estimates`` counts, each time the number of checkpoints. Disk: weights as they are downloaded, in
float32.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from anisoscope.models.revisions import PYTHIA
from anisoscope.study.estimates import Dimensions, Size, evaluation_seconds, rate_of, size_of, statistics_bytes
from anisoscope.study.model_settings import Examination
from anisoscope.study.pair.pair_settings import PairSettings
from anisoscope.study.reproduce.recipe import RecipeRun

_BYTES = 4
_ADAM = 4  # copies of a parameter in training: itself, its gradient and two moments
_UNKNOWN_COURSE = 30  # checkpoints of a history that only its listing tells


@dataclass(frozen=True, slots=True)
class StudySize:
    """Bytes and seconds of one study, and bytes of what it downloads."""

    size: Size
    download: int = 0
    times: int = 1  # models or checkpoints that the time is of


def study_size(run: RecipeRun, given: Any) -> StudySize | None:
    """The estimate of a pair, or of a model whose dimensions the recipe gives; None where it gives none."""
    if isinstance(given, PairSettings):
        return StudySize(_of_pair(given), times=2 * given.seeds)
    if run.size is None:
        return None
    card = Dimensions(**run.size.model_dump())
    times = 1 + len(run.held_out) if run.study != "checkpoints" else _course(run.revisions)
    each = size_of(card, given, rate=rate_of(given), sequences=_sequences(given))
    whole = Size(each.weights, each.passing, each.statistics, each.judging, each.vectors, times * each.seconds)
    return StudySize(whole, _BYTES * run.size.parameters * times, times)


def _sequences(given: Any) -> int:
    return -(-getattr(given, "vectors", 0) // given.length)


def _course(revisions: str | None) -> int:
    if revisions is None or revisions == "auto":
        return _UNKNOWN_COURSE
    return len(PYTHIA) if revisions == "pythia" else revisions.count(",") + 1


def _of_pair(given: PairSettings) -> Size:
    width, layers = given.width, given.layers
    parameters = 12 * layers * width**2 + given.vocabulary * width
    card = Dimensions(parameters, layers, width, given.vocabulary)
    judged = Examination(
        proxies=given.proxies,
        targets=given.targets,
        sequences=max(8, given.batch),
        length=given.length,
        maps=given.maps,
    )
    rate = rate_of(judged)
    tokens = given.steps * given.batch * given.length
    looks = given.observations if given.schedule == "log" else given.steps // int(given.schedule) + 1
    seconds = 6.0 * parameters * tokens / rate + looks * evaluation_seconds(card, judged, rate=rate)
    passing = given.batch * given.length * (layers * 34 * width + 4 * given.vocabulary) * _BYTES
    kept = statistics_bytes(card, judged)
    return Size(_ADAM * _BYTES * parameters, passing, kept, 0, 0, 2 * given.seeds * seconds)
