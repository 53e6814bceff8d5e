"""``anisoscope integrity``: whether checkpoints are what their labels say."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter
from pydantic import Field

from anisoscope.cli.early_checks import require_checkpoints
from anisoscope.cli.output import as_json, print_table, visible
from anisoscope.errors import broken
from anisoscope.study.setting_fields import CommandOptions

if TYPE_CHECKING:
    from anisoscope.study.checkpoints.histories import History


class IntegrityCommand(CommandOptions):
    """Every option of `integrity`."""

    revisions: str | None = Field(
        default=None,
        description="Names separated by commas; `auto` for all whose name gives a step or a number of tokens; "
        "`pythia` for its 154 steps.",
    )
    allow_pickle: Annotated[bool, Parameter(negative=())] = Field(
        default=False, description="Read .bin files too, with weights_only=True."
    )
    format: Literal["table", "json"] = Field(
        default="table", description="`table`, or `json` with the hash of every checkpoint and all findings."
    )


def integrity(
    *checkpoints: Annotated[str, Parameter(negative=())],
    options: Annotated[IntegrityCommand, Parameter(name="*")] = IntegrityCommand(),  # noqa: B008
) -> None:
    """Check that the CHECKPOINTS of a training history are what their labels say.

    Every tensor of every checkpoint is hashed, without loading a model. Reported are: labels with the weights of
    another, whole or in part; checkpoints that cannot be read, are missing, or have another shape; a step 0 from which
    the training did not begin. Exit status 1 if any of them should not be in a curve.

    For example:

    * `anisoscope integrity runs/mine/checkpoint-*`
    * `anisoscope integrity runs/mine` (the checkpoints inside)
    * `anisoscope integrity EleutherAI/pythia-160m --revisions step0,step512,step143000`
    * `anisoscope integrity EleutherAI/pythia-2.8b --revisions pythia`

    Parameters
    ----------
    checkpoints
        Folders or files of weights, or with --revisions the name of one model on the hub.

    """
    if not checkpoints:
        raise broken("integrity needs checkpoints", "none", "name their folders")
    require_checkpoints(checkpoints, options.revisions)
    from anisoscope.study.checkpoints.histories import checked, origins_of

    if options.allow_pickle:
        print("reading .bin files, which are pickles, with weights_only=True", file=sys.stderr)
    origins, expected = origins_of(checkpoints, options.revisions)
    history = checked(
        origins, expected=expected, allow_pickle=options.allow_pickle, begun=_begun if sys.stderr.isatty() else None
    )
    if sys.stderr.isatty():
        print("\r\033[K", end="", file=sys.stderr)
    if options.format == "json":
        print(as_json(_plain(history)))
    else:
        _show(history)
    if len(history.trusted) < len(history.checkpoints):
        sys.exit(1)


def _begun(label: str, number: int, total: int) -> None:
    print(f"\r\033[K{number + 1} of {total}: {visible(label)}", end="", file=sys.stderr, flush=True)


def _show(history: History) -> None:
    rows = []
    for one in history.checkpoints:
        about = [finding for finding in history.findings if finding.label == one.label]
        mark = "left out" if any(finding.excluded for finding in about) else "told" if about else "ok"
        digest = "" if one.weights is None else one.weights.digest[:12]
        tensors = "" if one.weights is None else str(len(one.weights.tensors))
        rows.append([visible(one.label), tensors, digest, mark, visible("; ".join(f.text for f in about))])
    print_table(["checkpoint", "tensors", "hash", "", "note"], rows, right=["tensors"])
    absent = [finding.label for finding in history.findings if finding.kind == "missing"]
    if absent:
        more = f" and {len(absent) - 8} more" if len(absent) > 8 else ""
        print(f"missing: {visible(', '.join(absent[:8]))}{more}")
    print(f"{len(history.trusted)} of {len(history.checkpoints)} checkpoints have nothing found against them")


def _plain(history: History) -> dict[str, object]:
    return {
        "checkpoints": [
            {"label": one.label, "at": one.at, "hash": None if one.weights is None else one.weights.digest}
            for one in history.checkpoints
        ],
        "findings": [
            {"kind": f.kind, "label": f.label, "text": f.text, "excluded": f.excluded} for f in history.findings
        ],
    }
