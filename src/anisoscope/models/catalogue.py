"""Models that the literature names: a short name, the repository on the hub, what it was trained for, its checkpoints.

The table saves typing and nothing else: a model that is not in it is used by its name on the hub or its path.
Repositories were looked up in public model cards and code. Whether transformers knows a ``model_type`` by itself is
asked of the library that is installed, never of this table: EuroBERT, say, came late.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from anisoscope.models.revisions import PYTHIA, place

Objective = Literal["causal", "masked"]
AUTO = "auto"


@dataclass(frozen=True, slots=True)
class Entry:
    """One model.

    ``revisions`` are its checkpoints on the way: labels (a tag, a branch, or ``REVISION:FOLDER``), ``"auto"`` where
    the hub is asked for branches, tags and folders that tell a step, or none. ``history`` is the repository that holds
    them if it is not the model's own.
    """

    name: str
    repository: str
    objective: Objective
    model_type: str
    revisions: tuple[str, ...] | Literal["auto"] = ()
    history: str | None = None

    def source(self, revision: str | None) -> str:
        """The repository of a revision: checkpoints on the way may have one of their own.

        >>> entry = find("SmolLM2-360M")
        >>> entry.source(None), entry.source("step-160000")
        ('HuggingFaceTB/SmolLM2-360M', 'HuggingFaceTB/SmolLM2-360M-intermediate-checkpoints')
        """
        on_the_way = revision is not None and place(revision) is not None
        return self.history if self.history and on_the_way else self.repository


def _smollm2(size: str) -> Entry:
    # The model's own repository has the final weights only; its history has a branch for each step, as step-160000.
    repository = f"HuggingFaceTB/SmolLM2-{size}"
    return Entry(f"SmolLM2-{size}", repository, "causal", "llama", AUTO, f"{repository}-intermediate-checkpoints")


CATALOGUE: tuple[Entry, ...] = (
    Entry("EuroBERT-210m", "EuroBERT/EuroBERT-210m", "masked", "eurobert", AUTO),
    Entry("EuroBERT-610m", "EuroBERT/EuroBERT-610m", "masked", "eurobert", AUTO),
    Entry("ModernBERT-base", "answerdotai/ModernBERT-base", "masked", "modernbert", AUTO),
    Entry("ModernBERT-large", "answerdotai/ModernBERT-large", "masked", "modernbert", AUTO),
    Entry("ModernCamemBERT", "almanach/moderncamembert-base", "masked", "modernbert", AUTO),
    Entry("OLMo-1B", "allenai/OLMo-1B-hf", "causal", "olmo", AUTO),  # branches such as step20000-tokens84B
    Entry("Pythia-14m", "EleutherAI/pythia-14m", "causal", "gpt_neox", PYTHIA),
    Entry("Pythia-31m", "EleutherAI/pythia-31m", "causal", "gpt_neox", PYTHIA),
    Entry("Pythia-70m", "EleutherAI/pythia-70m", "causal", "gpt_neox", PYTHIA),
    Entry("Pythia-160m", "EleutherAI/pythia-160m", "causal", "gpt_neox", PYTHIA),
    Entry("Pythia-410m", "EleutherAI/pythia-410m", "causal", "gpt_neox", PYTHIA),
    Entry("Pythia-1B", "EleutherAI/pythia-1b", "causal", "gpt_neox", PYTHIA),
    # Of 1.5 billion parameters, as its card says; the repository rounds down. Gated: its terms must be accepted.
    Entry("Gaperon-1.5B", "almanach/Gaperon-1125-1B", "causal", "llama", AUTO),
    _smollm2("135M"),
    _smollm2("360M"),
    _smollm2("1.7B"),
    Entry("BERT", "google-bert/bert-base-uncased", "masked", "bert"),
    Entry("RoBERTa", "FacebookAI/roberta-base", "masked", "roberta"),
    Entry("ALBERT", "albert/albert-base-v2", "masked", "albert"),
    Entry("OPT", "facebook/opt-125m", "causal", "opt"),
    Entry("OPT-350m", "facebook/opt-350m", "causal", "opt"),
    Entry("OPT-1.3b", "facebook/opt-1.3b", "causal", "opt"),
    Entry("OPT-6.7b", "facebook/opt-6.7b", "causal", "opt"),
    Entry("Llama-2", "meta-llama/Llama-2-7b-hf", "causal", "llama"),  # gated too
    Entry("GPT-2", "openai-community/gpt2", "causal", "gpt2"),
    Entry("GPT-J", "EleutherAI/gpt-j-6b", "causal", "gptj"),
    Entry("Falcon", "tiiuae/falcon-7b", "causal", "falcon"),
)
_BY_NAME = {
    name.lower(): entry
    for entry in CATALOGUE
    for name in (entry.repository.partition("/")[2], entry.repository, entry.name)
}


def find(name: str) -> Entry | None:
    """The entry of a short name or of a repository, with its owner or without; None for a model not in the table.

    >>> find("gpt-2") is find("gpt2") is find("openai-community/gpt2"), find("somebody/gpt2")
    (True, None)
    """
    return _BY_NAME.get(name.lower())
