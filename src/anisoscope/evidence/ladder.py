"""The ladder applied to evidence: q over the layers of one model and step, then the rule of ``anisoscope.verdict``."""

from __future__ import annotations

import math
from collections.abc import Sequence

from anisoscope import verdict
from anisoscope.errors import broken
from anisoscope.evidence.inference import adjust
from anisoscope.evidence.result import Evidence
from anisoscope.vocabulary import ladder_of


def ladder(evidences: Sequence[Evidence], *, view: str, margin: float = verdict.MARGIN) -> verdict.Ladder:
    """Verdicts of the layers (by their place in ``evidences``) and of the model; p is adjusted over the layers."""
    if not evidences:
        raise broken("a ladder must have at least one layer", 0, "pass the evidence of each layer")
    rows = []
    for null in ladder_of(view):
        q = adjust([evidence.p.get(null, math.nan) for evidence in evidences])
        for layer, evidence in enumerate(evidences):
            found = evidence.enrichment.get(null)
            rows.append(
                {
                    "layer": layer,
                    "null": null,
                    "q": float(q[layer]),
                    "value": None if found is None or evidence.undetermined else found.value,
                    "p": evidence.p.get(null),
                    **{name: getattr(found, name, None) for name in ("low", "high", "low90", "high90")},
                }
            )
    return verdict.ladder(rows, view=view, margin=margin)
