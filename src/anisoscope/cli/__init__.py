"""The command line: one file a command. Help and errors never import torch."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from cyclopts import App, CycloptsError, Parameter
from pydantic import ValidationError
from rich.console import Console

from anisoscope import __version__
from anisoscope.cli.checkpoints import checkpoints
from anisoscope.cli.compare import compare
from anisoscope.cli.doctor import doctor
from anisoscope.cli.figures import figures
from anisoscope.cli.integrity import integrity
from anisoscope.cli.measure import measure
from anisoscope.cli.numbers import as_typed
from anisoscope.cli.pair import pair
from anisoscope.cli.profile import profile
from anisoscope.cli.report import report
from anisoscope.cli.rows import rows
from anisoscope.cli.theory import theory
from anisoscope.cli.verify_run import verify_run
from anisoscope.errors import AnisoscopeError, BrokenRuleError
from anisoscope.study.options import told

app = App(
    name="anisoscope",
    help="Watch the geometry of a language model while it learns. Begin with: `anisoscope pair`",
    version=__version__,
    result_action="return_value",
    default_parameter=Parameter(converter=as_typed, negative_iterable=()),
    suppress_keyboard_interrupt=False,
)
app.command(pair)
app.command(profile)
app.command(checkpoints)
app.command(theory)
app.command(report)
app.command(figures)
app.command(measure)
app.command(rows)
app.command(compare)
app.command(integrity)
app.command(verify_run)
app.command(doctor)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line: exit 0 for success, 2 for wrong use, 1 for failure, 130 when interrupted."""
    errors = Console(stderr=True, soft_wrap=True, highlight=False)
    try:
        app(arguments, exit_on_error=False, print_error=False)
    except (CycloptsError, BrokenRuleError) as error:
        broken_setting = error.__cause__ if isinstance(error.__cause__, ValidationError) else None
        said = error if broken_setting is None or isinstance(error, BrokenRuleError) else told(broken_setting)
        errors.print(f"error: {said}", style="red", markup=False)
        sys.exit(2)
    except AnisoscopeError as error:
        errors.print(f"error: {error}", style="red", markup=False)
        sys.exit(1)
    except BrokenPipeError:  # the reader of a pipe went away, as `| head` does
        sys.stderr.close()
        sys.exit(1)
    except KeyboardInterrupt:
        errors.print("interrupted", style="yellow")
        sys.exit(130)
