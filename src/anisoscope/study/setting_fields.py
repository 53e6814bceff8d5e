"""What all settings share: one declaration a setting gives its flag, its default, its help, its TOML key and its check.

A command takes one settings class as a flattened parameter (``Annotated[PairCommand, Parameter(name="*")]``). Needs no
torch: help and wrong use are answered before anything heavy is imported.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from anisoscope.errors import AnisoscopeError, BrokenRuleError, broken
from anisoscope.plugins import load_plugins


def split_commas(given: Any) -> Any:
    """Parts of texts with commas.

    >>> split_commas("4, 8"), split_commas(("4,8", 16))
    (('4', '8'), ('4', '8', 16))
    """
    if isinstance(given, str):
        given = (given,)
    if not isinstance(given, list | tuple):
        return given
    parts = (part.split(",") if isinstance(part, str) else [part] for part in given)
    flat = (piece.strip() if isinstance(piece, str) else piece for part in parts for piece in part)
    return tuple(piece for piece in flat if piece != "")


def known_words(what: str, words: Mapping[str, Any]) -> Callable[[Iterable[str] | None], Any]:
    """A check that every word is in a table of the vocabulary at that time: plugins may have added to it."""

    def check(given: Iterable[str] | None) -> Any:
        for word in given or ():
            if word not in words:
                raise ValueError(f"{what} must be among {' '.join(words)}")
        return given

    return check


def known_rank(given: Any) -> Any:
    """A whole number of at least 1, a share of the variance such as 95%, or ``id``.

    >>> known_rank("32"), known_rank("95%")
    (32, '95%')
    """
    if isinstance(given, str) and re.fullmatch(r"[+-]?\d+", given):
        given = int(given)
    if isinstance(given, int) and not isinstance(given, bool) and given >= 1:
        return given
    share = re.fullmatch(r"(\d+(?:\.\d+)?)%", given) if isinstance(given, str) else None
    if given == "id" or (share and 0 < float(share[1]) <= 100):
        return given
    raise ValueError("must be a whole number of at least 1, a share of the variance such as 95%, or id")


RANK = "Rank of the proxies: a number, or 95% (of the variance) or id (TwoNN dimension), both found for each site."
Rank = Annotated[int | str, BeforeValidator(known_rank)]
Words = Annotated[tuple[str, ...], BeforeValidator(split_commas)]
Numbers = Annotated[tuple[int, ...], BeforeValidator(split_commas)]
Reals = Annotated[tuple[float, ...], BeforeValidator(split_commas)]
Known = AfterValidator


LARGEST = 10**18 - 1


class Settings(BaseModel):
    """Frozen, and a typo is an error; so is a whole number that no file or library has room for."""

    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True)

    @model_validator(mode="after")
    def _have_room(self) -> Settings:
        for name in type(self).model_fields:
            given = getattr(self, name)
            for number in given if isinstance(given, tuple) else (given,):
                if isinstance(number, int) and abs(number) > LARGEST:
                    raise ValueError(f"--{name.replace('_', '-')} must have at most 18 digits, got {number}")
        return self


class CommandOptions(Settings):
    """What every command takes: a TOML file with any of its options. What is given as a flag counts before it."""

    config: Path | None = Field(
        default=None, description="TOML file with any of these options (underscores for dashes); flags override it."
    )

    @model_validator(mode="before")
    @classmethod
    def _read(cls, data: Any) -> Any:
        if not isinstance(data, Mapping) or not data.get("config"):
            return data
        return read_config(data["config"]) | dict(data)


class RunOptions(CommandOptions):
    """What every command takes that makes a run."""

    out: str | None = Field(
        default=None, description="Folder of the run, or an fsspec URL. By default: runs/DATE-TIME-COMMAND."
    )
    report: bool = Field(default=True, description="Write report.html into the run, starting with its first rows.")


class WithPlugins(Settings):
    """Settings of a command that measures."""

    plugins: Words = Field(default=(), description="Python files or modules that register measures, nulls or proxies.")

    @model_validator(mode="before")
    @classmethod
    def _load(cls, data: Any) -> Any:
        if isinstance(data, Mapping) and data.get("plugins"):
            load_plugins(split_commas(data["plugins"]))
        return data


Made = TypeVar("Made", bound=BaseModel)


def made_of(kind: type[Made], *layers: Mapping[str, Any]) -> Made:
    """Settings from layers, later ones before earlier ones; a rule that is broken is told in one line."""
    given: dict[str, Any] = {}
    for layer in layers:
        given |= layer
    try:
        return kind(**given)
    except ValidationError as error:
        raise told(error) from error


_RULES = {
    "int_parsing": "must be a whole number",
    "int_from_float": "must be a whole number",
    "float_parsing": "must be a number",
    "finite_number": "must be finite",
    "greater_than_equal": "must be at least {ge}",
    "greater_than": "must be above {gt}",
    "less_than_equal": "must be at most {le}",
    "less_than": "must be below {lt}",
    "literal_error": "must be {expected}",
    "extra_forbidden": "is not a setting",
    "too_short": "must name at least {min_length}",
}


def told(error: ValidationError) -> BrokenRuleError:
    """The first rule that settings break, under the name of its flag."""
    first = error.errors()[0]
    said = first["msg"].removeprefix("Value error, ")
    if not first["loc"]:  # a rule between settings names their values itself
        return BrokenRuleError(f"{said}; see --help")
    flag = f"--{str(first['loc'][0]).replace('_', '-')}"
    rule = _RULES.get(first["type"])
    if rule is not None:
        said = rule.format(**first.get("ctx", {}))
    stated = f"{flag} {said}" if rule is not None or said.startswith("must ") else f"{flag}: {said}"
    return broken(stated, repr(first.get("input"))[:80], "see --help")


def given_in(settings: BaseModel) -> dict[str, Any]:
    """The settings that were given, without the defaults."""
    return settings.model_dump(exclude_unset=True)


def part_of(settings: BaseModel, kind: type[Made]) -> Made:
    """The settings of one kind among those of a command; what was not given there stays not given."""
    return kind(**{name: value for name, value in given_in(settings).items() if name in kind.model_fields})


def read_config(file: str | Path) -> dict[str, Any]:
    """The table of a TOML file, which must not name another file."""
    found = read_toml(file)
    if "config" in found:
        raise broken("a configuration must not name another one", f"config in {file}", "put its settings here")
    return found


def read_toml(file: str | Path) -> dict[str, Any]:
    """The table of a TOML file."""
    try:
        return tomllib.loads(Path(file).read_text(encoding="utf-8"))
    except OSError as error:
        raise AnisoscopeError(f"cannot read {file}: {error.strerror or error}") from error
    except RecursionError as error:
        raise broken("a configuration must not be nested so deeply", file, "correct the file") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise broken("a configuration must be valid TOML", f"{file}: {error}", "correct the file") from error
