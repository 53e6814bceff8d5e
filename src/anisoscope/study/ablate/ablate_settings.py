"""What removals from finished models are asked for. Needs no torch."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from anisoscope.study.model_settings import TextSettings
from anisoscope.study.setting_fields import Known, Numbers, known_words
from anisoscope.vocabulary import PROXIES


class AblateSettings(TextSettings):
    """Settings of `ablate`."""

    proxy: Annotated[str, Known(lambda name: known_words("proxy", PROXIES)((name,))[0])] = Field(
        default="pca", description="Method of the proxy that is removed."
    )
    ranks: Numbers = Field(default=(32,), min_length=1, description="Ranks to remove, separated by commas.")
    layers: Numbers | None = Field(
        default=None,
        description="Layers to remove from, separated by commas; 0 is the input of the first block. By default: all.",
    )
    every: int | None = Field(default=None, ge=1, description="Use every n-th block instead, and the last.")
    subset: Literal["all", "no-first"] = Field(
        default="all", description="Remove from all tokens, or from all but the first of each sequence."
    )
    draws: int = Field(default=4, ge=1, description="Number of draws of each random control.")
    margin: float = Field(
        default=0.01,
        gt=0,
        allow_inf_nan=False,
        description="Removals count as equal if the interval of their difference lies within this many nats per token.",
    )

    @model_validator(mode="after")
    def _differ(self) -> AblateSettings:
        if min(self.ranks) < 1 or len(set(self.ranks)) < len(self.ranks):
            raise ValueError(f"--ranks must be different and at least 1, got {self.ranks}")
        if self.layers is not None and (not self.layers or len(set(self.layers)) < len(self.layers)):
            raise ValueError(f"--layers must be different, got {self.layers}")
        return self

    def places(self, blocks: int) -> tuple[int, ...]:
        """The layers to remove from, of a model of so many blocks."""
        if self.every is not None:
            return tuple(dict.fromkeys((*range(self.every, blocks + 1, self.every), blocks)))
        return tuple(range(blocks + 1)) if self.layers is None else self.layers
