"""Every word that a row can hold, declared once. Needs no torch.

Scope, evaluator, command line, report and docs read the words here. What is added from outside (a measure, a null, a
proxy; see ``docs/extending.md``) is added to these tables too, and a run writes such words into its manifest, so that a
report knows them without the code that made them.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Literal

from anisoscope.errors import broken

ENCODER = "encoder-"
"""What the views of an encoder begin with, where a decoder reads what it gives."""
EARLY, LATE = 0.3, 0.7
"""Shares of training: early is up to the first, late from the second."""
MAIN_TENSOR, MAIN_SUBSET, MAIN_TIMING = "gradients", "all", "rolling"
"""What a verdict is about unless something else is asked for."""


@dataclass(frozen=True, slots=True)
class View:
    """A pair of clouds that are compared: what a proxy is fitted on, and which gradients it is judged on.

    Views of one ``kind`` are made and judged in one way.
    """

    name: str
    about: str
    fitted_on: str
    judged_on: tuple[str, ...]
    kind: Literal["representation", "weight", "embedding"]


@dataclass(frozen=True, slots=True)
class Null:
    """A null: what it breaks, and what is said where the outcome is *equal*, up to the margin."""

    name: str
    breaks: str
    otherwise: str
    views: tuple[str, ...]
    ladder: bool = True  # whether passing it counts for the verdict
    needs: str | None = None  # what must be given beside the gradients
    live: bool = True  # whether what a scope keeps is enough for it


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a comparison with a null came to, and how a drawing marks it."""

    name: str
    about: str
    mark: Literal["circle", "triangle"]
    glyph: str = ""


@dataclass(frozen=True, slots=True)
class Proxy:
    """A method that fits a subspace to activations: from their moments, or from a sample of rows."""

    name: str
    about: str
    needs: Literal["moments", "sample"] = "moments"
    views: tuple[str, ...] = ("representation", "weight", "embedding", "encoder-representation", "encoder-weight")
    rank: int | None = None  # the only one it has


@dataclass(frozen=True, slots=True)
class Measure:
    """A number that a row can hold.

    ``variants`` names what a reader can choose; the first is the usual one, which rows leave null. ``no_effect`` is
    the value where nothing is to be seen, if that is one number. ``shown`` says where a report shows it.
    """

    name: str
    label: str
    about: str = ""
    unit: str = ""
    no_effect: float | None = None
    no_effect_label: str = "no effect"
    variants: tuple[tuple[str, str], ...] = ()
    shown: tuple[str, ...] = ()

    def row_variant(self, variant: str | None) -> str | None:
        """A variant as rows hold it: the usual one is null."""
        return None if not variant or (self.variants and variant == self.variants[0][0]) else variant

    def variant_label(self, variant: str | None) -> str:
        """The measure with its variant, for a reader."""
        if variant is None:
            return self.label
        return dict(self.variants).get(variant) or f"{self.label}, {variant}"

    def in_rows(self) -> list[str | None]:
        """The variants that rows can hold, the usual one first."""
        return [self.row_variant(name) for name, _ in self.variants] or [None]


def _by_name(words: Iterable[Any]) -> dict[str, Any]:
    return {word.name: word for word in words}


VIEWS: dict[str, View] = _by_name(
    [
        View(
            "representation",
            "Gradients ∂L/∂h at the residual stream, one per token.",
            fitted_on="activations",
            judged_on=("gradients",),
            kind="representation",
        ),
        View(
            "weight",
            "Rows of G = Σ δxᵀ, the gradient of a matrix that reads the residual stream, in its input space.",
            fitted_on="inputs",
            judged_on=("gradients",),
            kind="weight",
        ),
        View(
            "embedding",
            "Rows of the gradient of the input embedding, and of its update; one per type.",
            fitted_on="activations",
            judged_on=("gradients", "gradients-out", "update", "update-raw", "change"),
            kind="embedding",
        ),
        View(
            f"{ENCODER}representation",
            "The same as `representation` in the encoder of an encoder-decoder, one per source token.",
            fitted_on="activations",
            judged_on=("gradients",),
            kind="representation",
        ),
        View(
            f"{ENCODER}weight",
            "The same as `weight` in the encoder of an encoder-decoder.",
            fitted_on="inputs",
            judged_on=("gradients",),
            kind="weight",
        ),
    ]
)

TENSORS: dict[str, str] = {
    "activations": "vectors that a proxy is fitted on",
    "inputs": "inputs of a linear map",
    "gradients": "gradients of the loss",
    "gradients-out": "gradients of the output side of a tied embedding",
    "update": "change of the embedding in one optimiser step, without weight decay",
    "update-raw": "the same with weight decay",
    "change": "change of the embedding from one checkpoint to the next, weight decay included",
    "input": "rows of the input embedding",
    "output": "rows of the output embedding",
}
TABLES = {"input": "input embedding", "output": "output embedding"}

