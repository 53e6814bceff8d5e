"""``anisoscope theory``: the propositions about small patches, simulated and judged."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter
from pydantic import Field

from anisoscope.cli.command_end import end_with_answer
from anisoscope.cli.early_checks import require_new_run
from anisoscope.cli.model_command import display
from anisoscope.cli.output import print_table, short
from anisoscope.study.setting_fields import RunOptions, given_in, made_of, part_of
from anisoscope.study.theory.theory_settings import QUICK, Laboratory

if TYPE_CHECKING:
    from anisoscope.store.run import Run


class TheoryRun(RunOptions):
    """What `theory` takes beside the numbers of the laboratory."""

    quick: Annotated[bool, Parameter(negative=())] = Field(
        default=False,
        description="A tenth of the cases, half of the repetitions, 800 points; options that are given override it.",
    )


class TheoryCommand(Laboratory, TheoryRun):
    """Every option of `theory`."""


def theory(*, options: Annotated[TheoryCommand, Parameter(name="*")] = TheoryCommand()) -> None:  # noqa: B008
    """Test the theory on manifolds of known curvature: scalings, the frequency law, bounds on gradients.

    The theory is that of Bernas et al. (2026, arXiv:2604.08764): gradients concentrate along the tangent. Exponents are
    fitted to simulated data and come with intervals. The report shows the counter-example to the published ratio of
    gradients, with a slider; the corrected bound is tested on random cases. Takes about 10 seconds.

    For example:

    * `anisoscope theory`
    * `anisoscope theory --quick --out runs/look`
    * `anisoscope theory --dims 1,2,8 --draws 5000 --seed 1`
    * `anisoscope theory --exponents 0,0.5,1,1.5 --falloff 1`
    """
    asked = made_of(Laboratory, QUICK if options.quick else {}, given_in(part_of(options, Laboratory)))
    began = time.monotonic()
    require_new_run(options.out)
    from anisoscope.study.theory.theory_study import theory as study

    with display() as listener:
        run = study(asked, listener, out=options.out, page=options.report)
    _claims(run)
    end_with_answer(run, began, report=options.report, again="Run it again to start over.")


def _claims(run: Run) -> None:
    """Claim by claim, then the bounds."""
    from anisoscope.report.sections.theory.laboratory import BOUNDS, CLAIMS, LaboratoryRows, precise

    lab = LaboratoryRows(run.whole_table().to_pylist())
    rows = [
        [words, short(lab.expected[key]["value"]), precise(lab.fits[key]), lab.said(key)]
        for key, words in CLAIMS.items()
        if key in lab.fits
    ]
    print_table(["claim", "theory", "fitted [95 % interval]", "verdict"], rows, right=["theory"])
    print()
    held = [[name, lab.bounds[key]["note"]] for key, (name, _) in BOUNDS.items() if key in lab.bounds]
    print_table(["bound on normal/tangent gradient", "holds in"], held)
