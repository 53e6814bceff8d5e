"""Frequency beside a training: every number that of slow loops over all activations, gradients and tables."""

import math
from functools import cache

import numpy as np
import pytest
import torch
from scipy import stats

from anisoscope import Scope, fit_subspace
from anisoscope.errors import BrokenRuleError
from anisoscope.evidence.frequency_evidence import frequency_bins
from anisoscope.observe.embedding_tables import read_table
from anisoscope.stats.hashing import second_fold
from capture.families import VOCABULARY, batch, build
from observe.grouped import grouped
from reference import slow_types as types

pytestmark = pytest.mark.filterwarnings("ignore::anisoscope.errors.ScopeWarning")  # test_notices.py is about them

STEPS, SEQUENCES, LAYER = 4, 30, 2


def hidden_of(model):
    return model.bert.encoder.layer if hasattr(model, "bert") else model.gpt_neox.layers


def lesson(name, step):
    """A batch; an encoder is asked for some tokens that are hidden from it."""
    given = batch(seed=step, sequences=SEQUENCES)
    if name == "bert":
        hidden = (torch.arange(given["input_ids"].shape[1]) % 3 == 1) & given["attention_mask"].bool()
        given["labels"] = torch.where(hidden, given["input_ids"], -100)
        given["input_ids"] = torch.where(hidden, 1, given["input_ids"])
    return given


COUNTS = 1 + torch.arange(VOCABULARY).flip(0) ** 2


@cache
def watched(name, counted=True):
    """A short training under a scope that observes every step, with all that passed kept beside it."""
    torch.manual_seed(1)
    model = build(name).eval()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    frequency = {True: True, False: COUNTS, None: False}[counted]
    scope = Scope(model, rank=4, resamples=49, schedule=1, strict=True, frequency=frequency)
    kept = []

    def keep(module, args, output):
        x = output[0] if isinstance(output, tuple) else output
        x.register_hook(lambda gradient: last.update(gradient=gradient.clone()))
        last["activation"] = x.detach().clone()

    block = hidden_of(model)[LAYER - 1]
    for step in range(STEPS):
        given, last = lesson(name, step), {}
        tables = {
            "input": model.get_input_embeddings().weight.detach().double().clone(),
            "output": model.get_output_embeddings().weight.detach().double().clone(),
        }
        hook = block.register_forward_hook(keep)
        with scope.step():
            model(**given).loss.backward()
        hook.remove()
        optimizer.step()
        optimizer.zero_grad()
        kept.append({"batch": given, "tables": tables, **last})
    return scope, kept


def tokens_of(kept):
    return torch.cat([k["batch"]["input_ids"][k["batch"]["attention_mask"].bool()] for k in kept])


def value(rows, **wanted):
    found = [r for r in rows if all(r[name] == item for name, item in wanted.items())]
    assert len(found) == 1, (wanted, len(found))
    return found[0]


@pytest.mark.parametrize("name", ["gpt_neox", "bert"])
def test_embeddings_against_frequency_are_those_of_a_slow_reference(name):
    scope, kept = watched(name)
    rows, last = scope.rows(), STEPS - 1
    counts = np.bincount(tokens_of(kept).numpy(), minlength=VOCABULARY)
    seen = counts > 0
    x = np.log(counts[seen])
    tied = bool(torch.equal(kept[0]["tables"]["input"], kept[0]["tables"]["output"]))
    assert {r["tensor"] for r in rows if r["measure"] == "frequency_correlation" and r["view"] == "embedding"} == (
        {"input"} if tied else {"input", "output"}
    )
    for points in ("input",) if tied else ("input", "output"):
        table = kept[last]["tables"][points].numpy()
        for centre, middle in (("plain", table[seen].mean(0)), ("weighted", counts @ table / counts.sum())):
            distance = np.linalg.norm(table[seen] - middle, axis=1)
            for how, expected in (("pearson", stats.pearsonr), ("spearman", stats.spearmanr)):
                variant = f"distance, {centre}, {how}"
                found = value(rows, step=last, tensor=points, measure="frequency_correlation", variant=variant)
                assert found["value"] == pytest.approx(expected(x, distance)[0], abs=1e-5)
                if how == "spearman" or found["note"] is None:
                    assert found["low"] < found["value"] < found["high"]
                assert found["n"] == seen.sum()
        wander = np.stack([k["tables"][points].numpy() for k in kept]).var(0).sum(1)[seen]
        found = value(rows, step=last, tensor=points, measure="frequency_correlation", variant="trajectory, spearman")
        assert found["value"] == pytest.approx(stats.spearmanr(x, wander)[0], abs=1e-6)
    early = [r for r in rows if r["step"] < 2 and (r["variant"] or "").startswith("trajectory")]
    assert not early  # two places are no trajectory


