"""Where the numbers come from: configuration, seeds, versions, hashes, duration, and what is missing."""

from __future__ import annotations

from collections import Counter
from datetime import datetime
from typing import Any

from anisoscope.report.formatting import counted
from anisoscope.report.reading import Context, Source
from anisoscope.report.sections.cost_summary import cost_in_words
from anisoscope.report.tree import Block, Cell, Section, Table, Text, Tone

NOTES = 15
_ELSEWHERE = ("integrity", "sites", "plan", "done", "failed")  # shown in their own place, or in every row
FIRST = (
    "name",
    "kind",
    "status",
    "created",
    "ended",
    "duration",
    "corpus",
    "seeds",
    "steps",
    "machine",
    "versions",
    "hashes",
)


def status(context: Context) -> list[Text]:
    """Sentences that must stand at the top: a run in progress, one broken off, damaged parts."""
    found = []
    for source in context.sources:
        head = f"{source.label}:" if context.compare else "Note:"
        steps = [row["step"] for row in source.rows if row["step"] is not None]
        reached = f"observations up to step {max(steps):,} of {source.steps:,}" if steps else "no observations yet"
        reached = f"{counted(len(source.rows), 'row')} so far" if source.is_theory else reached  # there are no steps
        tone: Tone = "open"
        if source.status == "running":
            text = f"this run is still in progress ({reached}). Everything below describes the rows so far."
            found.append(Text(text, head, tone))
        elif source.status != "finished":
            reason = source.manifest.get("reason")
            why = f" It failed: {reason}." if isinstance(reason, str) else ""
            found.append(Text(f"this run did not finish: its status is {source.status} ({reached}).{why}", head, "no"))
        if source.damaged:
            damaged = f"{counted(len(source.damaged), 'part')} of the run could not be read and are left out: "
            found.append(Text(damaged + ", ".join(source.damaged[:5]), head, "no"))
        if source.strays:
            strays = f"{counted(len(source.strays), 'file')} in the folder are not part of the run and are left out: "
            found.append(Text(strays + ", ".join(source.strays[:5]), head, "no"))
        if not source.rows:
            found.append(Text("the run has no rows.", head, tone))
        found += [Text(text, head, "open") for text in untrusted(source)]
    return found


def untrusted(source: Source) -> list[str]:
    """What a study of checkpoints went on without, in words."""
    integrity, failed = source.manifest.get("integrity"), source.manifest.get("failed")
    told = integrity if isinstance(integrity, dict) else {}
    left_out = told.get("left_out")
    found = []
    if isinstance(left_out, dict) and left_out:
        total, names = told.get("checkpoints", "?"), ", ".join(list(left_out)[:6])
        more = f" and {len(left_out) - 6} more" if len(left_out) > 6 else ""
        found.append(
            f"{len(left_out)} of {total} checkpoints are left out of every curve: {names}{more}. The section on "
            "integrity says why."
        )
    if isinstance(failed, dict) and failed:
        found.append(f"{counted(len(failed), 'job')} failed and are missing from curves: {', '.join(failed)}.")
    return found


def integrity_section(context: Context) -> Section | None:
    """Whether checkpoints are what their labels say; None where no run is of checkpoints."""
    blocks: list[Block] = []
    for source in context.sources:
        told = source.manifest.get("integrity")
        if not isinstance(told, dict):
            continue
        findings, left_out = told.get("findings") or [], told.get("left_out") or {}
        studied = told.get("studied") or []
        text = (
            f"{len(studied)} of {told.get('checkpoints', '?')} checkpoints are studied: {', '.join(map(str, studied))}."
        )
        blocks.append(Text(text, f"{source.label}:", "open" if left_out else "yes"))
        rows = [
            [Cell(str(f.get("label"))), Cell(str(f.get("kind"))), Cell(_mark(f, left_out)), Cell(str(f.get("text")))]
            for f in findings
            if isinstance(f, dict)
        ]
        told_of = {str(f.get("label")) for f in findings if isinstance(f, dict)}
        rows += [
            [Cell(label), Cell("no step"), Cell("left out"), Cell(str(why))]
            for label, why in left_out.items()
            if label not in told_of
        ]
        if rows:
            caption = (
                "Every tensor of every checkpoint was hashed. Public histories are not always what their labels say: "
                "branches that serve other weights, whole or in part, would silently flatten a curve."
            )
            columns = ["checkpoint", "finding", "", "what was found"]
            blocks.append(Table(f"integrity-{source.label}", "PartialEvaluation", caption, columns, rows))
    heads = [b.text.split(":")[0] for b in blocks if isinstance(b, Text)]
    return Section("integrity", "Integrity of the checkpoints", blocks, "; ".join(heads) + ".") if blocks else None


def _mark(finding: dict[str, Any], left_out: dict[str, Any]) -> str:
    return "left out" if finding.get("label") in left_out else "told"