SUBSETS: dict[str, str] = {
    "all": "all tokens",
    "no-first": "without first positions",
    "no-special": "without first positions and special tokens",
}
CAPTURED_SUBSETS = tuple(subset for subset in SUBSETS if subset != "no-special")
"""Subsets that a scope knows: special tokens are known where text is read, not where it passes a layer."""
BINS = ("rarest", "rare", "middle", "frequent", "most frequent")
BIN_SIDES = {"target": "by target token", "input": "by input token"}
BIN_SIZES = {"tokens": "of equal tokens", "types": "of equal types"}

SAMPLINGS: dict[str, str] = {
    "off centre": "more tokens on one side of the point",
    "uniform": "tokens drawn from the whole ball",
    "mirrored": "every token with its mirror image",
}
"""Subsets of the theory laboratory: how its tokens lie round their point."""

Timing = Literal["rolling", "anchored"]
"""The keys of ``TIMINGS``, for annotations."""
TIMINGS: dict[str, str] = {
    "rolling": "refitted at each observation",
    "anchored": "fitted on the first 30 % of training, then frozen",
}
WINDOWS: dict[str, str] = {
    "before": "step 0, before the first update",
    "early": f"after step 0, up to {100 * EARLY:.0f} % of training",
    "middle": f"from {100 * EARLY:.0f} % to {100 * LATE:.0f} %",
    "late": f"the last {100 - 100 * LATE:.0f} %",
}
OUTCOMES: dict[str, Outcome] = _by_name(
    [
        Outcome("above", "the 95 % interval lies above the null and q ≤ 0.05", mark="circle"),
        Outcome("below", "the 95 % interval lies below the null and q ≤ 0.05", mark="triangle"),
        Outcome("equal", "the 90 % interval lies inside the margin", mark="circle", glyph="="),
        Outcome("equal, above 1", "above, and inside the margin; counts as above", mark="circle"),
        Outcome("equal, below 1", "below, and inside the margin; counts as below", mark="triangle"),
        Outcome("cannot tell", "none of these: the rows do not decide", mark="circle", glyph="?"),
        Outcome("not measured", "there is no number", mark="circle"),
    ]
)

_EVERY_VIEW = tuple(VIEWS)
NULLS: dict[str, Null] = _by_name(
    [
        Null(
            "haar",
            breaks="the orientation of the proxy: random directions of the same rank",
            otherwise="random directions of the same rank hold as much",
            views=_EVERY_VIEW,
        ),
        Null(
            "normal",
            breaks="the control of Bernas et al. (2026): random directions orthogonal to the proxy",
            otherwise="random directions orthogonal to the proxy hold as much",
            views=_EVERY_VIEW,
            ladder=False,
        ),
        Null(
            "pairing",
            breaks="the pairing of error signals and inputs: sequences are permuted",
            otherwise="error signals paired with the inputs of other sequences give as much, by the sum G = Σ δxᵀ",
            views=("weight", f"{ENCODER}weight"),
            needs="inputs and deltas of shape (n, T, ·)",
        ),
        Null(
            "pairing-token",
            breaks="the pairing of error signals and inputs: tokens are permuted",
            otherwise="error signals paired with the inputs of other tokens give as much",
            views=("weight", f"{ENCODER}weight"),
            ladder=False,
            needs="inputs and deltas as rows or Moments",
            live=False,  # error signals that are kept are sketched
        ),
        Null(
            "axes",
            breaks="everything but shared coordinate axes: signs of the proxy's coordinates are flipped",
            otherwise="coordinate axes shared by both clouds give as much",
            views=_EVERY_VIEW,
        ),
        Null(
            "init",
            breaks="training: the same test before the first step",
            otherwise="the untrained network shows as much",
            views=_EVERY_VIEW,
            needs="initial, the Evidence of step 0",
        ),
        Null(
            "targets",
            breaks="the data's signal: labels are permuted",
            otherwise="permuted labels, with the same unigram law, put as much energy there",
            views=_EVERY_VIEW,
            needs="others['targets'], the gradients under permuted labels",
        ),
        Null(
            "targets-uniform",
            breaks="the data's signal and the unigram law: labels are drawn uniformly",
            otherwise="labels drawn uniformly put as much energy there",
            views=_EVERY_VIEW,
            needs="others['targets-uniform'], the gradients under uniform labels",
        ),
    ]
)
LABEL_NULLS = tuple(name for name in NULLS if name.startswith("targets"))
"""Nulls that take an extra pass with other labels."""

REMOVAL_CONTROLS: dict[str, str] = {
    "haar": "random directions of the same rank",
    "normal": "random directions orthogonal to the proxy",
    "next": "the next directions by variance, after those of the proxy",
}
"""What a removal of the proxy is compared with, at equal rank."""
WHOLE_STREAM, EQUAL_DISPLACEMENT = "whole stream", "equal displacement"
"""Variants of removals: all directions at once; proxy and control scaled to move a token equally far."""

