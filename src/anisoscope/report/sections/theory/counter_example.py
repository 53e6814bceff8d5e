"""The counter-example to the published ratio of gradients, with a slider."""

from __future__ import annotations

from anisoscope.report.formatting import number
from anisoscope.report.sections.theory.laboratory import THEORY, LaboratoryRows
from anisoscope.report.tree import Axis, Block, Control, Figure, Point, Series, Text, values_of


def counter_example_blocks(lab: LaboratoryRows) -> list[Block]:
    """Two figures that one slider moves: what both sides contribute, and the ratio beside its bounds."""
    tangent, normal, gamma = (_grid(lab, f"counter_{name}") for name in ("tangent", "normal", "gamma"))
    if not tangent or tangent.keys() != normal.keys() or tangent.keys() != gamma.keys():
        return []
    radii = sorted({t for t, _ in tangent})
    tilts = sorted({tilt for _, tilt in tangent})
    values = [f"{tilt:.2f}" for tilt in tilts]
    widest, chosen = radii[-1], values[min(3, len(values) - 1)]
    words = [_slid(widest, tangent[widest, k], normal[widest, k], gamma[widest, k]) for k in tilts]
    slider = Control("tilt", "Imbalance of the two sides", values, chosen, words)
    pulls, ratios = [], []
    parabola = [Point(widest * k / 20, (widest * k / 20) ** 2) for k in range(-20, 21)]
    pulls.append(Series("the manifold, n = u²", THEORY, parabola, null=True))
    for tilt, value in zip(tilts, values, strict=True):
        size, height = tangent[widest, tilts[-1]], normal[widest, tilt]
        for name, share, side in (("tokens on the right", 1 + tilt, 1), ("tokens on the left", 1 - tilt, -1)):
            at = Point(side * share / 2 * size, share / 2 * height)
            pulls.append(Series(name, {"tilt": value, "pull": name}, [Point(0.0, 0.0), at]))
        both = "both: the gradient"
        pulls.append(
            Series(both, {"tilt": value, "pull": both}, [Point(0.0, 0.0), Point(tangent[widest, tilt], height)])
        )
        lines: dict[str, list[Point]] = {
            "normal/tangent": [Point(t, _over(normal[t, tilt], abs(tangent[t, tilt]))) for t in radii],
            "published bound, βt": [Point(t, t) for t in radii],
            "corrected bound, βt/γ": [Point(t, _over(t, gamma[t, tilt])) for t in radii],
        }
        ratios += [Series(name, {"tilt": value, "line": name}, line) for name, line in lines.items()]
    return [
        Text(
            "Tokens x = (u, u²), |u| uniform up to t; one linear unit at 0; squared loss with target −1. Every token "
            "asks for its own x, so the tangent gradient is E[u] and the normal one E[u²]. Move the slider to the "
            "left: tokens on both sides come into balance, their tangent parts cancel, and the ratio grows beyond "
            "all bounds, at any radius."
        ),
        Figure(
            "pull",
            "Two sides pull against each other along the tangent, and together along the normal",
            "What the tokens of each side contribute to the gradient, and their sum, at t = 0.5. In balance (slider "
            "at the left end) the sum points straight along the normal. Dashed: the manifold.",
            "Contributions of the two sides and their sum, by the imbalance of the sides.",
            Axis("tangent part", fixed=True),
            Axis("normal part", fixed=True),
            pulls,
            colour="pull",
            choose=[slider],
            toggle=[Control("pull", "Shown", values_of(pulls, "pull"))],
        ),
        Figure(
            "counter-ratio",
            "Below γ = 2/3 the ratio is above the published bound; it is never above the corrected one",
            "Normal/tangent gradient of the same example against the radius; published: Bernas et al. 2026. β = 1 on "
            "this manifold. At balance "
            "there is no ratio to draw: the tangent gradient is exactly 0.",
            "Normal over tangent gradient against the radius with both bounds, by the imbalance of the sides.",
            Axis("radius t", log=True),
            Axis("normal/tangent gradient", log=True),
            ratios,
            colour="line",
            choose=[slider],
            toggle=[Control("line", "Lines", values_of(ratios, "line"))],
        ),
    ]


def _slid(t: float, tangent: float, normal: float, gamma: float) -> str:
    """What the slider says at one of its places."""
    if not tangent:
        return f"γ = 0: the tangent gradient is 0 and the normal one {number(normal)}; the ratio is infinite"
    ratio = normal / abs(tangent)
    word = "holds" if ratio <= t else "fails"
    return (
        f"γ = {number(gamma)}; at t = {number(t)} the ratio is {number(ratio)}: the published bound, {number(t)}, "
        f"{word}; the corrected one is {number(t / gamma)}"
    )


def _grid(lab: LaboratoryRows, measure: str) -> dict[tuple[float, float], float]:
    found = {}
    for row in lab.by_measure.get(measure, []):
        found[row["radius"], row["parameter"]] = row["value"]
    return found


def _over(a: float, b: float) -> float | None:
    return a / b if b else None
