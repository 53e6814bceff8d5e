"""The table of named models, each with a stand-in of its architecture in a cache as the hub's."""

import pytest
import torch

from anisoscope.data.tokeniser_files import load_tokeniser
from anisoscope.models.catalogue import CATALOGUE, find
from anisoscope.models.loading import describe, load, locate, untrained
from anisoscope.models.revisions import place
from models.snapshots import ENCODERS, LAYERS, VOCABULARY, WIDTH, batch, cache_model, offline, tiny

# Where an architecture has forms that differ, the stand-in has the form of the model itself.
FORMS = {
    "OPT-350m": {"word_embed_proj_dim": 8, "do_layer_norm_before": False},
    "Llama-2": {"num_key_value_heads": 2, "tie_word_embeddings": False},
    "SmolLM2-135M": {"tie_word_embeddings": True},
}
REVISIONS = {"OLMo-1B": "step20000-tokens84B", "Pythia-410m": "step512", "SmolLM2-360M": "step-160000"}
EUROBERT_CODE = {"AutoConfig": "configuration_eurobert.X", "AutoModelForMaskedLM": "modeling_eurobert.Y"}


def test_a_model_is_found_by_its_short_name_or_its_repository_in_any_case():
    for entry in CATALOGUE:
        owner, name = entry.repository.split("/")
        for called in (entry.name, name, entry.repository, entry.name.upper(), f"{owner}/{name}".lower()):
            assert find(called) is entry
    assert find("nobody/bert-base-uncased") is None
    assert find("") is None


def test_the_table_is_sound():
    assert len({entry.name.lower() for entry in CATALOGUE}) == len(CATALOGUE)
    for entry in CATALOGUE:
        assert entry.objective == ("masked" if entry.model_type in ENCODERS else "causal")
        if entry.revisions != "auto":
            assert all(place(label) for label in entry.revisions)


def test_checkpoints_on_the_way_may_have_a_repository_of_their_own():
    smol, pythia = find("smollm2-1.7b"), find("pythia-1b")
    assert smol.source("step-125000") == "HuggingFaceTB/SmolLM2-1.7B-intermediate-checkpoints"
    assert smol.source("main") == smol.source(None) == smol.repository
    assert pythia.source("step1") == pythia.repository
    assert "step143000" in pythia.revisions


@pytest.mark.parametrize("entry", CATALOGUE, ids=lambda entry: entry.name)
def test_a_stand_in_of_every_entry_is_located_described_and_loaded(entry, tmp_path, monkeypatch):
    offline(monkeypatch)
    saved = tiny(entry.model_type, seed=5, **FORMS.get(entry.name, {}))
    told = {"auto_map": EUROBERT_CODE} if entry.model_type == "eurobert" else {}  # as the hub's own file has it
    revision = REVISIONS.get(entry.name)
    cache_model(tmp_path, entry.source(revision), saved, revision=revision or "main", **told)

    torch.manual_seed(7)
    random = torch.get_rng_state()
    located = locate(entry.name, revision, cache=tmp_path)
    card = describe(located)
    model = load(card)
    twins = [untrained(card, seed=seed) for seed in (0, 0, 1)]
    assert torch.equal(random, torch.get_rng_state())

    assert (located.name, located.revision) == (entry.repository.split("/")[1], revision)
    assert (card.objective, card.config.model_type) == (entry.objective, entry.model_type)
    assert (card.layers, card.width, card.vocabulary, card.notes) == (LAYERS, WIDTH, VOCABULARY, ())
    assert card.parameters == sum(one.numel() for one in saved.parameters())
    assert card.dtype == torch.float32
    assert type(model) is type(saved) is type(twins[0])
    _same(model, saved)
    _same(twins[0], twins[1])
    for twin in (twins[0], twins[2]):
        assert not _equal(twin, saved)
    assert not _equal(twins[0], twins[2])
    for one in (model, twins[0]):
        assert not one.training
        loss = one(**batch(card.objective)).loss
        loss.backward()
        assert torch.isfinite(loss)
        assert all(torch.isfinite(part.grad).all() for part in one.parameters() if part.grad is not None)
        assert sum(part.grad is not None for part in one.parameters()) > 4
    tokeniser = load_tokeniser(str(located.path))
    assert tokeniser.encode("ab") == [5, 6]
    assert (tokeniser.pad_id, tokeniser.mask_id, tokeniser.end_id) == (0, 1, 2)
    assert tokeniser.own_vocabulary == VOCABULARY


def _same(one, other):
    ours, theirs = one.state_dict(), other.state_dict()
    assert ours.keys() == theirs.keys()
    for name in ours:
        assert torch.equal(ours[name], theirs[name]), name


def _equal(one, other):
    theirs = other.state_dict()
    return all(torch.equal(tensor, theirs[name]) for name, tensor in one.state_dict().items())