def provenance_section(context: Context, thinned: int | None) -> Section:
    """One table a run, and the observations that were skipped."""
    blocks: list[Block] = []
    for source in context.sources:
        blocks.append(_table(source))
        blocks += [table for table in (_skipped(source), _notes(source)) if table is not None]
    if thinned is not None:
        blocks.append(
            Text(
                f"To keep the page under 5 MB, curves show at most {thinned} observations, evenly spaced, including "
                "the first and the last."
            )
        )
    return Section("provenance", "Provenance", blocks, "; ".join(map(_finding, context.sources)) + ".")


def _finding(source: Source) -> str:
    """Rows, time and version."""
    versions = source.manifest.get("versions")
    own = versions.get("anisoscope") if isinstance(versions, dict) else None
    took = duration(source.manifest)
    parts = [counted(len(source.rows), "row"), *([f"took {took}"] if took else [])]
    return ", ".join([*parts, *([f"anisoscope {own}"] if isinstance(own, str) else [])])


def _table(source: Source) -> Table:
    facts = {key: value for key, value in source.manifest.items() if key not in _ELSEWHERE}
    facts["duration"] = duration(facts)
    config = facts.pop("config", None)
    order = [*(key for key in FIRST if facts.get(key) is not None), *(key for key in facts if key not in FIRST)]
    lines = [(key, text) for name in order for key, text in _flat(name, facts[name])]
    lines += [("rows", f"{len(source.rows):,}"), ("observed at", _observed(source)), ("path", source.path)]
    cost = cost_in_words(source.rows)
    lines += [("cost of watching", cost)] if cost else []
    lines += _flat("config", config) if config else [("config", "none recorded")]
    rows = [[Cell(key), Cell(text)] for key, text in lines]
    caption = "From the manifest of the run; entries that it lacks are not shown."
    return Table(f"provenance-{source.label}", source.label, caption, ["what", "value"], rows)


def _flat(name: str, value: Any) -> list[tuple[str, str]]:
    """Lines of a table: settings one by one, other leaves of one branch together."""
    if not isinstance(value, dict):
        return [(name, _leaf(value))]
    leaves = {key: part for key, part in value.items() if not isinstance(part, dict)}
    together = len(leaves) > 1 and not name.startswith("config")
    lines = [(name, " · ".join(f"{key} {_leaf(part)}" for key, part in leaves.items()))] if together else []
    rest = value.items() if not together else [(k, part) for k, part in value.items() if k not in leaves]
    return lines + [pair for key, part in rest for pair in _flat(f"{name}.{key}", part)]


def _leaf(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(map(str, value)) or "none"
    return "null" if value is None else str(value)


def _observed(source: Source) -> str:
    steps = sorted({row["step"] for row in source.rows if row["step"] is not None and row["measure"] == "enrichment"})
    return f"steps {', '.join(map(str, steps))}" if steps else "no step"


def duration(manifest: dict[str, Any]) -> str | None:
    """How long a run took, where it says.

    >>> duration({"created": "2026-01-01T10:00:00+00:00", "ended": "2026-01-01T11:02:03+00:00"})
    '1:02:03'
    """
    try:
        return str(datetime.fromisoformat(manifest["ended"]) - datetime.fromisoformat(manifest["created"]))
    except (KeyError, TypeError, ValueError):  # still running, or of another hand
        return None


def _notes(source: Source) -> Table | None:
    """What rows say about themselves, the commonest first."""
    notes: Counter[str] = Counter()
    measures: dict[str, set[str]] = {}
    for row in source.rows:
        if row["note"] and row["measure"] not in ("concept", "skipped"):
            notes[row["note"]] += 1
            measures.setdefault(row["note"], set()).add(row["measure"] or "–")
    if not notes:
        return None
    rows = [
        [Cell(note), Cell(f"{n:,}"), Cell(", ".join(sorted(measures[note])))] for note, n in notes.most_common(NOTES)
    ]
    left = f" {len(notes) - NOTES:,} rarer ones are not shown." if len(notes) > NOTES else ""
    caption = f"Notes on rows, with the number of rows and their measures.{left}"
    return Table(f"notes-{source.label}", "Notes on rows", caption, ["note", "rows", "measures"], rows)


def _skipped(source: Source) -> Table | None:
    reasons: Counter[str] = Counter()
    steps: dict[str, list[int]] = {}
    for row in source.rows:
        if row["measure"] == "skipped":
            why = row["note"] or "no reason given"
            reasons[why] += 1
            steps.setdefault(why, []).append(row["step"] if row["step"] is not None else -1)
    if not reasons:
        return None
    rows = [
        [Cell(why), Cell(f"{n:,}"), Cell(", ".join(map(str, sorted(set(steps[why]))[:12])))]
        for why, n in reasons.items()
    ]
    caption = "Observations that were due but were skipped."
    return Table(f"skipped-{source.label}", "Skipped observations", caption, ["reason", "times", "steps"], rows)
