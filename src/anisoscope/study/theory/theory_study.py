"""The theory laboratory: propositions about small patches, simulated, fitted and judged, as a run like any other."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
from scipy import stats

from anisoscope.jobs.job_pool import JobListener, JobOutcome, Task, fixed_threads
from anisoscope.store.run import Run, create_run
from anisoscope.study.run_closing import closing
from anisoscope.study.theory.bounds import BoundCase, random_cases
from anisoscope.study.theory.experiments import Scaling, chords, counter_example, gradients, mixtures, variances
from anisoscope.study.theory.manifolds import all_patches, require_inside, sphere
from anisoscope.study.theory.power_law import Fit, estimated, fit_limit, fit_power
from anisoscope.study.theory.theory_settings import Laboratory

PLACES, DECADES = 10, 1.5
CLAIMS = 13  # whose intervals hold all at once
STAGES = ("chord and arc", "variances", "gradients", "frequency law", "counter-example", "bounds")
_PAIRS = 10  # of every type
STEPS = 20  # tilts of the counter-example
WIDEST_RADIUS = 0.5  # of the counter-example

Row = dict[str, Any]
Told = Callable[[float], None]


def theory(settings: Laboratory, listener: JobListener, *, out: str | Path | None = None, page: bool = False) -> Run:
    """Run every experiment into a new run, by default ``runs/<date-time>-theory``."""
    require_inside(settings.radius, settings.curvature)
    from anisoscope.record.run_provenance import provenance  # its imports take seconds, wrong settings should not

    folder = out if out is not None else Path("runs") / f"{datetime.now():%Y%m%d-%H%M%S}-theory"
    run = create_run(
        folder,
        config=settings.model_dump(mode="json"),
        kind="theory",
        seeds=[settings.seed],
        **provenance(),
    )
    with closing(run, page=page) as ending:
        with fixed_threads(1):  # thousands of small products, which threads only slow down
            _Experiments(run, settings, listener).all()
        ending.status = "finished"
    return run


class _Experiments:
    """The stages, each of which ends with its rows in the run and has random numbers of its own."""

    def __init__(self, run: Run, settings: Laboratory, listener: JobListener) -> None:
        self._run, self._settings, self._overseer = run, settings, listener
        self._patches = all_patches(settings.dims, settings.curvature)
        self._radii = np.geomspace(settings.radius / 10**DECADES, settings.radius, PLACES)

    def all(self) -> None:
        """One stage after the other."""
        acts = (self._chords, self._variances, self._gradients, self._mixtures, self._counter_example, self._bounds)
        self._overseer.begun(STAGES)
        for number, (name, act) in enumerate(zip(STAGES, acts, strict=True)):
            with _stage(self._overseer, name) as told:
                rows = act(np.random.default_rng((self._settings.seed, number)), told)
            about = {"seed": self._settings.seed}
            self._run.write(name.replace(" ", "-"), [about | row for row in rows])

    def _chords(self, rng: np.random.Generator, told: Told) -> list[Row]:
        # An arc may be longer than a radius: with short ones, rounding of a² − c² would be seen.
        found = chords(4 * self._radii, self._settings.curvature, self._settings.replicates, rng)
        return _rows_of(found)

    def _variances(self, rng: np.random.Generator, told: Told) -> list[Row]:
        s = self._settings
        return _rows_of(variances(self._patches, self._radii, s.replicates, s.points, rng, told))

    def _gradients(self, rng: np.random.Generator, told: Told) -> list[Row]:
        s = self._settings
        return _rows_of(gradients(self._patches, self._radii, s.replicates, s.points, rng, told))

    def _mixtures(self, rng: np.random.Generator, told: Told) -> list[Row]:
        s = self._settings
        patch = sphere(s.dims[-1], s.curvature)
        found, effective = mixtures(patch, s.exponents, s.radius, s.falloff, s.replicates, _PAIRS, rng, told)
        seen = found.replicates
        shares = attenuations(seen)
        expected = (effective / effective[0]) ** 2
        rows = _rows_of([found])
        for k, exponent in enumerate(s.exponents):
            fit = shares[k]
            about = {"model": patch.label, "parameter": exponent}
            rows.append(_number("attenuation", fit, **about))
            rows.append(_number("attenuation_expected", float(expected[k]), **about))
            rows.append(_number("effective_radius", float(effective[k]), **about))
        # The sum over types is exact only in the limit: half the radius shows how far off that is.
        ends = s.exponents[0], s.exponents[-1]
        half = mixtures(patch, ends, s.radius / 2, s.falloff, s.replicates, _PAIRS, rng)[0].replicates
        last = estimated(seen[:, -1] / seen[:, 0], half[:, -1] / half[:, 0], confidence=_confidence())
        return rows + _judged("attenuation", last, float(expected[-1]))

    def _counter_example(self, rng: np.random.Generator, told: Told) -> list[Row]:
        rows = []
        for t in np.geomspace(WIDEST_RADIUS / 50, WIDEST_RADIUS, PLACES).tolist():
            for tilt, tangent, normal, gamma in counter_example(range(STEPS + 1), STEPS, t):
                about = {"model": "parabola", "rank": 1, "radius": t, "parameter": tilt}
                rows.append(_number("counter_tangent", tangent, **about))
                rows.append(_number("counter_normal", normal, **about))
                rows.append(_number("counter_gamma", gamma, **about))
        return rows

    def _bounds(self, rng: np.random.Generator, told: Told) -> list[Row]:
        s = self._settings
        cases = list(random_cases(s.draws, s.dims, min(4 * s.radius, 0.5 / s.curvature), s.curvature, rng, told))
        rows = [row for number, case in enumerate(cases) for row in _rows_of_case(number, case)]
        held = [case.held_holds for case in cases if case.held_holds is not None]
        rows.append(_counted("published", [case.published_holds for case in cases]))
        rows.append(_counted("corrected", [case.corrected_holds for case in cases]))
        return rows + ([_counted("held-out", held)] if held else [])


def fitted(scaling: Scaling) -> Fit:
    """The exponent (or limit) of a scaling over all its manifolds."""
    fit = fit_limit if scaling.limit else fit_power
    return fit(scaling.places, scaling.replicates, confidence=_confidence())


def attenuations(seen_RK: np.ndarray) -> list[Fit]:
    """Visible curvature by exponent over that at the first one, with 95 % intervals.

    Divided replicate by replicate: a common denominator is as noisy as what it divides, and its noise would not show.
    """
    shares_RK = seen_RK / seen_RK[:, :1]
    return [estimated(share_R, share_R, confidence=0.95) for share_R in shares_RK.T]


def _confidence() -> float:
    """Of one interval, so that all claims' intervals hold at once with 95 %."""
    return 1 - 0.05 / CLAIMS


