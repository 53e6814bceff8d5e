"""Words of the page: what each means, on hover and tap, and in a list at the end."""

from __future__ import annotations

from typing import NamedTuple

from anisoscope.report.names import word_of
from anisoscope.vocabulary import MEASURES, NULLS, OUTCOMES, PROXIES, SUBSETS, TIMINGS, VIEWS, WINDOWS

_OWN = {
    "proxy": "A low-dimensional subspace fitted on activations; it stands for the tangent of the cloud they form.",
    "energy share": "The fraction of the gradient's energy (squared length, summed over tokens) that lies inside "
    "the proxy.",
    "chance": "The energy share that random directions of the same rank hold: rank over width, K/D.",
    "enrichment": "The odds of the energy share divided by the odds under a null. 1: equal to the null; 2: twice "
    "the odds.",
    "odds ratio": "Share/(1 − share), divided by the same for the null. Unlike a ratio of shares, it has no upper "
    "limit.",
    "pooled": "The mean over layers of the log odds ratio; its interval accounts for layers seeing the same text.",
    "null": "An alternative explanation of the share. A claim passes a null if the proxy holds more than the null "
    "gives.",
    "ladder": "The nulls in order. A layer passes nulls up to the first it is not above; a model, those that most "
    "layers pass.",
    "fold": "Half of the sequences. A proxy is fitted on one half and judged on the other, in both directions.",
    "interval": "95 % interval: the range expected from repetitions with other text, with the proxy held fixed.",
    "q": "p adjusted over the layers of one model and observation (Benjamini-Hochberg).",
    "margin": "The range around 1 in which an odds ratio counts as equal, declared before the run: 1/margin to margin.",
    "cannot tell": "None of above, below or equal is shown. A lack of significance is not equality.",
    "mixed": "At least a tenth of the layers are above a null and at least a tenth below it.",
    "anisotropy": "How unevenly a cloud of vectors is spread over directions: 1 − IsoScore*, 0 for a ball.",
    "isotropy gain": "How much more isotropic the gradients are without the proxy (IsoScore* after removal minus "
    "before).",
    "captured": "The isotropy gain divided by 1 − IsoScore* before removal: the share of anisotropy captured.",
    "bell": "A profile over layers whose peak is inside and clearly above both ends; a valley is its mirror image.",
    "two phases": "A quantity over training that clearly rises and then falls, or falls and then rises.",
    "drift": "The mean principal angle between the proxy now and at an earlier observation.",
    "tangency": "Whether the proxy holds local tangents of the cloud, beyond what its variance alone would give.",
    "unigram entropy": "The loss of a model that knows only how often each token occurs.",
}


def _first_upper(text: str) -> str:
    return text[:1].upper() + text[1:]


def _terms() -> dict[str, str]:
    found = dict(_OWN)
    found |= {null.name: f"A null. It breaks {null.breaks}." for null in NULLS.values()}
    found |= {proxy.name: f"A proxy: {proxy.about}." for proxy in PROXIES.values() if proxy.name not in found}
    found |= {view.name: f"A view. {view.about}" for view in VIEWS.values()}
    found |= {name: f"A timing: the proxy is {about}." for name, about in TIMINGS.items()}
    found |= {f"{name} (window)": f"A window of training: {about}." for name, about in WINDOWS.items()}
    found |= {name: f"{_first_upper(about)}." for name, about in SUBSETS.items()}
    found |= {o.name: f"An outcome: {o.about}." for o in OUTCOMES.values() if o.name not in found}
    for measure in MEASURES.values():
        if measure.about and measure.shown and measure.label not in found:
            found[measure.label] = f"{_first_upper(measure.about)}."
    return found


TERMS = _terms()


def terms() -> dict[str, str]:
    """Every term with its explanation, for the read-outs of the page."""
    return TERMS


class GlossaryEntry(NamedTuple):
    """A term in words, its ``name`` if options and rows know it by another, and what it means."""

    word: str
    name: str | None
    meaning: str


def _place(term: str) -> str:
    return word_of(term).removeprefix("the ").casefold()


def entries() -> list[GlossaryEntry]:
    """The list at the end of the page, in the order of its words."""
    words = ((term, word_of(term)) for term in sorted(TERMS, key=_place))
    return [GlossaryEntry(word, None if word == term else term, TERMS[term]) for term, word in words]