PROXIES: dict[str, Proxy] = _by_name(
    [
        Proxy("pca", "principal directions about the mean"),
        Proxy("svd", "principal directions about the origin"),
        Proxy("semi_nmf", "concepts with codes ≥ 0", needs="sample"),
        Proxy("mean", "the mean direction alone", rank=1),
        Proxy("haar", "random directions"),
    ]
)

THEORY = "of the theory laboratory"
_ISOTROPY, _DIMENSION = ("isotropy", "shape"), ("dimension", "shape")
MEASURES: dict[str, Measure] = _by_name(
    [
        Measure(
            "two_nn",
            "TwoNN dimension",
            "slope of −log(1 − F) on log(r₂/r₁), without duplicates; biased downwards at finite n",
            variants=(("fit", ""), ("mle", "TwoNN dimension, maximum likelihood"), ("probe", "TwoNN dimension")),
            shown=_DIMENSION,
        ),
        Measure(
            "levina_bickel",
            "Levina-Bickel dimension",
            "inverse of the mean of log(r_k/r_j)",
            variants=(("", ""), ("k=20", "Levina-Bickel dimension")),
            shown=("dimension",),
        ),
        Measure("gride", "Gride dimension", "dimension between neighbours n and 2n, against their distance", shown=()),
        Measure(
            "average_cosine",
            "average cosine",
            "mean cosine over all pairs of vectors, not centred",
            no_effect=0.0,
            no_effect_label="isotropic: 0",
            variants=(("all pairs", ""),),
            shown=_ISOTROPY,
        ),
        Measure(
            "isoscore_star",
            "IsoScore*",
            "(PR − 1)/(D − 1) of the covariance shrunk by ζ = 0.2 towards its own mean variance; 1 is a ball, 0 a line",
            no_effect=1.0,
            no_effect_label="isotropic: 1",
            variants=(("zeta=0.2, trace", ""),),
            shown=_ISOTROPY,
        ),
        Measure(
            "top_share",
            "top share",
            "σ₁^p/Σσᵢ^p, centred and p = 2 unless said",
            variants=(
                ("power=2, centred", ""),
                ("power=1, centred", "top share, p = 1"),
                ("power=2, uncentred", "top share, uncentred"),
                ("power=1, uncentred", "top share, p = 1, uncentred"),
            ),
            shown=_ISOTROPY,
        ),
        Measure(
            "isoscore",
            "IsoScore",
            "(PR − 1)/(D − 1); 1 is a ball, 0 a line",
            variants=(("plain", ""), ("corrected", "IsoScore, corrected")),
            shown=("isotropy",),
        ),
        Measure(
            "participation_ratio",
            "participation ratio",
            "(tr C)²/‖C‖²",
            unit="directions",
            variants=(("plain", ""), ("corrected", "participation ratio, corrected")),
            shown=("isotropy",),
        ),
        Measure(
            "effective_rank",
            "effective rank",
            "exp of the entropy of the singular values",
            unit="directions",
            variants=(("power=1", ""), ("power=2", "effective rank, p = 2")),
            shown=_ISOTROPY,
        ),
        Measure(
            "rankme",
            "RankMe",
            "effective rank of the vectors as they are, not centred",
            unit="directions",
            variants=(("uncentred", ""),),
            shown=_ISOTROPY,
        ),
        Measure(
            "spectral_decay",
            "spectral decay",
            "α of λᵢ ∝ i^(−α), the slope of log λ on log rank over i = 11 … min(D, N − 1)//2; biased at finite n",
            variants=(
                ("ranks 11 to half", ""),
                ("coordinates permuted", "spectral decay, coordinates permuted"),
            ),
            shown=_ISOTROPY,
        ),
        Measure(
            "cka",
            "CKA",
            "unbiased linear CKA of the same tokens in two layers, or at two checkpoints; item is the other one",
            variants=(("layers", ""), ("previous checkpoint", ""), ("last checkpoint", "")),
        ),
        Measure(
            "neighbourhood_overlap",
            "neighbourhood overlap",
            "share of a token's 10 nearest neighbours that two layers, or two checkpoints, have in common",
            variants=(
                ("layers", ""),
                ("layers, across", "neighbourhood overlap, other sequences only"),
                ("previous checkpoint", ""),
                ("previous checkpoint, across", ""),
                ("last checkpoint", ""),
                ("last checkpoint, across", ""),
            ),
        ),
        Measure(
            "partition_ratio",
            "partition ratio",
            "min Z(c)/max Z(c), Z(c) = Σ exp(c·x), over eigenvectors c of XᵀX and their negatives",
            no_effect=1.0,
            variants=(("both signs", ""),),
            shown=("isotropy",),
        ),
        Measure(
            "local_isotropy",
            "local isotropy",
            "IsoScore inside clusters, corrected for their size",
            no_effect=1.0,
            variants=(("", ""), ("clusters=16", "local isotropy")),
            shown=("isotropy",),
        ),
        Measure("energy", "energy share", "part of the gradient's energy inside the proxy: tr(QᵀMQ)/tr M"),
        Measure("enrichment", "enrichment", "odds ratio of the energy share over that of a null", no_effect=1.0),
        Measure(
            "pooled_enrichment",
            "pooled enrichment",
            "mean over layers of the log enrichment, as a ratio; its interval is over units, which layers share",
            no_effect=1.0,
        ),
        Measure(
            "isotropy_gain",
            "isotropy gain",
            "IsoScore* of the gradients without the proxy, minus with it",
            no_effect=0.0,
            variants=(("", ""), ("zeta0", "isotropy gain, ζ = 0")),
        ),
        Measure(
            "isotropy_gain_normal",
            "isotropy gain, normal",
            "the same with random directions orthogonal to the proxy removed",
            no_effect=0.0,
        ),
        Measure("captured", "share of anisotropy captured", "isotropy gain over 1 − IsoScore* before", no_effect=0.0),
        Measure("radial", "radial share", "part of the gradient's energy along the activation of its own token"),
        Measure("angle", "principal angle", "mean principal angle to an earlier proxy", unit="degrees"),
        Measure(
            "semi_nmf_loss",
            "loss of semi-NMF",
            "share of the energy left by concepts with codes ≥ 0, mean of both folds; floor: codes of either sign",
        ),
        Measure("semi_nmf_converged", "convergence of semi-NMF", "share of the folds in which it converged"),
        Measure("concept", "concept", "share of a token in what a concept receives"),
        Measure(
            "loss", "loss", "mean loss per token", unit="nats", variants=(("", ""), ("train", ""), ("held-out", ""))
        ),
        Measure("logged", "logged value", "a number that the training logged; the variant is its name"),
        Measure(
            "cost",
            "seconds spent",
            "on one observation: in the training thread, moving statistics to the host, judging",
            unit="s",
            variants=(("", ""), ("watched", "watching"), ("moved", "moving to the host"), ("evaluated", "judging")),
        ),
        Measure(
            "removal_cost",
            "cost of removal",
            "mean loss per token with directions removed from the stream after one block, minus without removal",
            unit="nats",
            no_effect=0.0,
            variants=(("", ""), (WHOLE_STREAM, "cost of the whole stream")),
        ),
        Measure(
            "removal_excess",
            "cost above a control",
            "cost of removing the proxy minus that of removing as many directions of a control",
            unit="nats",
            no_effect=0.0,
            variants=(("", ""), (EQUAL_DISPLACEMENT, "cost above a control, at equal displacement")),
        ),
        Measure(
            "effect",
            "effect of an arm",
            "an outcome under an arm minus under its control, mean over seeds",
            no_effect=0.0,
        ),
        Measure(
            "sentence",
            "causal sentence",
            "the effect that a causal sentence is about; the variant is the sentence and the outcome",
            no_effect=0.0,
        ),
        Measure(
            "trend", "trend over doses", "slope of an outcome over the doses of an arm, mean over seeds", no_effect=0.0
        ),
        Measure(
            "realised_exponent",
            "realised exponent",
            "slope of the new token law on the old one; floor: as requested",
            variants=(
                ("law", ""),
                ("drawn", "realised exponent, of the training data"),
                ("words", "exponent of the synthetic language, by its words"),
            ),
        ),
        Measure("removed_variance", "removed variance", "share of the stream's variance in the removed directions"),
        Measure(
            "router_load",
            "load of the busiest expert",
            "token assignments to the busiest expert over the mean of all experts, by layer and step",
            no_effect=1.0,
            no_effect_label="even: 1",
            variants=(
                ("busiest", ""),
                ("effective", "experts in use, effective number"),
                ("unused", "share of experts without a token"),
            ),
        ),
        Measure("unigram_entropy", "unigram entropy", "loss of a model that knows only token frequencies", unit="nats"),
        Measure("frequency_correlation", "correlation with log count", no_effect=0.0),
        Measure("type_place", "distance of a type to the centroid"),
        Measure(
            "probe",
            "probe",
            "accuracy of a linear probe on frozen vectors, above that of the most frequent label (the floor)",
            no_effect=0.0,
        ),
        Measure(
            "probe_selectivity",
            "selectivity of a probe",
            "accuracy of a linear probe, above that of the same probe on labels drawn once per type (the floor)",
            no_effect=0.0,
        ),
        Measure("bin_loss", "held-out loss", "of targets of one frequency", unit="nats"),
        Measure("bin_enrichment", "enrichment over haar", "enrichment of tokens of one frequency", no_effect=1.0),
        Measure("bin_energy", "share of gradient energy", "of the tokens of one frequency"),
        Measure("bin_isotropy_loss", "share of lost isotropy", "of the tokens of one frequency"),
        Measure("bin_spread", "spread of contextual vectors", "of the types of one frequency"),
        Measure(
            "bin_visible_curvature",
            "visible curvature",
            "normal over tangent variance around types of one frequency",
            variants=(("", ""), ("local tangents", "visible curvature, local tangents")),
        ),
        Measure("bin_enrichment_trend", "trend of enrichment over frequency", "slope of its logarithm", no_effect=0.0),
        Measure("bin_spread_trend", "trend of spread over frequency", "slope of its logarithm", no_effect=0.0),
        Measure(
            "bin_visible_curvature_trend",
            "trend of visible curvature over frequency",
            "slope of its logarithm",
            no_effect=0.0,
        ),
        Measure("tangent_overlap", "tangent overlap", "share of local tangents inside the proxy"),
        Measure("curvature", "curvature", "second fundamental form of the cloud", unit="1/length", no_effect=0.0),
        Measure("non_cancellation", "non-cancellation", "norm of a sum of gradients over the sum of their norms"),
        Measure(
            "check",
            "check of a proxy",
            "what `verify` tests; floor: random directions of the same rank, or no difference",
            variants=(
                ("proxy", "enrichment over random directions"),
                ("anisotropy", "share of gradient anisotropy captured"),
                ("paired", "odds of semi_nmf over those of pca"),
                ("paired-anisotropy", "share captured by semi_nmf minus that by pca"),
                ("normal", "angle to local normals, degrees"),
                ("refit", "angle between fits on two halves, degrees"),
                ("curvature", "curvature along the proxy over that along random tangents"),
                ("settling", "share of layers where random directions are not shown to do worse, energy"),
                (
                    "settling-anisotropy",
                    "share of layers where random directions are not shown to do worse, anisotropy",
                ),
            ),
        ),
        Measure("peak_layer", "peak layer", "layer at which a profile is highest"),
        Measure("prominence", "prominence", "peak minus the higher end of a profile", no_effect=0.0),
        Measure("skipped", "skipped observation", "an observation that was skipped; the note says why"),
        Measure("note", "note", "what could not be measured, and why"),
        Measure("chord", "a² − c² against the arc a", THEORY, shown=("claim",)),
        Measure("chord-coefficient", "(a² − c²)/(κ²a⁴) at a → 0", THEORY, shown=("claim",)),
        Measure("tangent-variance", "tangent variance against the radius t", THEORY, shown=("claim", "variances")),
        Measure("normal-variance", "normal variance against t", THEORY, shown=("claim", "variances")),
        Measure(
            "visible-curvature",
            "visible curvature (normal/tangent variance) against t",
            THEORY,
            shown=("claim", "variances"),
        ),
        Measure("mixture", "visible curvature of the mixture against its effective radius", THEORY, shown=("claim",)),
        Measure("attenuation", "visible curvature, steepest law over flattest", THEORY, shown=("claim",)),
        *(
            Measure(f"{prefix}{name}-gradient", f"{name} gradient against t, {where}", THEORY, shown=("claim", where))
            for prefix, where in (("", "tokens off centre"), ("symmetric-", "tokens all round"))
            for name in ("tangent", "normal")
        ),
        *(
            Measure(
                f"{prefix}gradient-ratio", f"normal/tangent gradient against t, {where}", THEORY, shown=("claim", where)
            )
            for prefix, where in (("", "tokens off centre"), ("symmetric-", "tokens all round"))
        ),
        *(
            Measure(name, name.replace("_", " "), THEORY)
            for name in (
                "attenuation_expected",
                "effective_radius",
                "fit",
                "fit_expected",
                "fit_shift",
                "fit_r2",
                "bound_holds",
                "counter_tangent",
                "counter_normal",
                "counter_gamma",
                "draw_ratio",
                "draw_published",
                "draw_corrected",
                "draw_gamma",
                "draw_held_bound",
                "draw_held_ratio",
            )
        ),
    ]
)

