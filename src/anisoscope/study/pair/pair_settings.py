"""What a pair of trainings is asked for: presets, a TOML file and flags, in that order."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from anisoscope.capture.schedule import log_spaced
from anisoscope.errors import broken
from anisoscope.machine_capacity import parse_bytes
from anisoscope.study.device import Device
from anisoscope.study.judging_settings import JudgingSettings
from anisoscope.study.setting_fields import RANK, Known, Numbers, Rank, Words, known_words, made_of
from anisoscope.vocabulary import PROXIES

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


def known_size(given: str | None) -> str | None:
    """A size that can be read."""
    if given is not None:
        parse_bytes(given)
    return given


class PairOptions(JudgingSettings):
    """What a pair of trainings is asked for; the defaults are the preset ``tiny``."""

    models: Literal["twin", "neox-bert", "neox-modernbert"] = Field(
        default="twin", description="The same architecture for both (twin), or GPT-NeoX with BERT or ModernBERT."
    )
    corpus: str = Field(
        default="kjv", description="kjv, zipf:s, enwik8:PATH, hf:NAME[:CONFIG], or text files, folders and globs."
    )
    tokeniser: str | None = Field(
        default=None,
        description="A tokenizer.json, or a folder or hub name with one. By default: BPE trained on the corpus.",
    )
    layers: int = Field(default=4, ge=1, description="Blocks of each model.")
    width: int = Field(default=128, ge=8, description="Width of the residual stream.")
    heads: int = Field(default=4, ge=1, description="Attention heads.")
    vocabulary: int = Field(default=4096, ge=300, description="Vocabulary size of a tokeniser trained here.")
    length: int = Field(default=128, ge=8, description="Maximum number of tokens in a sequence.")
    batch: int = Field(default=16, ge=4, description="Sequences per step.")
    steps: int = Field(default=400, ge=1, description="Optimiser steps of each training.")
    learning_rate: float = Field(
        default=2e-3,
        gt=0,
        allow_inf_nan=False,
        description=("Peak learning rate, reached after warm-up; it then decays to 0."),
    )
    warmup: float = Field(default=0.05, ge=0, lt=1, description="Fraction of the steps used for warm-up.")
    weight_decay: float = Field(default=0.01, ge=0, description="Decoupled weight decay of AdamW.")
    clip: float = Field(default=1.0, gt=0, description="Maximum gradient norm.")
    dropout: float = Field(default=0.0, ge=0, lt=1, description="Dropout probability.")
    mask_rate: float = Field(default=0.15, gt=0, lt=1, description="Fraction of tokens that the encoder must predict.")
    held_out: float = Field(default=0.05, gt=0, lt=1, description="Fraction of documents that are held out.")
    precision: Literal["float32", "bf16"] = Field(
        default="float32", description=("Precision in which the models compute.")
    )
    device: Device = Field(default="auto", description="Device for training: auto, cpu, cuda, cuda:1 … or mps.")
    seeds: int = Field(
        default=1,
        ge=1,
        le=10_000,
        description=("Number of training runs of each model; with several, error bars are over seeds."),
    )
    first_seed: int = Field(default=0, ge=0, lt=2**31, description="First seed; the others count up from it.")
    rank: Rank = Field(default=32, description=RANK)
    ranks: Numbers = Field(default=(4, 8, 16, 64), description="Other ranks to report, separated by commas.")
    proxies: Annotated[Words, Known(known_words("proxies", PROXIES))] = Field(
        default=("pca", "svd", "semi_nmf"),
        min_length=1,
        description="Proxy methods, separated by commas; the first is the main one.",
    )
    schedule: Literal["log"] | int = Field(
        default="log", description="When to observe: log (with two more near the end), or every n-th step."
    )
    observations: int = Field(default=12, ge=2, description="Maximum number of observations with the schedule log.")
    targets: bool = Field(default=True, description="Add the nulls with other labels (one extra pass each).")
    frequency: bool = Field(default=True, description="Frequency and curvature analysis.")
    probe: int = Field(default=5120, ge=0, description="Held-out tokens for the intrinsic dimension; 0 to skip it.")
    evaluations: int = Field(default=8, ge=1, description="How often the held-out loss is measured.")
    checkpoints: int = Field(default=4, ge=0, description="Number of checkpoints to resume from; 0 for none.")
    evaluate: Literal["auto", "device", "host"] = Field(
        default="auto", description="Where observations are judged: on the GPU that trains (device) or on the host."
    )
    memory: Annotated[str | None, Known(known_size)] = Field(
        default=None,
        description=(
            "Memory limit for the statistics of one observation, such as 8GiB; blocks are then watched in turn."
        ),
    )
    history: bool = Field(
        default=False, description="Keep the weights at every observation, for `anisoscope checkpoints`."
    )
    keep_bases: bool = Field(default=False, description="Keep the proxies of every observation, not only of the last.")


class PairSettings(PairOptions):
    """The same, once its parts fit one another."""

    @model_validator(mode="after")
    def _fits(self) -> PairSettings:
        if self.width % self.heads:
            raise ValueError(f"width must be a multiple of heads, got {self.width} and {self.heads}")
        if isinstance(self.rank, int) and self.rank > self.width // 2:
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
        """The ranks beside the main one that fit into the width; none where each place finds its own."""
        if isinstance(self.rank, str):
            return ()
        return tuple(rank for rank in self.ranks if rank != self.rank and rank < self.width)


def settings_of(preset: str, given: Mapping[str, Any]) -> PairSettings:
    """The settings of a preset, changed by what is given.

    >>> settings_of("small", {"steps": 100}).steps
    100
    """
    if preset not in PRESETS:
        raise broken(f"preset must be one of {' '.join(PRESETS)}", repr(preset), "use tiny")
    return made_of(PairSettings, PRESETS[preset], given)
