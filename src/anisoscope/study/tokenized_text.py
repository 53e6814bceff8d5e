"""The text that every model of a study reads, and models ready to read it.

A model, its configuration and its text are checked here, before any long work starts.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from anisoscope.capture.sites import Sites
from anisoscope.data.corpora import load_corpus
from anisoscope.data.passages import passages
from anisoscope.data.tokeniser_files import load_tokeniser
from anisoscope.data.tokenisers import Tokeniser, finished, library
from anisoscope.data.tokens import Sequences, Tokenised
from anisoscope.errors import broken
from anisoscope.models.cards import Card
from anisoscope.models.loading import load, untrained
from anisoscope.models.located import converted_tokeniser
from anisoscope.models.twins import Role
from anisoscope.observe.embedding import vocabulary_of
from anisoscope.observe.probe import FEWEST, Probe
from anisoscope.store.run import Run
from anisoscope.study.dataset import TrainingDataset, collated
from anisoscope.study.fold_seed import fold_seed, use_documents
from anisoscope.study.model_settings import TextSettings

ROLES: dict[str, Role] = {"causal": "decoder", "masked": "encoder"}


@dataclass(frozen=True, slots=True, eq=False)
class TokenizedText:
    """Text as one kind of model reads it: the same for every checkpoint.

    The first sequences serve for gradients, those after them for the intrinsic dimension.
    """

    data: Tokenised
    role: Role
    seed: int  # under which neither fold of sequences is too small
    gradient_sequences: int

    @property
    def units(self) -> str:
        """What is independent of all else."""
        return "sequence" if self.data.held.documents is None else "document"

    def chunks(self, settings: TextSettings) -> list[dict[str, Tensor]]:
        """The labelled text, a few sequences at a time."""
        count = self.gradient_sequences
        lessons = TrainingDataset(
            self.data, self.role, samples=count, seed=settings.seed, mask_rate=settings.mask_rate, held=True
        )
        found = []
        for start in range(0, count, settings.chunk):
            end = min(start + settings.chunk, count)
            chunk = collated([lessons[k] for k in range(start, end)])
            documents = lessons.documents(start, end)
            found.append(chunk if documents is None else chunk | {"documents": documents})
        return found

    def probe(self, tokens: int) -> Probe | None:
        """Sequences that no gradient is taken of, of about so many tokens; none where there are not enough."""
        part = self.data.held.rows(slice(self.gradient_sequences, None))
        total = np.cumsum(part.lengths)
        count = int(np.searchsorted(total, tokens)) + 1
        if not tokens or not len(total) or total[min(count, len(total)) - 1] < FEWEST:
            return None
        ids = torch.from_numpy(part.ids[:count].astype(np.int64))
        mask = torch.arange(ids.shape[1])[None] < torch.from_numpy(part.lengths[:count].astype(np.int64))[:, None]
        return Probe({"input_ids": ids, "attention_mask": mask.long()}, seed=self.seed)

    def frequency(self, sites: Sites) -> Tensor | None:
        """How often each type of a model's embedding comes in the text."""
        if sites.embedding is None:
            return None
        counts, size = self.data.counts(), vocabulary_of(sites.embedding.module)
        return torch.from_numpy(np.pad(counts, (0, max(0, size - len(counts))))[:size])

    def keep(self, run: Run, seed: int) -> None:
        """Put it into a run, so that every worker reads the very same."""
        data, about = self.data, {"role": self.role, "seed": self.seed, "gradient_sequences": self.gradient_sequences}
        about |= {"vocabulary": data.vocabulary, "pad": data.pad_id, "mask": data.mask_id}
        about |= {"special": list(data.special_ids), "about": data.about, "fingerprint": data.fingerprint}
        texts = {"about": json.dumps(about), "tokeniser": data.tokeniser.to_json()}
        written = {name: np.frombuffer(text.encode(), np.uint8) for name, text in texts.items()}
        arrays = {"ids": data.held.ids, "lengths": data.held.lengths, **written}
        if data.held.documents is not None:
            arrays["documents"] = data.held.documents
        run.write_tensors(f"text-{seed}", arrays)

    @classmethod
    def kept(cls, run: Run, seed: int) -> TokenizedText:
        """Read it back."""
        found = run.tensors(f"text-{seed}")
        about = json.loads(found["about"].tobytes())
        backend = library().Tokenizer.from_str(found["tokeniser"].tobytes().decode())
        ids = (about["pad"], about["mask"], None, tuple(about["special"]))
        tokeniser = Tokeniser(backend, about["vocabulary"], *ids, about["about"]["tokeniser"])
        part = Sequences(found["ids"], found["lengths"], found.get("documents"))
        data = Tokenised(
            part, part, about["vocabulary"], *ids[:2], ids[3], tokeniser, about["fingerprint"], about["about"]
        )
        return cls(data, about["role"], about["seed"], about["gradient_sequences"])