_MAIN: dict[str, str | None] = {"subset": MAIN_SUBSET, "timing": MAIN_TIMING, "tensor": MAIN_TENSOR}


@dataclass(frozen=True, slots=True)
class Headline:
    """A number that an observation is looked at for: the median over layers of the rows that match."""

    name: str
    where: dict[str, str | None] = field(default_factory=dict)


def _enrichment(name: str, view: str, null: str) -> Headline:
    return Headline(name, _MAIN | {"measure": "enrichment", "view": view, "null": null})


HEADLINES: dict[str, Headline] = _by_name(
    [
        _enrichment("enrichment_haar", "representation", "haar"),
        _enrichment("enrichment_weight", "weight", "haar"),
        _enrichment("enrichment_pairing", "weight", "pairing"),
        _enrichment("enrichment_targets", "representation", "targets"),
        Headline("isotropy_gain", _MAIN | {"measure": "isotropy_gain", "view": "representation", "variant": None}),
        Headline("isoscore_activations", {"measure": "isoscore_star", "tensor": "activations", "subset": "all"}),
        Headline("isoscore_gradients", {"measure": "isoscore_star", "tensor": "gradients", "subset": "all"}),
        Headline("two_nn", {"measure": "two_nn", "tensor": "activations", "subset": "all"}),
        Headline("loss", {"measure": "loss", "variant": "held-out"}),
    ]
)


