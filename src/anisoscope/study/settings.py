"""What a pair of trainings is asked for: presets, a TOML file and flags, in that order."""

from __future__ import annotations

import math
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from anisoscope.capture.schedule import log_spaced
from anisoscope.errors import AnisoscopeError, broken

PRESETS: dict[str, dict[str, Any]] = {
    "tiny": {},
    "small": {
        "layers": 6,
        "width": 256,
        "heads": 8,
        "vocabulary": 8192,
        "length": 256,
        "batch": 32,
        "steps": 2000,
        "learning_rate": 6e-4,
    },
    "pythia-160m": {
        "layers": 12,
        "width": 768,
        "heads": 12,
        "vocabulary": 50_304,
        "length": 1024,
        "batch": 32,
        "steps": 20_000,
        "learning_rate": 6e-4,
        "precision": "bf16",
    },
}
_LATE = (0.72, 0.82)


class PairSettings(BaseModel):
    """Every number of the job; the defaults are the preset ``tiny``."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    models: Literal["twin", "neox-bert", "neox-modernbert"] = "twin"
    corpus: str = "kjv"
    tokeniser: str | None = None
    layers: int = Field(4, ge=1)
    width: int = Field(128, ge=8)
    heads: int = Field(4, ge=1)
    vocabulary: int = Field(4096, ge=300)
    length: int = Field(128, ge=8)
    batch: int = Field(16, ge=4)
    steps: int = Field(400, ge=1)
    learning_rate: float = Field(2e-3, gt=0)
    warmup: float = Field(0.05, ge=0, lt=1)
    weight_decay: float = Field(0.01, ge=0)
    clip: float = Field(1.0, gt=0)
    dropout: float = Field(0.0, ge=0, lt=1)
    mask_rate: float = Field(0.15, gt=0, lt=1)
    held_out: float = Field(0.05, gt=0, lt=1)
    precision: Literal["float32", "bf16"] = "float32"
    device: Literal["auto", "cpu"] = "auto"
    seeds: int = Field(1, ge=1)
    first_seed: int = Field(0, ge=0)
    rank: int = Field(32, ge=1)
    ranks: tuple[int, ...] = (4, 8, 16, 64)
    proxies: tuple[Literal["pca", "svd", "semi_nmf", "haar", "mean"], ...] = ("pca", "svd", "semi_nmf")
    schedule: Literal["log"] | int = "log"
    observations: int = Field(12, ge=2)
    targets: bool = True
    frequency: bool = True
    resamples: int = Field(999, ge=0)
    probe: int = Field(5120, ge=0)
    evaluations: int = Field(8, ge=1)
    checkpoints: int = Field(4, ge=0)
    history: bool = False

    @model_validator(mode="after")
    def _fits(self) -> PairSettings:
        if self.width % self.heads:
            raise ValueError(f"width must be a multiple of heads, got {self.width} and {self.heads}")
        if self.rank > self.width // 2:
            raise ValueError(f"rank must be at most half of the width, {self.width // 2}, got {self.rank}")
        if 0 < self.probe < 4096:
            raise ValueError(f"probe must be 0 or at least 4096 tokens, got {self.probe}")
        return self

    @property
    def every_seed(self) -> tuple[int, ...]:
        """The seeds that are trained, one after the other."""
        return tuple(range(self.first_seed, self.first_seed + self.seeds))

    @property
    def observed(self) -> int | list[int]:
        """The schedule as the scope takes it: by logarithm, and twice more in the last 30 %, to see how it ends."""
        if isinstance(self.schedule, int):
            return self.schedule
        late = {math.ceil(share * self.steps) for share in _LATE} if self.observations > 2 * len(_LATE) else set()
        return sorted(log_spaced(self.steps, most=self.observations - len(late)) | {s for s in late if s < self.steps})

    @property
    def other_ranks(self) -> tuple[int, ...]:
        """The ranks beside the main one that fit into the width."""
        return tuple(rank for rank in self.ranks if rank != self.rank and rank < self.width)


def settings_of(preset: str, file: str | Path | None, flags: Mapping[str, Any]) -> PairSettings:
    """The settings of a preset, changed by a TOML file, changed by flags (``None``: not given).

    >>> settings_of("small", None, {"steps": 100}).steps
    100
    """
    if preset not in PRESETS:
        raise broken(f"preset must be one of {' '.join(PRESETS)}", repr(preset), "use tiny")
    given = dict(PRESETS[preset])
    if file is not None:
        given |= _read(Path(file))
    given |= {name: value for name, value in flags.items() if value is not None}
    try:
        return PairSettings(**given)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        said = first["msg"].removeprefix("Value error, ")
        raise broken(f"{where or 'settings'}: {said}", repr(first.get("input"))[:80], "see pair --help") from error


def _read(file: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise AnisoscopeError(f"cannot read {file}: {error.strerror or error}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise broken("a configuration must be valid TOML", f"{file}: {error}", "mend the file") from error
