"""How evidence is judged, in every command that judges. Needs no torch."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from anisoscope.study.setting_fields import Known, WithPlugins, Words, known_words
from anisoscope.verdict import MARGIN
from anisoscope.vocabulary import MAPS


class UnitSettings(WithPlugins):
    """What intervals rest on, in every command that has intervals over a text."""

    units: Literal["auto", "document", "sequence"] = Field(
        default="auto",
        description=(
            "Independent units of the intervals: document, sequence, or auto (documents if every "
            "observed batch has 16)."
        ),
    )


class JudgingSettings(UnitSettings):
    """Settings that `pair`, `profile` and `checkpoints` share."""

    maps: Annotated[Words, Known(known_words("maps", MAPS))] = Field(
        default=("mlp",),
        min_length=1,
        description=(
            "Linear maps of each block in the weight view, separated by commas: mlp, attention (all projections)."
        ),
    )
    resamples: int | None = Field(
        default=None, ge=1, description="Draws from each null; by default max(999, 40 × layers − 1)."
    )
    margin: float = Field(
        default=MARGIN,
        gt=1,
        allow_inf_nan=False,
        description=(
            "An effect counts as equal to its null if its interval lies between 1/margin and margin (odds ratio)."
        ),
    )
