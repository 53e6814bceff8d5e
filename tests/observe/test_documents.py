"""Documents as units: their sequences stay in one fold, count as one unit, and make intervals wide enough."""

import pytest
import torch
from torch import nn

from anisoscope.capture.sites import SiteKey
from anisoscope.evaluate.sampled_units import held_units, typed_units
from anisoscope.geometry.subspace import Subspace
from anisoscope.observe.embedding import type_folds
from anisoscope.observe.finalize import finalize
from anisoscope.observe.offline import observe_model
from anisoscope.observe.site_selection import choose
from anisoscope.scope import Scope
from anisoscope.stats.hashing import second_fold
from anisoscope.study.fold_seed import fold_seed

pytestmark = pytest.mark.filterwarnings("ignore::anisoscope.errors.ScopeWarning")  # test_notices.py is about them


class Tiny(nn.Module):
    """Embedding, two blocks with an MLP, and a loss."""

    def __init__(self, width=16, vocabulary=50):
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width)) for _ in range(2)
        )
        self.head = nn.Linear(width, vocabulary)

    def forward(self, input_ids, attention_mask=None, labels=None):
        x = self.embed(input_ids)
        for block in self.blocks:
            x = x + block(x)
        logits = self.head(x)
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=-100)
        return type("Output", (), {"loss": loss})()


def batch(n, length=12, *, seed=0, lengths=None):
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(0, 50, (n, length), generator=generator)
    mask = torch.ones_like(ids)
    for k, own in enumerate(lengths or ()):
        mask[k, own:] = 0
    return {"input_ids": ids, "attention_mask": mask, "labels": ids.masked_fill(mask == 0, -100)}


def test_sequences_of_one_document_fall_into_one_fold_and_are_one_unit():
    torch.manual_seed(0)
    model, documents = Tiny(), torch.arange(32) // 4
    given = batch(32)
    first, second = ({k: v[half] for k, v in given.items()} for half in (slice(0, 16), slice(16, 32)))
    parts = [first | {"documents": documents[:16]}, second | {"documents": documents[16:]}]
    found = observe_model(model, choose(model, None, None), parts, step=0, seed=3)
    expected = second_fold(given["input_ids"], None, seed=3, documents_B=documents)
    assert all(len(expected[documents == d].unique()) == 1 for d in range(8))
    assert found.units(0) + found.units(1) == 8
    assert found.units(1) == len(documents[expected].unique())
    for fold in (0, 1):
        sample = found.kept("tokens", SiteKey(0), "all", fold)
        sizes = torch.unique(sample.sequences, return_counts=True)[1]
        assert sizes.tolist() == [4 * 12] * found.units(fold)


def test_sequences_of_unequal_length_in_one_document_keep_their_own_gradients():
    """The weight view puts sequences side by side: none may lend its tail to another of its document."""
    torch.manual_seed(0)
    model = Tiny()
    lengths = [12, 5, 9, 3, 12, 7, 4, 11]
    documents = torch.tensor([0, 0, 1, 1, 2, 2, 3, 3])
    given = batch(8, lengths=lengths)
    choice = choose(model, None, ("weight",))
    seed = fold_seed([given | {"documents": documents}], seed=0)
    seen = observe_model(model, choice, [given | {"documents": documents}], step=0, seed=seed)
    plain = observe_model(model, choice, [given], step=0, seed=seed)
    (at, *_) = seen.sites("weight", "gradients")
    width = seen.sum("weight", at, "gradients", 0).shape[1]
    proxy = Subspace(torch.eye(width, 3, dtype=torch.float64))
    # The sum over all sequences does not depend on how they are grouped.
    whole = sum(seen.sum("weight", at, "gradients", fold) for fold in (0, 1))
    assert torch.allclose(whole, sum(plain.sum("weight", at, "gradients", fold) for fold in (0, 1)))
    mask = given["attention_mask"].bool()
    second = second_fold(given["input_ids"], mask, seed=seed, documents_B=documents)
    for fold in (0, 1):
        units = held_units(seen, at, fold, proxy)
        used = units.inputs.abs().sum(2) > 0  # whole sequences: the padded tail of each is empty
        members = [k for k in range(8) if bool(second[k]) == bool(fold)]
        assert sorted(used.sum(1).tolist()) == sorted(lengths[k] for k in members)
        assert len(units.ids) == len(members) // 2