@pytest.mark.parametrize("name", ["gpt_neox", "bert"])
def test_contextual_vectors_by_type_are_those_of_a_slow_reference(name):
    counts = COUNTS
    scope, kept = watched(name, counted=False)
    rows, last = scope.rows(), STEPS - 1
    given, activation = kept[last]["batch"], kept[last]["activation"].double()
    mask = given["attention_mask"].bool().clone()
    first = mask.int().argmax(1)
    mask[torch.arange(len(mask)), first] = False
    tokens, vectors, sequences = given["input_ids"][mask], activation[mask], torch.nonzero(mask)[:, 0]
    ids = [i for i in range(VOCABULARY) if len(sequences[tokens == i].unique()) >= 4]
    means = torch.stack([vectors[tokens == i].mean(0) for i in ids])
    spread, noise = (
        torch.tensor([slow(vectors[tokens == i], sequences[tokens == i]) for i in ids])
        for slow in (types.spread, types.noise)
    )
    x = counts[ids].double().log()
    common = {"step": last, "layer": LAYER, "view": "representation", "measure": "frequency_correlation"}
    found = value(rows, **common, variant="spread, pearson")
    assert found["value"] == pytest.approx(stats.pearsonr(x, spread)[0], abs=1e-5)
    for centre, middle in (("plain", means.mean(0)), ("weighted", vectors.mean(0))):
        square = (means - middle).square().sum(1) - noise
        found = value(rows, **common, variant=f"distance, {centre}, spearman")
        assert found["value"] == pytest.approx(stats.spearmanr(x, square.clamp_min(0).sqrt())[0], abs=1e-6)
    bins = frequency_bins(counts, by="types")
    scale = (vectors - vectors.mean(0)).square().sum(1).mean()
    for k in range(5):
        chosen = torch.tensor([int(bins[i]) == k for i in ids])
        found = value(rows, step=last, layer=LAYER, measure="bin_spread", subset=f"input types {k + 1}/5")
        expected = math.nan if not chosen.any() else float((spread[chosen].square().mean() / scale).sqrt())
        assert found["value"] == pytest.approx(expected, rel=1e-5, nan_ok=True)


@pytest.mark.parametrize("name", ["gpt_neox", "bert"])
@pytest.mark.parametrize("side", ["input", "target"])
def test_gradients_by_bin_are_those_of_a_slow_reference(name, side):
    counts = COUNTS
    scope, kept = watched(name, counted=False)
    rows, last = scope.rows(), STEPS - 1
    given = kept[last]["batch"]
    activation, gradient = (kept[last][part].double() for part in ("activation", "gradient"))
    mask, ids = given["attention_mask"].bool(), given["input_ids"]
    if side == "input":
        asked = torch.where(mask, ids, -1)
    elif name == "bert":
        asked = torch.where(mask, given["labels"], -100)
    else:
        asked = torch.cat([given["labels"][:, 1:], torch.full((len(ids), 1), -100)], 1)
        asked = torch.where(mask, asked, -100)
    second = second_fold(ids, mask, seed=0)
    proxies = [fit_subspace(activation[fold][mask[fold]], method="pca", rank=4).basis for fold in (~second, second)]
    width = activation.shape[-1]
    every = gradient[mask]
    moment = every.T @ every
    moment -= moment.trace() / width * torch.eye(width).double()
    for by in ("tokens", "types"):
        bins = frequency_bins(counts, by=by)
        place = torch.where(asked >= 0, bins[asked.clamp_min(0)], -1)
        whole = float(every.square().sum())
        losses = ((every @ moment) * every).sum()
        for k in range(5):
            inside = outside = 0.0
            for fold, basis in ((second, proxies[0]), (~second, proxies[1])):
                g = gradient[fold][place[fold] == k]
                inside += float((g @ basis).square().sum())
                outside += float((g - g @ basis @ basis.T).square().sum())
            rest = {"step": last, "layer": LAYER, "tensor": "gradients", "subset": f"{side} {by} {k + 1}/5"}
            found = value(rows, **rest, measure="bin_enrichment", view="representation")
            expected = math.nan if not outside else (inside / 4) / (outside / (width - 4))
            assert found["value"] == pytest.approx(expected, rel=1e-4, nan_ok=True)
            energy = value(rows, **rest, measure="bin_energy", view="representation")
            empty = not (place[mask] == k).any()
            expected = math.nan if empty else (inside + outside) / whole
            assert energy["value"] == pytest.approx(expected, rel=1e-4, nan_ok=True)
            g = gradient[place == k]
            loss = value(rows, **rest, measure="bin_isotropy_loss", view="representation")
            expected = math.nan if empty else float(((g @ moment) * g).sum() / losses)
            assert loss["value"] == pytest.approx(expected, rel=1e-3, abs=1e-6, nan_ok=True)


