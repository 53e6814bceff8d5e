"""Figures of the theory laboratory: quantities against radius, arc or exponent, with their fits."""

from __future__ import annotations

from anisoscope.report.sections.theory.laboratory import THEORY, LaboratoryRows, fit_line, precise
from anisoscope.report.tree import Axis, Block, Control, Figure, Reference, Series, Text, values_of
from anisoscope.vocabulary import shown_in

QUANTITIES = {word.name: word.label.split(" against")[0] for word in shown_in("variances")}
PARTS = {where: tuple(word.name for word in shown_in(where)) for where in ("tokens off centre", "tokens all round")}


def chord_blocks(lab: LaboratoryRows) -> list[Block]:
    """Chord against arc."""
    series = [Series(name, {"curve": name}, lab.curve("chord", name)) for name in lab.models("chord")]
    if not series:
        return []
    return [
        Figure(
            "chord",
            "How far a chord falls short of its arc",
            "a² − c² for arcs a of three kinds of curves, whose curvature, torsion and growth of curvature vary "
            "between replicates; bands are 95 % intervals over replicates. Dashed: the fitted power law. Theory: "
            "κ²a⁴/12, exponent 4.",
            "a² − c² against a on logarithmic axes.",
            Axis("arc a", log=True),
            Axis("a² − c²", log=True),
            [*series, *fit_line(lab, "chord", {"what": "theory"})],
            colour="curve",
            toggle=[Control("curve", "Curves", values_of(series, "curve"))],
        ),
        Figure(
            "chord-coefficient",
            "The coefficient, where theory has one twelfth of the squared curvature",
            "The same chords, in units of κ²a⁴, with 95 % intervals over replicates. Where curvature grows along the "
            "curve (clothoid) the next term is of the order a⁵, else a⁶; what is judged is the limit a → 0.",
            "(a² − c²)/(κ²a⁴) against a, with the level 1/12.",
            Axis("arc a", log=True),
            Axis("(a² − c²)/(κ²a⁴)"),
            [
                Series(name, {"curve": name}, lab.curve("chord-coefficient", name))
                for name in lab.models("chord-coefficient")
            ],
            colour="curve",
            toggle=[Control("curve", "Curves", values_of(series, "curve"))],
            references=[Reference(1 / 12, "1/12")],
        ),
    ]


def variance_blocks(lab: LaboratoryRows) -> list[Block]:
    """Tangent variance, normal variance and their ratio against the radius."""
    series: list[Series] = []
    for key, quantity in QUANTITIES.items():
        members: dict[str, list[str]] = {}
        for model in lab.models(key):
            members.setdefault(model.partition(", ")[2], []).append(model)
        for dim, models in members.items():
            about = {"quantity": quantity, "dimension": dim}
            series += [Series(m, about | {"manifold": m.partition(",")[0]}, lab.curve(key, m)) for m in models]
            series += fit_line(lab, key, about, *models)
    if not series:
        return []
    quantities, dims = values_of(series, "quantity"), values_of(series, "dimension")
    return [
        Figure(
            "variances",
            "Tangent variance, normal variance and their ratio in a small patch",
            "Points are uniform in a ball of radius t of the tangent space, drawn anew at every radius. Bands are "
            "95 % intervals over replicates. Dashed: the fitted power law over all manifolds.",
            f"{', '.join(quantities)} against the radius on logarithmic axes.",
            Axis("radius t", log=True),
            Axis("value", log=True, by={"key": "quantity"}),
            series,
            colour="manifold",
            choose=[
                Control("quantity", "Quantity", quantities, quantities[-1]),
                Control("dimension", "Dimension", dims, dims[len(dims) // 2]),
            ],
            toggle=[Control("manifold", "Manifolds", values_of(series, "manifold"))],
        )
    ]


def gradient_blocks(lab: LaboratoryRows) -> list[Block]:
    """Both parts of the gradient, with tokens off centre and all round."""
    series: list[Series] = []
    names = ("tangent part", "normal part", "normal/tangent")
    for sampling, keys in PARTS.items():
        for name, key in zip(names, keys, strict=True):
            points = lab.curve(key)
            if points:
                tags = {"tokens": sampling, "part": name}
                series += [Series(f"{name}, {sampling}", tags, points), *fit_line(lab, key, tags)]
    if not series:
        return []
    text = (
        "Where tokens lie off the centre of their patch, theory has the tangent gradient fall as t, the normal one as "
        "t², and their ratio as t. Where tokens lie all round it, the order t of the tangent gradient cancels, t² "
        "is left, and by the corrected theory the ratio does not fall with the radius."
    )
    return [
        Text(text),
        *(Text(_exponents(lab, keys), f"Fitted, {sampling}:", "plain") for sampling, keys in PARTS.items()),
        Figure(
            "gradient-parts",
            "The same layer and loss, tokens off centre and all round",
            "Norm of the mean gradient of a linear layer under cross-entropy, its tangent and its normal part, "
            "mean over replicates, geometric mean over manifolds. Off centre: three of four tokens on one side. All "
            "round: every token has its mirror image. Dashed: the fitted power law. Saddles of even dimension are left "
            "out: their mean curvature is 0, and their normal parts cancel as well.",
            "Tangent and normal gradients against the radius, in two panels, on logarithmic axes.",
            Axis("radius t", log=True),
            Axis("norm, or ratio of norms", log=True),
            series,
            colour="part",
            panel="tokens",
            toggle=[Control("part", "Parts", values_of(series, "part"))],
        ),
    ]


def _exponents(lab: LaboratoryRows, keys: tuple[str, ...]) -> str:
    names = ("tangent", "normal", "ratio")
    found = [f"{name} {precise(lab.fits[key])}" for name, key in zip(names, keys, strict=True) if key in lab.fits]
    return f"{', '.join(found) or 'nothing yet'}."


def attenuation_blocks(lab: LaboratoryRows) -> list[Block]:
    """The visible curvature of a mixture against the exponent of its law."""
    measured, expected = lab.curve("attenuation"), lab.curve("attenuation_expected")
    if not measured:
        return []
    series = [
        Series("simulated", {"kind": "simulated"}, measured),
        Series("theory: Σp t⁴ / Σp t², over that of the flattest law", THEORY, expected, null=True),
    ]
    return [
        Figure(
            "attenuation",
            "Visible curvature by the steepness of the law of frequency",
            "Types have frequency p ∝ rank⁻ˢ and are seen at the radius t = t₀ (p_min/p)^falloff, so frequent types "
            "are seen narrowly; how fast the radius falls is an assumption. Visible curvature (normal/tangent variance "
            "within types) of the whole mixture, over that of the flattest law, replicate by replicate, so that the "
            "first point is 1 by definition. Bands are 95 % intervals over replicates. Dashed: the theory's sum over "
            "types (after Bernas et al. 2026).",
            "Visible curvature of a mixture against the exponent of Zipf's law, beside theory.",
            Axis("exponent s of the law of frequency", fixed=True),
            Axis("visible curvature over that of the flattest law"),
            series,
            colour="kind",
        )
    ]