PROBES: dict[str, str] = {
    "sentence order": "whether two sentences are in their original order",
    "capital": "whether the next word has a capital letter",
    "document": "which document a sequence comes from",
    "frequency class": "how frequent a token is",
    "own labels": "the labels of --probe-data",
}
"""What linear probes predict."""


@dataclass(frozen=True, slots=True)
class Effect:
    """A number at the end of a training that a plan of interventions compares between arms.

    ``over`` says how it comes from the rows that match: the ``median`` of them, or the ``bell`` of a profile over
    layers, its highest inner layer minus the higher end. A ``ratio`` is compared as a logarithm. Of one with ``layers``
    the effect is told layer by layer too.
    """

    name: str
    label: str
    where: dict[str, str | None]
    over: Literal["median", "bell"] = "median"
    ratio: bool = False
    layers: bool = False


def _enriched(view: str, null: str) -> Effect:
    where = _MAIN | {"measure": "enrichment", "view": view, "null": null}
    own = "enrichment_haar" if (view, null) == ("representation", "haar") else f"enrichment_{view}_{null}"
    words = f"enrichment over {null}" + ("" if view == "representation" else f", {view} view")
    return Effect(own, words, where, ratio=True, layers=True)


def _of_tensor(name: str, label: str, measure: str, tensor: str = "activations", **more: Any) -> Effect:
    where = {"measure": measure, "variant": more.pop("variant", None), "view": "representation", "tensor": tensor}
    return Effect(name, label, where | {"subset": more.pop("subset", "all")}, layers=True, **more)


