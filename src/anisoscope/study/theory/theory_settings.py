"""What the theory laboratory is asked for. Needs no numpy."""

from __future__ import annotations

from typing import Any

from pydantic import Field, field_validator

from anisoscope.study.setting_fields import Numbers, Reals, Settings

FEWEST_PLACES = 4
NARROWEST = 0.1  # from the first exponent of the law of frequency to the last: closer ones give one and the same radius
QUICK: dict[str, Any] = {"draws": 100, "replicates": 6, "points": 800}


class Laboratory(Settings):
    """Every number of the laboratory."""

    dims: Numbers = Field(default=(1, 2, 4), description="Dimensions of the manifolds, separated by commas.")
    curvature: float = Field(  # its powers must stay finite, and above 0
        default=1.0, ge=1e-12, le=1e12, allow_inf_nan=False, description="Largest curvature of the manifolds."
    )
    radius: float = Field(
        default=0.05,
        gt=0,
        allow_inf_nan=False,
        description="Largest radius of a patch; fits go down to 1/30 of it.",
    )
    exponents: Reals = Field(
        default=(0.0, 0.25, 0.5, 0.75, 1.0, 1.25, 1.5, 1.75, 2.0),
        description="Exponents s of the frequency law: at least 4, from 0 to 3.",
    )
    falloff: float = Field(
        default=0.5,
        ge=0.01,
        le=2,
        allow_inf_nan=False,
        description="How fast the radius falls with frequency: t = t₀ (p_min/p)^falloff.",
    )
    draws: int = Field(default=1000, ge=1, description="Number of random cases on which the bounds are tested.")
    replicates: int = Field(default=12, ge=4, description="Repetitions of each simulation, for the intervals.")
    points: int = Field(default=2000, ge=100, description="Number of points in a patch.")
    seed: int = Field(default=0, ge=0, lt=2**32, description="Seed of every draw.")

    @field_validator("dims")
    @classmethod
    def _dimensions(cls, dims: tuple[int, ...]) -> tuple[int, ...]:
        if not dims or min(dims) < 1 or max(dims) > 64:
            raise ValueError("a manifold must have a dimension from 1 to 64")
        return tuple(sorted(set(dims)))

    @field_validator("exponents")
    @classmethod
    def _law(cls, exponents: tuple[float, ...]) -> tuple[float, ...]:
        found = tuple(sorted(set(exponents)))
        inside = all(0 <= s <= 3 for s in found)  # no NaN is
        if len(found) < FEWEST_PLACES or not inside or found[-1] - found[0] < NARROWEST:
            wanted = f"{FEWEST_PLACES} different exponents from 0 to 3 that span {NARROWEST:g} or more"
            raise ValueError(f"at least {wanted} are needed for a fit")
        return found
