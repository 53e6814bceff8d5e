"""``anisoscope doctor``: what this installation and this machine have and lack, or what a scope watches in a model."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter
from pydantic import Field

from anisoscope.cli.output import as_json, visible
from anisoscope.errors import AnisoscopeError
from anisoscope.study.setting_fields import CommandOptions

if TYPE_CHECKING:
    from anisoscope.cli.machine_probes import MachineFinding

_COLOURS = {"ok": "green", "missing": "yellow", "broken": "red", "unknown": "yellow"}


class DoctorCommand(CommandOptions):
    """Every option of `doctor`."""

    json_: Annotated[bool, Parameter(name="--json", negative=(), show_default=False)] = Field(
        default=False,
        alias="json",
        description="Print JSON: `ok`, and `findings` with `name` `status` (ok, missing, broken, unknown) `value` "
        "`fix` `needed`. Of a model: `model`, `how`, `sites` with `view` `layer` `site`, `routers`, `notes`.",
    )
    trust_remote_code: Annotated[bool, Parameter(negative=())] = Field(
        default=False, description="Run code that is shipped with the model; only with a MODEL."
    )


def doctor(
    model: str | None = None,
    *,
    options: Annotated[DoctorCommand, Parameter(name="*")] = DoctorCommand(),  # noqa: B008
) -> None:
    """Show what is installed, which devices are available, and how to install what is missing.

    With a MODEL, show instead what a scope would watch in it and why: blocks, linear maps, embedding, routers. The
    configuration is enough; no weights are read. Exit status 1 if something that the core needs is missing or broken;
    missing extras do not count.

    For example:

    * `anisoscope doctor`
    * `anisoscope doctor --json`
    * `anisoscope doctor runs/mine/checkpoint-500`
    * `anisoscope doctor gpt2`

    Parameters
    ----------
    model
        Folder of a model or of its configuration, or its name on the hub.

    """
    if model is not None:
        from anisoscope.cli.watched_sites import show_model

        show_model(model, as_data=options.json_, trust_remote_code=options.trust_remote_code)
        return
    from anisoscope.cli.machine_probes import examined

    findings = examined()
    failed = [finding.name for finding in findings if finding.needed and finding.status != "ok"]
    if options.json_:
        print(as_json({"ok": not failed, "findings": [asdict(finding) for finding in findings]}), flush=True)
    else:
        _print(findings)
    if failed:
        raise AnisoscopeError(f"required by the core, but missing or broken here: {', '.join(failed)}")


def _print(findings: list[MachineFinding]) -> None:
    from rich.console import Console
    from rich.text import Text

    console = Console(highlight=False, soft_wrap=True)
    width = max(len(finding.name) for finding in findings)
    for finding in findings:
        line = Text(f"{finding.status:8}", style=_COLOURS[finding.status])
        line.append(f"{finding.name:{width}}  {visible(finding.value)}", style="default")
        if finding.fix:
            line.append(f"  →  {visible(finding.fix)}", style="bold")
        console.print(line)