EFFECTS: dict[str, Effect] = _by_name(
    [
        Effect("loss", "held-out loss, nats", {"measure": "loss", "variant": "held-out"}),
        *(
            Effect(
                f"loss_{name.replace(' ', '_')}",
                f"held-out loss of {name} targets, nats",
                {"measure": "bin_loss", "subset": f"target tokens {k + 1}/{len(BINS)}"},
            )
            for k, name in enumerate(BINS)
        ),
        *(
            _enriched(view, null)
            for view in ("representation", "weight")
            for null in ("haar", "pairing", "axes", "init", "targets", "targets-uniform")
            if view == "weight" or null != "pairing"
        ),
        Effect(
            "isotropy_gain",
            "isotropy gain of gradients",
            _MAIN | {"measure": "isotropy_gain", "view": "representation", "variant": None},
            layers=True,
        ),
        _of_tensor("isoscore_activations", "IsoScore* of activations", "isoscore_star"),
        _of_tensor("isoscore_gradients", "IsoScore* of gradients", "isoscore_star", "gradients"),
        _of_tensor("average_cosine", "average cosine of activations", "average_cosine"),
        _of_tensor("two_nn", "TwoNN dimension", "two_nn", variant="probe"),
        _of_tensor("participation_ratio", "participation ratio of activations", "participation_ratio"),
        _of_tensor("spectral_decay", "spectral decay of activations", "spectral_decay"),
        Effect(
            "visible_curvature",
            "visible curvature around types",
            {"measure": "bin_visible_curvature", "variant": None, "view": "representation"},
            ratio=True,
            layers=True,
        ),
        _of_tensor(
            "curvature", "root mean square curvature", "curvature", variant="rms", subset="no-first", ratio=True
        ),
        _of_tensor(
            "frequency_distance",
            "correlation of log count with the distance of a type",
            "frequency_correlation",
            variant="distance, plain, spearman",
            subset="no-first",
        ),
        _of_tensor(
            "frequency_spread",
            "correlation of log count with the spread of a type",
            "frequency_correlation",
            variant="spread, spearman",
            subset="no-first",
        ),
        _of_tensor("bell_cosine", "bell of the average cosine over layers", "average_cosine", over="bell"),
        _of_tensor("bell_dimension", "bell of the dimension over layers", "two_nn", variant="probe", over="bell"),
        *(
            Effect(
                f"{measure}_{task.replace(' ', '_')}",
                f"{label}, {task}",
                {"measure": measure, "variant": task},
                layers=True,
            )
            for measure, label in (("probe", "probe"), ("probe_selectivity", "selectivity of the probe"))
            for task in PROBES
        ),
    ]
)
"""What a plan of interventions compares, and how its page names it."""


@dataclass(frozen=True, slots=True)
class Sentence:
    """A causal sentence, the arms that test it in words, and the side of 0 on which its effect must lie.

    ``outcomes`` are effects; the last sentence is about a correlation and names none.
    """

    name: str
    text: str
    arms: str
    side: Literal["above", "below", "either"]
    outcomes: tuple[str, ...] = ()