def test_the_scope_takes_documents_over_micro_batches_and_says_if_there_are_too_few():
    torch.manual_seed(0)
    model = Tiny()
    scope = Scope(model, steps=2, schedule=[0, 1], rank=4, views=("representation",), nulls=("haar",), resamples=19)
    parts = [batch(16, seed=1), batch(16, seed=2)]
    with scope.step(documents=torch.arange(32) // 2):
        for part in parts:
            model(**part).loss.backward()
    with scope.step(documents=[0, 1, 2]):
        for part in parts:
            model(**part).loss.backward()
    rows = scope.rows()
    scope.close()
    energy = [r for r in rows if r["measure"] == "enrichment" and r["step"] == 0]
    assert energy
    assert all(r["n"] == 16 for r in energy)
    (skipped,) = [r for r in rows if r["measure"] == "skipped"]
    assert "documents must name one id for each of the 32 sequences" in skipped["note"]


def test_other_labels_pass_in_the_same_folds():
    torch.manual_seed(0)
    model, documents = Tiny(), torch.arange(32) // 2
    given = batch(32) | {"documents": documents}
    found = observe_model(model, choose(model, None, ("weight",)), [given], step=0, seed=1, targets=True)
    (at, *_) = found.sites("weight", "gradients")
    for fold in (0, 1):
        own = found.kept("weight", at, "inputs", fold).sequences.unique()
        other = found.kept("weight", at, "inputs", fold, under="targets").sequences.unique()
        assert torch.equal(own, other)
        assert len(own) == found.units(fold)


@pytest.mark.parametrize("seed", [0, 1])
def test_the_fold_seed_counts_documents_and_not_sequences(seed):
    documents = torch.arange(40) // 4
    given = batch(40, seed=seed) | {"documents": documents}
    chosen = fold_seed([given], seed=seed)
    second = second_fold(given["input_ids"], given["attention_mask"].bool(), seed=chosen, documents_B=documents)
    assert min(len(documents[second].unique()), len(documents[~second].unique())) >= 4


def test_the_gradient_of_the_embedding_by_sequence_adds_up_and_leaves_out_what_it_should():
    """Against the table made again without each sequence, in both folds of types together."""
    torch.manual_seed(0)
    model, given = Tiny(), batch(12, seed=5)
    found = finalize(
        observe_model(model, choose(model, None, ("embedding",)), [given], step=0, seed=2, targets=True),
        rows=8192,
        seed=2,
    )
    generator = torch.Generator().manual_seed(1)
    pair = tuple(
        Subspace(torch.linalg.qr(torch.randn(16, 5, generator=generator, dtype=torch.float64)).Q) for _ in "ab"
    )
    units = typed_units(found, pair)
    assert len(units.ids) == 12
    ids = given["input_ids"]
    vectors = model.embed(ids).detach().requires_grad_()
    logits_loss = model_loss(model, vectors, given["labels"])
    (gradient,) = torch.autograd.grad(logits_loss, vectors)
    side = type_folds(torch.arange(50), seed=2)

    def energies(kept):
        table = torch.zeros(50, 16, dtype=torch.float64).index_add_(
            0, ids[kept].flatten(), gradient[kept].flatten(0, 1).double()
        )
        inside = sum(float((table[side == f] @ pair[1 - f].basis).square().sum()) for f in (0, 1))
        return inside, float(table.square().sum()) - inside

    inside, outside = energies(list(range(12)))
    assert float(units.total.inside) == pytest.approx(inside, rel=1e-4)
    assert float(units.total.outside) == pytest.approx(outside, rel=1e-4)
    expected = sorted(energies([k for k in range(12) if k != left])[0] for left in range(12))
    assert sorted(units.left_out().inside.tolist()) == pytest.approx(expected, rel=1e-4)
    other = typed_units(found, pair, "targets")
    joint = units.joined(other, (1.0, 1.0)).mix(torch.ones(1, 24, dtype=torch.float64))
    both = units.sums.new_zeros(2, 50, 16)
    for k, side_units in enumerate((units, other)):
        both[k].index_add_(0, side_units.types, side_units.sums)
    summed = both.sum(0)
    truth = sum(float((summed[side == f] @ pair[1 - f].basis).square().sum()) for f in (0, 1))
    assert float(joint.inside[0]) == pytest.approx(truth, rel=1e-9)


def model_loss(model, vectors, labels):
    x = vectors
    for block in model.blocks:
        x = x + block(x)
    return nn.functional.cross_entropy(model.head(x).flatten(0, 1), labels.flatten(), ignore_index=-100)
