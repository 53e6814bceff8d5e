"""What a plan of interventions is asked for: arms × doses × seeds. Needs no torch."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from anisoscope.models.mask_objectives import ATTENTIONS, OBJECTIVES, USUAL, require_cell
from anisoscope.study.setting_fields import Known, Numbers, Reals, Settings, Words, known_words
from anisoscope.vocabulary import VIEWS, require

MOST_JOBS = 500


@dataclass(frozen=True, slots=True)
class ArmKind:
    """A way to change a training: what its dose is, and which doses it can have."""

    dose: str
    low: float = float("-inf")
    high: float = float("inf")
    roles: tuple[str, ...] = ("decoder", "encoder")


ARMS: dict[str, ArmKind] = {
    "null": ArmKind("none: nothing is changed"),
    "cos": ArmKind("weight of CosReg"),
    "istar": ArmKind("weight of IStar"),
    "decay": ArmKind("weight of SpectralDecay", low=0.0),
    "curvature": ArmKind("weight of CurvatureReg"),
    "updates": ArmKind("strength with which directions go from weight updates", 0.0, 1.0),
    "loss-weights": ArmKind("α of the loss weights c^(−α)", -2.0, 2.0),
    "mask-rates": ArmKind("α of the masking rates c^(−α)", -2.0, 2.0, roles=("encoder",)),
    "documents": ArmKind("α of the chance to draw a document, by the mean of c^(−α) over its tokens", -2.0, 2.0),
    "zipf": ArmKind("exponent s of the synthetic language", 0.0, 2.0),
    "cell": ArmKind("none: another mask of attention or another objective"),
}
_JUDGED = {name: VIEWS[name] for name in ("representation", "weight")}
NO_DOSE = ("null", "cell")
PENALTIES = ("cos", "istar", "decay", "curvature")


class Arm(Settings):
    """One arm of a plan."""

    name: str = Field(description="Name of the arm, in rows and in the report.")
    kind: str = Field(description=f"One of {', '.join(ARMS)}.")
    doses: Reals = Field(default=(), description="Doses of the arm; 0 is the control.")
    layers: Numbers | None = Field(default=None, description="Blocks to which a penalty or a removal applies.")
    alpha: float = Field(default=1.0, description="Spectral decay that the penalty `decay` pulls towards.")
    rank: int = Field(default=8, ge=1, description="Directions that `updates` removes.")
    every: int = Field(default=25, ge=1, description="Steps between fits of `updates`.")
    directions: Literal["proxy", "haar", "normal"] = Field(default="proxy", description="What `updates` removes.")
    against: Literal["proxy", "haar", "normal"] | None = Field(
        default=None, description="Lose only as much of an update as these directions hold."
    )
    attention: str | None = Field(default=None, description=f"Attention of a `cell`: {', '.join(ATTENTIONS)}.")
    objective: str | None = Field(default=None, description=f"Objective of a `cell`: {', '.join(OBJECTIVES)}.")

    @model_validator(mode="after")
    def _fits(self) -> Arm:
        if not re.fullmatch(r"[A-Za-z][\w-]*", self.name) or self.name == "control":
            raise ValueError(f"the name of an arm must be a plain word other than control, got {self.name!r}")
        if self.kind not in ARMS:
            raise ValueError(f"the kind of arm {self.name} must be one of {' '.join(ARMS)}, got {self.kind!r}")
        kind = ARMS[self.kind]
        if self.kind == "cell":
            self._require_cell()
        elif self.attention is not None or self.objective is not None:
            raise ValueError(f"attention and objective are for arms of kind cell, got {self.kind} in arm {self.name}")
        if self.kind in NO_DOSE:
            if self.doses:
                raise ValueError(f"arm {self.name} is of kind {self.kind}, which has no doses, got {self.doses}")
            return self
        if not self.doses or len(set(self.doses)) < len(self.doses):
            raise ValueError(f"arm {self.name} must have different doses, got {self.doses}")
        for dose in self.doses:
            if not kind.low <= dose <= kind.high or dose in (float("inf"), float("-inf")) or dose != dose:
                raise ValueError(f"doses of {self.kind} must lie in {kind.low:g}…{kind.high:g}, got {dose:g}")
        return self

    def _require_cell(self) -> None:
        if self.attention is None and self.objective is None:
            raise ValueError(f"arm {self.name} must name attention or objective, got neither")
        for what, word, known in (
            ("attention", self.attention, ATTENTIONS),
            ("objective", self.objective, OBJECTIVES),
        ):
            if word is not None:
                require(what, word, known)

    @property
    def every_dose(self) -> tuple[float, ...]:
        """Its doses; an arm that has none has one, of 0."""
        return self.doses or (0.0,)

    def label(self, dose: float) -> str:
        """The model as rows call it."""
        return self.name if self.kind in NO_DOSE else f"{self.name} {dose:g}"


class InterveneSettings(Settings):
    """A plan: one small model trained under a control and every arm, dose and seed."""

    arms: tuple[Arm, ...] = Field(min_length=1, description="Arms of the plan.")
    role: Literal["decoder", "encoder"] = Field(default="decoder", description="Which twin is trained.")
    seeds: int = Field(default=3, ge=1, description="Training runs of each arm; an interval of an effect needs 3.")
    first_seed: int = Field(default=0, ge=0, description="First seed; the others count up from it.")
    corpus: str = Field(default="kjv", description="As for `pair`.")
    tokeniser: str | None = Field(default=None, description="A tokenizer.json, a folder or hub name with one.")
    layers: int = Field(default=4, ge=1, description="Blocks.")
    width: int = Field(default=128, ge=8, description="Width of the residual stream.")
    heads: int = Field(default=4, ge=1, description="Attention heads.")
    vocabulary: int = Field(default=2048, ge=300, description="Vocabulary size of a tokeniser trained here.")
    length: int = Field(default=64, ge=8, description="Tokens per sequence.")
    batch: int = Field(default=16, ge=16, description="Sequences per step.")
    steps: int = Field(default=200, ge=1, description="Optimiser steps of each training.")
    learning_rate: float = Field(default=2e-3, gt=0, description="Peak learning rate; it then decays to 0.")
    warmup: float = Field(default=0.05, ge=0, lt=1, description="Fraction of the steps used for warm-up.")
    weight_decay: float = Field(default=0.01, ge=0, description="Decoupled weight decay of AdamW.")
    clip: float = Field(default=1.0, gt=0, description="Maximum gradient norm.")
    mask_rate: float = Field(default=0.15, gt=0, lt=1, description="Fraction of tokens that an encoder must predict.")
    rank: int = Field(default=8, ge=1, description="Rank of the proxies that the scope judges.")
    views: Annotated[
        Words, Known(known_words("views", {name: VIEWS[name] for name in ("representation", "weight")}))
    ] = Field(default=("representation", "weight"), min_length=1, description="Views to judge.")
    targets: bool = Field(default=False, description="Add nulls of permuted labels (one extra pass each).")
    resamples: int = Field(default=199, ge=19, description="Draws from each null.")
    probes: bool = Field(default=True, description="Linear probes of every layer at every observation.")
    probe_data: str | None = Field(
        default=None, description="A CSV file with the columns text and label (and document): one more probe."
    )
    threads: int = Field(default=1, ge=1, description="Number of threads of each training run.")
    margin: float = Field(
        default=0.02,
        gt=0,
        allow_inf_nan=False,
        description="An effect is called equal to none if it surely lies below this share of the control's mean.",
    )

    @model_validator(mode="after")
    def _fits(self) -> InterveneSettings:
        names = [arm.name for arm in self.arms]
        if len(set(names)) < len(names):
            raise ValueError(f"names of arms must differ, got {', '.join(names)}")
        words = [arm.label(dose).replace(" ", "_") for arm in self.every_arm for dose in arm.every_dose]
        twice = [word for word in words if words.count(word) > 1]
        if twice:  # rows and jobs go by them
            raise ValueError(f"arms and doses must differ in six digits, got {twice[0]} twice")
        if self.width % self.heads:
            raise ValueError(f"width must be a multiple of heads, got {self.width} and {self.heads}")
        if self.rank > self.width // 2:
            raise ValueError(f"rank must be at most half of the width, {self.width // 2}, got {self.rank}")
        for arm in self.arms:
            kind = ARMS[arm.kind]
            if self.role not in kind.roles:
                raise ValueError(f"arms of kind {arm.kind} are for the {' or '.join(kind.roles)}, got {self.role}")
            if arm.kind == "zipf" and not self.corpus.startswith("zipf:"):
                raise ValueError(f"with an arm of kind zipf the corpus must be zipf:s, got {self.corpus!r}")
            if arm.layers is not None and not all(1 <= layer <= self.layers for layer in arm.layers):
                raise ValueError(f"layers of arm {arm.name} must lie in 1…{self.layers}, got {arm.layers}")
            if arm.kind == "updates" and arm.rank > self.width // 2:
                raise ValueError(f"the rank of arm {arm.name} must be at most {self.width // 2}, got {arm.rank}")
            if arm.kind == "cell":
                require_cell(*self.cell_of(arm))
                if self.cell_of(arm) == USUAL[self.role]:
                    raise ValueError(f"arm {arm.name} must differ from the control, got {' '.join(USUAL[self.role])}")
        jobs = self.seeds * (1 + sum(len(arm.every_dose) for arm in self.every_arm))
        if jobs > MOST_JOBS:
            raise ValueError(f"a plan must have at most {MOST_JOBS} trainings, got {jobs}")
        return self

    @property
    def every_arm(self) -> tuple[Arm, ...]:
        """The arms, with one that changes nothing if none does."""
        if any(arm.kind == "null" for arm in self.arms):
            return self.arms
        return (*self.arms, Arm(name="null", kind="null"))

    def cell_of(self, arm: Arm | None) -> tuple[str, str]:
        """Attention and objective of an arm; what it does not name is the control's."""
        attention, objective = USUAL[self.role]
        return (attention, objective) if arm is None else (arm.attention or attention, arm.objective or objective)

    @property
    def every_seed(self) -> tuple[int, ...]:
        """The seeds of every arm."""
        return tuple(range(self.first_seed, self.first_seed + self.seeds))

    @property
    def control_dose(self) -> dict[str, float]:
        """Of each arm, the dose that the control has."""
        exponent = float(self.corpus.partition(":")[2]) if self.corpus.startswith("zipf:") else 0.0
        return {arm.name: exponent if arm.kind == "zipf" else 0.0 for arm in self.arms}


def example() -> dict[str, Any]:
    """The plan that is tried where none is named: small enough to be looked at within half an hour."""
    return {
        "steps": 100,
        "arms": [
            {"name": "istar", "kind": "istar", "doses": [0.03]},
            {"name": "flatter", "kind": "loss-weights", "doses": [0.5]},
            {"name": "tangent", "kind": "updates", "doses": [1.0]},
            {"name": "haar", "kind": "updates", "doses": [1.0], "directions": "haar"},
            {"name": "prefix", "kind": "cell", "attention": "prefix"},
        ],
    }