NO_ARM = "no arm"
"""The model of the row of a sentence that no arm of a plan tests."""
SENTENCES: dict[str, Sentence] = _by_name(
    [
        Sentence(
            "flatter-enrichment",
            "Flatter frequencies weaken tangent enrichment.",
            "loss-weights, mask-rates and documents with α > 0, zipf with a smaller exponent; minus control",
            "below",
            ("enrichment_haar", "enrichment_weight_haar"),
        ),
        Sentence(
            "flatter-curvature",
            "Flatter frequencies raise visible curvature.",
            "loss-weights, mask-rates and documents with α > 0, zipf with a smaller exponent; minus control",
            "above",
            ("visible_curvature",),
        ),
        Sentence(
            "isotropy-alignment",
            "Isotropy regularisation changes gradient alignment.",
            "cos and istar, either sign; minus control",
            "either",
            ("enrichment_haar", "enrichment_weight_haar", "isotropy_gain"),
        ),
        Sentence(
            "tangent-updates",
            "Removing the tangent part of the gradient slows learning more than removing as much elsewhere.",
            "updates without the proxy, minus updates without as many other directions or without as large a share",
            "above",
            ("loss",),
        ),
        Sentence(
            "bell-mask",
            "The bell needs the causal mask.",
            "causal attention minus the other mask with the same objective (cell)",
            "above",
            ("bell_cosine", "bell_dimension"),
        ),
        Sentence(
            "dimension-probes",
            "Lower dimension goes with better probes at equal loss.",
            "all arms: correlation of dimension and probes over arms and observations, given step and loss",
            "below",
        ),
    ]
)
"""What the page of a plan of interventions gives a verdict on."""


def as_plain() -> dict[str, Any]:
    """The words that a drawing needs, as plain values."""
    return {"nulls": list(NULLS), "outcomes": {name: asdict(outcome) for name, outcome in OUTCOMES.items()}}


def matches(row: Mapping[str, Any], where: Mapping[str, Any]) -> bool:
    """Whether a row holds these values.

    >>> matches({"null": "haar", "layer": 3}, {"null": "haar"})
    True
    """
    return all(row.get(column) == wanted for column, wanted in where.items())


def shown_in(where: str) -> list[Measure]:
    """The measures that a part of the report shows."""
    return [word for word in MEASURES.values() if where in word.shown]


def ladder_of(view: str) -> tuple[str, ...]:
    """The nulls of a view's ladder, in order.

    >>> ladder_of("representation")
    ('haar', 'axes', 'init', 'targets', 'targets-uniform')
    """
    require("view", view, VIEWS)
    return tuple(null.name for null in NULLS.values() if null.ladder and view in null.views)


def bin_subset(side: str, size: str, k: int | None = None) -> str:
    """The subset of the k-th bin of frequency, from 1; −1 for tokens in no bin, None for all bins together.

    >>> bin_subset("input", "tokens", 2), bin_subset("target", "types", -1), bin_subset("input", "types")
    ('input tokens 2/5', 'target types uncounted', 'input types')
    """
    label = f"{side} {size}"
    if k is None:
        return label
    return f"{label} uncounted" if k < 0 else f"{label} {k}/{len(BINS)}"


_BIN_OF = {bin_subset(side, size, k): (side, size, k) for side in BIN_SIDES for size in BIN_SIZES for k in range(1, 6)}


def bin_of(subset: str | None) -> tuple[str, str, int] | None:
    """Side, size and number (from 1) of a bin of frequency; None for any other subset.

    >>> bin_of("target types 5/5"), bin_of("all")
    (('target', 'types', 5), None)
    """
    return _BIN_OF.get(subset or "")


def in_window(step: int | None, total: int, window: str) -> bool:
    """Whether a step lies in a window of a training of ``total`` steps.

    >>> [name for step in (0, 3, 5, 7) for name in WINDOWS if in_window(step, 10, name)]
    ['before', 'early', 'middle', 'late']
    """
    if step is None:
        return False
    if step == 0 or window == "before":
        return step == 0 and window == "before"
    if window == "early":
        return step <= EARLY * total
    return step >= LATE * total if window == "late" else EARLY * total < step < LATE * total


def window_bounds(window: str, total: int) -> tuple[float, float]:
    """First and last step of a window of a training of ``total`` steps."""
    bounds = {"before": (0.0, 0.0), "early": (1.0, EARLY * total), "middle": (EARLY * total, LATE * total)}
    return bounds.get(window, (LATE * total, float(total)))


def anchor_step(steps: int) -> int:
    """The last step that anchored proxies are fitted on."""
    return int(EARLY * steps)


MAPS: dict[str, str] = {
    "mlp": "the first map of the MLP, or its equivalent",
    "attention": "the projections of attention: Q, K, V and O, or fused ones",
}
"""Linear maps of a block that the weight view can watch."""


