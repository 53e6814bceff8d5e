"""``anisoscope verify-run``: whether every file of a run is what it was when the run was closed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter
from pydantic import Field

from anisoscope.cli.open_runs import clearly, opened
from anisoscope.cli.output import as_json, print_table, visible
from anisoscope.errors import AnisoscopeError
from anisoscope.study.setting_fields import CommandOptions

if TYPE_CHECKING:
    from anisoscope.store.recorded import Fault
    from anisoscope.store.run import Run


class VerifyRunCommand(CommandOptions):
    """Every option of `verify-run`."""

    format: Literal["table", "json"] = Field(
        default="table", description="`table`, or `json` with `ok`, `checked`, `recorded`, `faults` and `strays`."
    )


def verify_run(
    run: str,
    *,
    options: Annotated[VerifyRunCommand, Parameter(name="*")] = VerifyRunCommand(),  # noqa: B008
) -> None:
    """Check every file of RUN against the hashes recorded when it was closed.

    Reported are files that were changed, removed, or cannot be read, and Parquet files in the folder that are not part
    of the run. A run that is in progress or was killed has no hashes yet; each of its parts is checked against its own
    checksums. Exit status 1 if a file has changed.

    For example:

    * `anisoscope verify-run runs/pair`
    * `anisoscope verify-run s3://bucket/runs/pair --format json`

    Parameters
    ----------
    run
        Folder of the run, or an fsspec URL.

    """
    found = opened(run)
    with clearly(run):
        faults, strays = found.faults()
    if options.format == "json":
        print(as_json(_document(found, faults, strays)), flush=True)
    else:
        _print(found, faults, strays)
    if faults:
        raise AnisoscopeError(f"{len(faults)} file(s) of {run} changed since it was closed; restore them from a copy")


def _document(run: Run, faults: list[Fault], strays: list[str]) -> dict[str, object]:
    return {
        "ok": not faults,
        "checked": len(run.recorded or run.part_names()),
        "recorded": run.recorded is not None,
        "faults": [{"file": fault.name, "problem": fault.problem} for fault in faults],
        "strays": strays,
    }


def _print(run: Run, faults: list[Fault], strays: list[str]) -> None:
    listed = [[visible(fault.name), visible(fault.problem)] for fault in faults]
    listed += [[visible(name), "is not part of the run and is not read"] for name in strays]
    if listed:
        print_table(("file", "what"), listed)
    if run.recorded is None:
        parts = len(run.part_names())
        print(f"no hashes were kept: the run was not closed; {parts} part(s) checked against their own checksums")
    elif not faults:
        print(f"{len(run.recorded)} file(s) are unchanged since the run was closed")