def test_the_update_of_embeddings_is_judged_by_bin():
    scope, _ = watched("gpt_neox")
    rows = [r for r in scope.rows() if r["view"] == "embedding" and r["measure"] == "bin_enrichment"]
    assert {r["tensor"] for r in rows} == {"gradients", "update"}
    assert {r["subset"] for r in rows} == {f"input {by} {k}/5" for by in ("tokens", "types") for k in range(1, 6)}


def test_a_table_larger_than_the_sample_keeps_its_true_centres():
    torch.manual_seed(0)
    table, counts = torch.randn(500, 6), torch.randint(0, 4, (500,))
    found = read_table(table, counts, rows=60, seed=3)
    assert len(found.ids) == len(set(found.ids.tolist())) == 60
    assert torch.equal(found.rows, table[found.ids])
    torch.testing.assert_close(found.plain, table[counts > 0].mean(0))
    torch.testing.assert_close(found.weighted, (counts.float() @ table) / counts.sum())
    again = read_table(table * 2, counts, rows=30, seed=3)
    assert torch.equal(again.ids, found.ids[:30])  # the same types at every observation, and prefixes are samples


def test_nothing_is_said_unless_asked_for():
    scope, _ = watched("gpt_neox", counted=None)
    assert not [r for r in scope.rows() if r["measure"].startswith(("frequency", "bin_"))]


@pytest.mark.parametrize(
    ("asked", "said"),
    [(torch.ones(7), "40 types"), (torch.zeros(VOCABULARY), "0 or more"), (-torch.ones(VOCABULARY), "0 or more")],
)
def test_counts_that_cannot_be_are_refused(asked, said):
    with pytest.raises(BrokenRuleError, match=said):
        Scope(build("gpt_neox"), rank=4, frequency=asked)


def test_counting_needs_the_embedding_view():
    with pytest.raises(BrokenRuleError, match="embedding view"):
        Scope(build("gpt_neox"), rank=4, frequency=True, views=("representation",))


def test_a_restart_goes_on_with_counts_and_trajectories():
    def go(model, scope, steps):
        for step in steps:
            with scope.step():
                model(**batch(seed=step, sequences=SEQUENCES)).loss.backward()
            with torch.no_grad():
                for p in model.parameters():
                    p -= 0.05 * (p.grad if p.grad is not None else 0)
            model.zero_grad()

    options = {"rank": 4, "resamples": 19, "schedule": 1, "strict": True, "frequency": True, "resumable": True}
    torch.manual_seed(1)
    model = build("gpt_neox").eval()
    whole = Scope(model, **grouped(**options))
    go(model, whole, range(5))
    torch.manual_seed(1)
    model = build("gpt_neox").eval()
    before = Scope(model, **grouped(**options))
    go(model, before, range(3))
    after = Scope(model, **grouped(first_step=3, **options))
    after.restore(before.state())
    go(model, after, range(3, 5))
    wanted = [r for r in whole.rows() if r["step"] >= 3 and r["measure"] == "frequency_correlation"]
    found = [r for r in after.rows() if r["measure"] == "frequency_correlation"]
    wandering = [r for r in wanted if r["view"] == "representation" and r["variant"].startswith("trajectory")]
    assert wandering
    assert not any(math.isnan(r["value"]) for r in wandering)
    for a, b in zip(wanted, found, strict=True):
        assert a["variant"] == b["variant"], (a, b)
        assert b["value"] == pytest.approx(a["value"], abs=1e-9, nan_ok=True), (a, b)