def _rows_of(scalings: list[Scaling]) -> list[Row]:
    rows = []
    for scaling in scalings:
        for label, y_RK in scaling.curves.items():
            for k, x in enumerate(scaling.places.tolist()):
                fit = estimated(y_RK[:, k], y_RK[:, k], confidence=0.95)
                rows.append(_number(scaling.claim, fit, model=label, radius=x))
        rows += _judged(scaling.claim, fitted(scaling), scaling.expected)
    return rows


def _judged(claim: str, fit: Fit, expected: float) -> list[Row]:
    judged = {"outcome": fit.outcome(expected), "detectable": fit.detectable, "se": fit.se, "df": fit.n - 1}
    rows = [
        _number("fit", fit, variant=claim, **judged),
        _number("fit_expected", expected, variant=claim),
        _number("fit_shift", fit.shift, variant=claim),
    ]
    return rows if fit.r2 is None else [*rows, _number("fit_r2", fit.r2, variant=claim)]


def _rows_of_case(number: int, case: BoundCase) -> list[Row]:
    about = {
        "model": case.patch,
        "rank": case.dim,
        "subset": case.sampling,
        "item": number,
        "radius": case.radius,
        "n": case.tokens,
    }
    gamma = case.gamma
    rows = [
        _number("draw_ratio", case.ratio, **about),
        _number("draw_published", case.published, **about),
        _number("draw_corrected", case.corrected, **about),
        _number("draw_gamma", gamma.value, **about) | {"low": gamma.low, "high": gamma.high, "p": gamma.p},
    ]
    if case.held_bound is not None:
        rows.append(_number("draw_held_bound", case.held_bound, **about))
        rows.append(_number("draw_held_ratio", case.held_ratio, **about))
    return rows


def _counted(bound: str, holds: list[bool]) -> Row:
    test = stats.binomtest(sum(holds), len(holds)).proportion_ci()
    row = _number("bound_holds", sum(holds) / len(holds), variant=bound, n=len(holds))
    return row | {"low": float(test.low), "high": float(test.high), "note": f"{sum(holds)} of {len(holds)}"}


def _number(measure: str, value: float | Fit, **about: Any) -> Row:
    if not isinstance(value, Fit):
        return {"measure": measure, "value": value} | about
    return {"measure": measure, "value": value.value, "low": value.low, "high": value.high, "n": value.n} | about


@contextlib.contextmanager
def _stage(listener: JobListener, name: str) -> Iterator[Told]:
    """One stage as the display sees it."""
    task, began = Task(name, _stage), time.monotonic()
    listener.started(name)
    try:
        yield lambda share: listener.progressed(name, share, "")
    except Exception as error:
        why = str(error) or type(error).__name__
        listener.ended(JobOutcome(task, error=why, seconds=time.monotonic() - began))
        raise
    listener.ended(JobOutcome(task, seconds=time.monotonic() - began))