def rank_of(row: Mapping[str, Any]) -> int | str | None:
    """What rank was asked for: the rule where each place found its own, else the number.

    >>> rank_of({"rank": 17, "rank_rule": "95%"}), rank_of({"rank": 32})
    ('95%', 32)
    """
    return row.get("rank_rule") or row.get("rank")


def is_main(row: Mapping[str, Any], proxy: str | None, rank: int | str | None) -> bool:
    """Whether a row is of this proxy and rank, or of none: others are ablations."""
    return row.get("proxy") in (None, proxy) and rank_of(row) in (None, rank)


def headline_values(rows: Iterable[Mapping[str, Any]], name: str) -> list[float]:
    """The finite values of one headline, one a layer."""
    where = HEADLINES[name].where
    found = (row.get("value") for row in rows if matches(row, where))
    return [value for value in found if value is not None and math.isfinite(value)]


def require(what: str, name: Any, known: Iterable[str]) -> None:
    """Raise for a word that is not known.

    >>> require("schedule", "lgo", ("log", "always"))
    Traceback (most recent call last):
    anisoscope.errors.BrokenRuleError: schedule must be one of log always, got 'lgo'; did you mean 'log'?
    """
    known = tuple(known)
    if name not in known:
        raise broken(
            f"{what} must be one of {' '.join(known)}", repr(name), nearest(name, known) or "check the spelling"
        )


def require_each(what: str, given: Iterable[Any], known: Iterable[str]) -> None:
    """Raise for a choice of several that holds an unknown word, or nothing at all, or is a word and no list of them."""
    if isinstance(given, str):
        raise broken(f"{what} must be a list of words", repr(given), f"write [{given!r}]")
    given, known = tuple(given), tuple(known)
    for one in given:
        if one not in known:
            step = nearest(one, known) or "check the spelling"
            raise broken(f"{what} must be among {' '.join(known)}", repr(one), step)
    if not given:
        raise broken(f"{what} must name at least one of {' '.join(known)}", "none", f"use {known[0]!r}")


def nearest(word: Any, known: Iterable[str]) -> str | None:
    """A question for whoever mistyped a word; None where no word is near.

    >>> nearest("harr", NULLS), nearest("xyz", NULLS)
    ("did you mean 'haar'?", None)
    """
    close = difflib.get_close_matches(word, list(known), n=1, cutoff=0.5) if isinstance(word, str) else []
    return f"did you mean {close[0]!r}?" if close else None


_TABLES: dict[str, tuple[dict[str, Any], type]] = {
    "measures": (MEASURES, Measure),
    "nulls": (NULLS, Null),
    "proxies": (PROXIES, Proxy),
}
_OWN = {kind: frozenset(table) for kind, (table, _) in _TABLES.items()}


def add(word: Measure | Null | Proxy) -> None:
    """Add a word from outside; one of ours cannot be taken."""
    kind = next(kind for kind, (_, made) in _TABLES.items() if isinstance(word, made))
    if not word.name or word.name in _OWN[kind]:
        raise broken(f"the name of one of the {kind} must be new", repr(word.name), "choose another name")
    _TABLES[kind][0][word.name] = word


def is_outside(kind: str, name: str) -> bool:
    """Whether a word is none of ours."""
    return name not in _OWN[kind]


def remove(kind: str, name: str) -> None:
    """Take a word from outside away again."""
    if name not in _OWN[kind]:
        _TABLES[kind][0].pop(name, None)


def added() -> dict[str, list[dict[str, Any]]]:
    """The words from outside, for a manifest; nothing where there are none."""
    found = {
        kind: [asdict(word) for name, word in table.items() if name not in _OWN[kind]]
        for kind, (table, _) in _TABLES.items()
    }
    return {kind: words for kind, words in found.items() if words}


def learn(words: Any) -> None:
    """Take up the words of a manifest that are not known here; whatever does not look like one is left alone."""
    for kind, (table, made) in _TABLES.items():
        for word in (words.get(kind) or ()) if isinstance(words, Mapping) else ():
            try:
                found = made(**{key: _hashable(value) for key, value in dict(word).items()})
            except (TypeError, ValueError):
                continue
            if all(_fits(field.name, getattr(found, field.name)) for field in fields(found)):
                table.setdefault(found.name, found)


def _fits(field_name: str, value: Any) -> bool:
    """Whether a field holds what it should; manifests may come from anywhere."""
    if field_name in ("no_effect", "rank", "ladder", "live"):
        return value is None or isinstance(value, int | float)
    if field_name == "variants":
        return isinstance(value, tuple) and all(isinstance(v, tuple) and len(v) == 2 and _texts(v) for v in value)
    if field_name in ("views", "shown"):
        return isinstance(value, tuple) and _texts(value)
    return isinstance(value, str) or (value is None and field_name == "needs")


def _texts(values: tuple[Any, ...]) -> bool:
    return all(isinstance(value, str) for value in values)


def _hashable(value: Any) -> Any:
    return tuple(_hashable(part) for part in value) if isinstance(value, list) else value
