"""Words that a reader who has not seen the documentation understands: nulls, proxies, shares."""

from __future__ import annotations

from collections.abc import Iterable

from anisoscope.report.formatting import listed
from anisoscope.report.ladder_findings import LadderFinding
from anisoscope.report.names import NULLS, SHORT
from anisoscope.verdict import Verdict
from anisoscope.vocabulary import PROXIES

HIDES = NULLS | {
    "pairing": "gradients rebuilt with the inputs of other sequences",
    "axes": "coordinate axes shared by activations and gradients",
    "targets": "gradients computed with shuffled targets",
    "targets-uniform": "gradients computed with random targets",
}
"""A null as the subject of a sentence."""
_NOT = "this null is not passed."
_MORE = "have a larger share of their energy there, not a smaller one"
_AS_MUCH = "have as large a share of their energy there, within the margin"
BEYOND = {
    "below": {
        "haar": f"random directions hold more, not less: {_NOT}",
        "pairing": f"{HIDES['pairing']} {_MORE}: {_NOT}",
        "axes": f"{HIDES['axes']} give more, not less: {_NOT}",
        "init": f"the untrained network shows more, not less: {_NOT}",
        "targets": f"{HIDES['targets']} {_MORE}: {_NOT}",
        "targets-uniform": f"{HIDES['targets-uniform']} {_MORE}: {_NOT}",
    },
    "equal": {
        "haar": f"random directions hold as much, within the margin: {_NOT}",
        "pairing": f"{HIDES['pairing']} {_AS_MUCH}: {_NOT}",
        "axes": f"{HIDES['axes']} give as much, within the margin: {_NOT}",
        "init": f"the untrained network shows as much, within the margin: {_NOT}",
        "targets": f"{HIDES['targets']} {_AS_MUCH}: {_NOT}",
        "targets-uniform": f"{HIDES['targets-uniform']} {_AS_MUCH}: {_NOT}",
    },
}
"""What is said of the first null that is not passed, by the outcome of most layers."""


HEADS = SHORT
"""A null as the head of a column."""


def gives(null: str) -> str:
    """A null in a list; one that was registered from outside goes by its name."""
    return NULLS.get(null, f"the null {null}")


def hides(null: str) -> str:
    """A null as the subject of a sentence."""
    return HIDES.get(null, f"the null {null}")


def beyond(outcome: str | None, null: str) -> str | None:
    """What is said of the first null that is not passed, if its outcome has a sentence."""
    told = BEYOND.get(outcome or "")
    return None if told is None else told.get(null, f"the null {null} is {outcome}: {_NOT}")


def listed_nulls(nulls: Iterable[str]) -> str:
    """Nulls in a row, as words."""
    return listed([gives(null) for null in nulls])


def directions(f: LadderFinding) -> str:
    """The proxy in words: 32 main activation directions."""
    rank = PROXIES[f.proxy].rank if f.proxy in PROXIES else None
    k = rank or f.subject.rank
    many = f"{k} " if isinstance(k, int) and k > 1 else ""
    rule = ""
    if isinstance(k, str):
        what = "the intrinsic dimension" if k == "id" else f"hold {k.removesuffix('%')} % of the variance"
        rule = f" (at each site, as many as {what})"
    frozen = " (fitted on the first 30 % of training)" if f.timing == "anchored" else ""
    words = {
        "pca": f"{many}main activation directions",
        "svd": f"{many}main activation directions about the origin",
        "semi_nmf": f"{many}semi-NMF concept directions",
        "mean": "mean activation directions",
        "haar": f"{many}random directions",
    }
    return words.get(f.proxy, f"{many}directions by {f.proxy}") + rule + frozen


def percent(share: float) -> str:
    """A share of the whole, two digits; three where it is nearly all.

    >>> percent(0.814), percent(0.25), percent(0.0042), percent(0.9987), percent(1.0)
    ('81 %', '25 %', '0.42 %', '99.9 %', '100 %')
    """
    shown = f"{100 * share:.3g}" if 0.99 < share < 1 else f"{100 * share:.2g}"
    return f"{float(shown):g} %"


def short(count: float) -> str:
    """A count, or an average of counts.

    >>> short(5.0), short(4.36)
    ('5', '4.4')
    """
    return f"{count:.0f}" if abs(count - round(count)) < 0.05 else f"{count:.1f}"


def counted_layers(count: float, v: Verdict) -> str:
    """So many layers of all, in words that fit: all 5 layers, 4 of 5 layers, 3.5 of 5 on average."""
    total = short(v.total)
    parts = v.parts.removesuffix("s") if total == "1" else v.parts
    if count > v.total - 0.05:
        return f"the one {parts}" if total == "1" else f"all {total} {parts}"
    if abs(count - round(count)) < 0.05:
        return f"{count:.0f} of {total} {parts}"
    return f"{count:.1f} of {total} {parts} on average"
