"""What `measure` is asked for. Needs no torch."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter
from pydantic import Field

from anisoscope.study.options import CommandOptions, WithPlugins, Words

SAMPLE_ROWS = 20_000


class MeasureSettings(WithPlugins, CommandOptions):
    """Settings of `measure`."""

    json_: Annotated[bool, Parameter(name="--json", negative=())] = Field(
        default=False,
        alias="json",
        description='Print JSON instead of a table: a missing field is null, an undefined number the string "NaN".',
    )
    key: str | None = Field(
        default=None, description="Array inside an .npz or .safetensors file, where there are several."
    )
    columns: Words | None = Field(default=None, description="Columns of a table, separated by commas.")
    sample: int = Field(
        default=SAMPLE_ROWS, ge=3, description="Rows to sample for measures that need rows or neighbours."
    )
    seed: int = Field(default=0, ge=0, lt=2**32, description="Seed of the sample and of the clusters.")
