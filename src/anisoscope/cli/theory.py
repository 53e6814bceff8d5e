"""``anisoscope theory``: the propositions about small patches, simulated and judged."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from anisoscope.cli.examining import display, finish
from anisoscope.cli.showing import print_table, short
from anisoscope.errors import broken

if TYPE_CHECKING:
    from anisoscope.store.run import Run


Flag = Annotated[bool, Parameter(negative=())]


def theory(
    *,
    out: str | None = None,
    draws: int | None = None,
    dims: Annotated[str | None, Parameter(help="Dimensions of the manifolds, separated by commas; 1,2,4.")] = None,
    exponents: Annotated[
        str | None, Parameter(help="Exponents s of the law of frequency, at least 4 from 0 to 3; 0,0.25,…,2.")
    ] = None,
    falloff: float | None = None,
    radius: float | None = None,
    curvature: float | None = None,
    replicates: int | None = None,
    points: int | None = None,
    seed: int | None = None,
    quick: Flag = False,
    report: bool = True,
) -> None:
    """Check on manifolds of known curvature what the theory says: scalings, the law of frequency, bounds on gradients.

    Exponents are fitted to simulated data and come with intervals. The counter-example to the published ratio of
    gradients is in the report, with a slider; the corrected bound is tried on random cases. Takes about 10 seconds.

    For example:

    * `anisoscope theory`
    * `anisoscope theory --quick --out runs/look`
    * `anisoscope theory --dims 1,2,8 --draws 5000 --seed 1`
    * `anisoscope theory --exponents 0,0.5,1,1.5 --falloff 1`

    Parameters
    ----------
    out
        Folder of the run; by default runs/DATE-TIME-theory.
    draws
        Random cases that the bounds are tried on; 1000.
    falloff
        How fast the radius falls with frequency: t = t₀ (p_min/p)^falloff; 0.5.
    radius
        Largest radius of a patch; 0.05. Fits go down to a thirtieth of it.
    curvature
        Largest curvature of the manifolds; 1.
    replicates
        Repetitions of each simulation, for the intervals; 12.
    points
        Points of a patch; 2000.
    seed
        Decides every draw; 0.
    quick
        A tenth of the cases, half of the repetitions, 800 points, for a look; flags that are given count all the same.
    report
        Write report.html into the run.

    """
    given = {
        "draws": draws,
        "dims": _numbers("dims", dims, int),
        "exponents": _numbers("exponents", exponents, float),
        "falloff": falloff,
        "radius": radius,
        "curvature": curvature,
        "replicates": replicates,
        "points": points,
        "seed": seed,
    }
    from anisoscope.study.theory import laboratory_of
    from anisoscope.study.theory import theory as study

    settings = laboratory_of(given, quick=quick)
    with display() as overseer:
        run = study(settings, overseer, out=out)
    _claims(run)
    finish(run, report=report, again="Run it again to begin anew.")


def _numbers(name: str, text: str | None, kind: type[int] | type[float]) -> tuple[float, ...] | None:
    if text is None:
        return None
    try:
        return tuple(kind(part) for part in text.split(","))
    except ValueError as error:
        whole = "whole numbers" if kind is int else "numbers"
        raise broken(f"--{name} must be {whole} separated by commas", repr(text), "write for example 1,2") from error


def _claims(run: Run) -> None:
    """Claim by claim, then the bounds."""
    from anisoscope.report.laboratory import BOUNDS, CLAIMS, Laboratory, precise

    lab = Laboratory(run.table().to_pylist())
    rows = [
        [words, short(lab.expected[key]["value"]), precise(lab.fits[key]), lab.fits[key]["note"]]
        for key, words in CLAIMS.items()
        if key in lab.fits
    ]
    print_table(["claim", "theory", "fitted [95 % interval]", "verdict"], rows, right=["theory"])
    print()
    held = [[name, lab.bounds[key]["note"]] for key, (name, _) in BOUNDS.items() if key in lab.bounds]
    print_table(["bound on normal/tangent gradient", "holds in"], held)
