"""Concepts of the semi-NMF proxy with their top tokens."""

from __future__ import annotations

from anisoscope.report.reading import Context, Row
from anisoscope.report.tree import Block, Concepts, Section, Text

SHOWN_TOKENS = 12


def concepts_section(context: Context) -> Section:
    """Concepts of the semi-NMF proxy with their strongest tokens, at the last observation that has them.

    One layer a model stands open, the first with context; the others open on a click, and for print.
    """
    blocks: list[Block] = []
    for subject in context.subjects:
        rows = subject.pick("concept")
        for seed in subject.seeds[:1]:
            mine = [row for row in rows if row["seed"] == seed and row["layer"] is not None]
            last = max((row["step"] or 0 for row in mine), default=0)
            layers = sorted({row["layer"] for row in mine})
            for layer in layers:
                items = _concepts([r for r in mine if r["layer"] == layer and (r["step"] or 0) == last])
                if items:
                    seeded = f", seed {seed}" if len(subject.seeds) > 1 else ""
                    title = f"{subject.label}, layer {layer}, step {last:,}{seeded}"
                    blocks.append(Concepts(title, items, open=layer in layers[1:2] or len(layers) == 1))
    if not blocks:
        return Section("concepts", "Concepts", [Text("The run has no concepts of a semi-NMF proxy.")])
    intro = Text(
        "Semi-NMF writes activations as X ≈ Z·A with Z ≥ 0; a row of A is a concept, and the tokens with the largest "
        "codes Z are listed, strongest first. On a cloud with an offset, the span equals that of uncentred SVD: "
        "concepts are directions inside it, and a different seed may divide it differently. Tokens are shown as "
        "text: ␣ "
        "is a space, controls are symbols."
    )
    finding = f"{sum(len(b.items) for b in blocks if isinstance(b, Concepts)):,} concepts with their strongest tokens."
    return Section("concepts", "Concepts of the semi-NMF proxy", [intro, *blocks], finding)


def _concepts(rows: list[Row]) -> list[tuple[str, list[tuple[str, float | None]]]]:
    found: dict[int, list[tuple[int, str, float | None]]] = {}
    for row in rows:
        if row["item"] is not None and row["place"] is not None:
            token = row["token"] if row["token"] is not None else f"token {row['token_id']}"
            found.setdefault(row["item"], []).append((row["place"], _edges(token), row["value"]))
    return [
        (f"Concept {concept}", [(token, value) for _, token, value in sorted(tokens)[:SHOWN_TOKENS]])
        for concept, tokens in sorted(found.items())
    ]


def _edges(token: str) -> str:
    """Spaces at the ends of a token, made visible.

    >>> _edges(" the ")
    '␣the␣'
    """
    inner = token.strip(" ")
    before = len(token) - len(token.lstrip(" "))
    return "␣" * before + inner + "␣" * (len(token) - before - len(inner))
