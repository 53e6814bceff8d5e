"""A recipe: what to run at which scale, and what was published, with its source. Needs no torch."""

from __future__ import annotations

import re
import tomllib
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, model_validator

from anisoscope.errors import broken
from anisoscope.study.setting_fields import Settings, made_of, read_toml
from anisoscope.vocabulary import WINDOWS

Scale = Literal["tiny", "small", "full"]
_PACKAGE = "anisoscope.study.recipes"
SAME = "run:"
"""Before the name of the study whose model another one takes."""


class ModelSize(Settings):
    """Dimensions of a model, to say what it takes before it is downloaded."""

    parameters: int = Field(ge=1)
    layers: int = Field(ge=1)
    width: int = Field(ge=1)
    vocabulary: int = Field(ge=1)


class RecipeRun(Settings):
    """One study of a recipe, with the settings of its command."""

    name: str
    study: Literal["pair", "profile", "checkpoints", "verify"]
    model: str | None = Field(
        default=None, description="As the command takes it, package:NAME/GLOB, or run:NAME for that of another study."
    )
    held_out: tuple[str, ...] = ()
    revisions: str | None = None
    size: ModelSize | None = Field(default=None, description="For --dry-run, where the model is not on this disk.")
    settings: dict[str, Any] = Field(default_factory=dict)

    @property
    def attention(self) -> str:
        """What the model's tokens see: ``usual``, or as the settings change it."""
        return str(self.settings.get("attention", "usual"))

    @model_validator(mode="after")
    def _fits(self) -> RecipeRun:
        if not re.fullmatch(r"[A-Za-z0-9][\w.-]*(?<!\.json)(?<!\.html)", self.name):  # it is the folder of the run too
            raise ValueError(f"the name of a study must be a plain word, got {self.name!r}")
        if (self.model is None) != (self.study == "pair"):
            raise ValueError("model must be given for every study but pair")
        return self


class ScalePlan(Settings):
    """The studies of one scale."""

    runs: tuple[RecipeRun, ...] = Field(min_length=1)

    @model_validator(mode="after")
    def _differ(self) -> ScalePlan:
        names = [run.name for run in self.runs]
        if len(set(names)) < len(names):
            raise ValueError(f"names of studies must differ, got {', '.join(names)}")
        own = {run.name for run in self.runs if run.model is not None and not run.model.startswith(SAME)}
        for run in self.runs:
            if run.model is not None and run.model.startswith(SAME) and run.model.removeprefix(SAME) not in own:
                raise ValueError(f"the model of {run.name} must be that of another study, got {run.model}")
        return self


class Claim(Settings):
    """What was published, and the rule that sets rows beside it."""

    name: str
    says: str
    source: str
    published: str | None = Field(default=None, description="The number, where the material at hand states one.")
    rule: Literal["above", "below", "shape", "turns", "more than"]
    where: dict[str, Any]
    other: dict[str, Any] = Field(default_factory=dict)
    attention: str = Field(default="usual", description="Beside runs whose settings have this attention.")
    window: str | None = None
    expect: str | None = None
    own: bool = False  # no claim of the source, but what stands beside it here

    @model_validator(mode="after")
    def _fits(self) -> Claim:
        if self.window is not None and self.window not in WINDOWS:
            raise ValueError(f"window must be one of {' '.join(WINDOWS)}")
        if self.rule in ("shape", "turns") and not self.expect:
            raise ValueError(f"expect must be given for the rule {self.rule}")
        if self.rule == "more than" and not self.other:
            raise ValueError("other must be given for the rule more than")
        return self


class Unanswered(Settings):
    """A claim that this recipe cannot set anything beside, and why."""

    says: str
    why: str


class Recipe(Settings):
    """A paper, what of it can be run, and what is not known of the original."""

    title: str
    paper: str
    source: str
    unknown: tuple[str, ...] = ()
    scales: dict[Scale, ScalePlan]
    claims: tuple[Claim, ...] = Field(min_length=1)
    unanswered: tuple[Unanswered, ...] = ()


def recipe_names() -> list[str]:
    """The recipes that come with the package."""
    return sorted(one.name.removesuffix(".toml") for one in files(_PACKAGE).iterdir() if one.name.endswith(".toml"))


def load_recipe(name: str) -> Recipe:
    """A recipe by its name, or a user's own TOML file."""
    if name in recipe_names():
        return made_of(Recipe, tomllib.loads((files(_PACKAGE) / f"{name}.toml").read_text(encoding="utf-8")))
    if not Path(name).is_file():
        raise broken(f"a recipe must be one of {' '.join(recipe_names())} or a TOML file", name, "check the name")
    return made_of(Recipe, read_toml(name))


def plan_of(recipe: Recipe, scale: str) -> ScalePlan:
    """The studies of a scale."""
    found = {str(known): plan for known, plan in recipe.scales.items()}
    if scale not in found:
        raise broken(f"this recipe must be run at {' or '.join(found)}", scale, "choose another --scale")
    return found[scale]