def require_fitting(card: Card, settings: TextSettings, rank: int | str, flag: str = "--rank") -> None:
    """Raise for settings that this model cannot serve."""
    if isinstance(rank, int) and rank > card.width // 2:
        raise broken(f"the rank must be at most half of the width, {card.width // 2}", rank, f"lower it with {flag}")
    longest = getattr(card.config, "max_position_embeddings", None)
    if isinstance(longest, int) and settings.length > longest:
        raise broken(f"{card.located.name} takes up to {longest} tokens", settings.length, "lower it with --length")


def tokeniser_of(card: Card, settings: TextSettings) -> Tokeniser:
    """The model's own tokeniser, or the one that was named; raises if the two do not fit."""
    own = card.located.path / "tokenizer.json"
    if settings.tokeniser is not None or own.is_file():
        found = load_tokeniser(settings.tokeniser or str(own))
    else:
        parts = converted_tokeniser(card.located)
        found = finished(parts.backend, dict(parts.about), roles=parts.roles)
    if found.own_vocabulary > card.vocabulary:
        raise broken(
            f"the tokeniser's vocabulary must not be larger than the embedding of {card.located.name}, "
            f"{card.vocabulary:,} rows",
            f"{found.own_vocabulary:,} tokens",
            "name the model's own tokeniser with --tokeniser",
        )
    if card.objective == "masked" and found.mask_id >= found.own_vocabulary:
        raise broken(
            "a masked language model must have a mask token", "a tokeniser without one", "name another with --tokeniser"
        )
    return found


def read_text(card: Card, settings: TextSettings, *, sequences: int) -> TokenizedText:
    """Tokenise once what all models of a study read; the first sequences serve for gradients."""
    tokeniser = tokeniser_of(card, settings)
    corpus = load_corpus(settings.text, seed=settings.seed)
    wanted = max(sequences, settings.sequences)
    data = passages(corpus, tokeniser, length=settings.length, sequences=wanted, seed=settings.seed, fewest=FEWEST)
    role = ROLES[card.objective]
    known = data.held.units()
    first = None if known is None else torch.from_numpy(known[: settings.sequences].astype(np.int64))
    if not use_documents([first], settings.units):
        bare = replace(data.held, documents=None)
        data = replace(data, train=bare, held=bare)
    chunks = TokenizedText(data, role, settings.seed, settings.sequences).chunks(settings)
    together = {name: torch.cat([chunk[name] for chunk in chunks]) for name in chunks[0]}
    return TokenizedText(data, role, fold_seed([together], seed=settings.seed), settings.sequences)


def loaded(card: Card, settings: TextSettings) -> torch.nn.Module:
    """The model's weights, ready to be looked at."""
    return load(
        card,
        dtype=settings.dtype,
        device=settings.place,
        device_map=settings.device_map,
        allow_pickle=settings.allow_pickle,
        trust_remote_code=settings.trust_remote_code,
        seed=settings.seed,
    )


def twin(card: Card, settings: TextSettings) -> torch.nn.Module:
    """The same configuration, untrained."""
    return untrained(
        card,
        seed=settings.seed,
        dtype=settings.dtype,
        device=settings.place,
        trust_remote_code=settings.trust_remote_code,
    )
