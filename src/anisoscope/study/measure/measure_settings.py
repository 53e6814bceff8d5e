"""What `measure` is asked for. Needs no torch."""

from __future__ import annotations

from pydantic import Field

from anisoscope.study.setting_fields import WithPlugins, Words

SAMPLE_ROWS = 20_000


class MeasureSettings(WithPlugins):
    """Settings of `measure`."""

    key: str | None = Field(
        default=None, description="Name of the array in an .npz or .safetensors file that has several."
    )
    columns: Words | None = Field(default=None, min_length=1, description="Columns of a table, separated by commas.")
    sample: int = Field(
        default=SAMPLE_ROWS, ge=3, description="Rows to sample for measures that need rows or neighbours."
    )
    seed: int = Field(default=0, ge=0, lt=2**32, description="Seed of the sample and of the clusters.")
