"""What `verify` is asked for. Needs no torch."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, model_validator

from anisoscope.study.model_settings import Examination
from anisoscope.study.setting_fields import Known, Words, known_words
from anisoscope.vocabulary import PROXIES


class Verification(Examination):
    """Settings of `verify`."""

    layers: int = Field(default=6, ge=1, description="Layers to look at, evenly spread, the first and the last too.")
    sequences: int = Field(default=64, ge=16, description="Sequences that proxies are fitted and judged on.")
    proxies: Annotated[Words, Known(known_words("proxies", PROXIES))] = Field(
        default=("pca", "svd", "semi_nmf"), min_length=1, description="Methods to check, separated by commas."
    )

    @model_validator(mode="after")
    def _a_number(self) -> Verification:
        if isinstance(self.rank, str):  # checks compare removals of equal rank, and those of a held-out model
            raise ValueError(f"--rank must be a number here, got {self.rank}")
        return self

    @property
    def number(self) -> int:
        """The rank."""
        return int(self.rank)
