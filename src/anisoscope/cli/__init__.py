"""The command line: one file a command. Help and errors never import torch."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from cyclopts import App, CycloptsError, Parameter
from pydantic import ValidationError

from anisoscope import __version__
from anisoscope.cli.ablate import ablate
from anisoscope.cli.checkpoints import checkpoints
from anisoscope.cli.compare import compare
from anisoscope.cli.doctor import doctor
from anisoscope.cli.error_handler import guarded
from anisoscope.cli.figures import figures
from anisoscope.cli.integrity import integrity
from anisoscope.cli.intervene import intervene
from anisoscope.cli.measure import measure
from anisoscope.cli.pair import pair
from anisoscope.cli.profile import profile
from anisoscope.cli.report import report
from anisoscope.cli.reproduce import reproduce
from anisoscope.cli.rows import rows
from anisoscope.cli.theory import theory
from anisoscope.cli.typed_numbers import as_typed
from anisoscope.cli.verify import verify
from anisoscope.cli.verify_run import verify_run
from anisoscope.cli.watch import watch
from anisoscope.cpu_cores import wait_without_spinning
from anisoscope.errors import BrokenRuleError
from anisoscope.study.setting_fields import told

app = App(
    name="anisoscope",
    help="Watch the geometry of a language model while it learns. Start with: `anisoscope pair`",
    version=__version__,
    result_action="return_value",
    default_parameter=Parameter(converter=as_typed, negative_iterable=()),
    suppress_keyboard_interrupt=False,
)
app.command(pair)
app.command(profile)
app.command(checkpoints)
app.command(ablate)
app.command(verify)
app.command(reproduce)
app.command(intervene)
app.command(theory)
app.command(report)
app.command(watch)
app.command(figures)
app.command(measure)
app.command(rows)
app.command(compare)
app.command(integrity)
app.command(verify_run)
app.command(doctor)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line: exit 0 for success, 2 for wrong use, 1 for failure, 130 when interrupted."""
    wait_without_spinning()
    sys.exit(code) if (code := guarded(lambda: _run(arguments))) else None


def _run(arguments: Sequence[str] | None) -> None:
    try:
        app(arguments, exit_on_error=False, print_error=False)
    except CycloptsError as error:
        broken_setting = error.__cause__ if isinstance(error.__cause__, ValidationError) else None
        raise (told(broken_setting) if broken_setting else BrokenRuleError(str(error))) from error
