"""Tasks of linear probes from text: what the labels are, and files of one's own."""

import numpy as np
import pytest
import torch

from anisoscope.data.corpora import Corpus
from anisoscope.data.tokens import prepare
from anisoscope.evidence.frequency_evidence import frequency_bins
from anisoscope.models.twins import ModelShape, build
from anisoscope.study.intervene.probe_tasks import probe_rows, read_labels, tasks_of

WORDS = ["alpha", "beta", "gamma", "delta", "epsilon", "zeta"]


@pytest.fixture(scope="module")
def data():
    rng = np.random.default_rng(0)

    def sentence():
        words = [str(word) for word in rng.choice(WORDS, 5)]
        words[2] = words[2].capitalize() if rng.random() < 0.5 else words[2]
        return "First " + " ".join(words) + "."

    texts = [" ".join(sentence() for _ in range(70)) for _ in range(50)]
    return prepare(Corpus("planted", texts), length=48, vocabulary=320, held_out=0.3)


@pytest.fixture(scope="module")
def model(data):
    return build("twin", "decoder", ModelShape(2, 16, 2, data.vocabulary, 48, data.pad_id), seed=0)


def test_labels_are_what_the_text_says(data):
    tasks = {task.name: task for task in tasks_of(data, None, seed=0)}
    assert set(tasks) == {"sentence order", "capital", "document", "frequency class"}
    capital = tasks["capital"]
    for (sequence, position), label in zip(capital.places, capital.examples.labels, strict=True):
        word = data.tokeniser.text(int(capital.ids[sequence, position + 1]))
        assert label == word.strip()[0].isupper()
    assert 0 < capital.examples.labels.mean() < 1
    frequency = tasks["frequency class"]
    bins = frequency_bins(torch.from_numpy(data.counts()), by="types").numpy()
    ids = frequency.ids[frequency.places[:, 0], frequency.places[:, 1]]
    assert np.array_equal(bins[ids], frequency.examples.labels)
    order = tasks["sentence order"]
    assert 0.2 < order.examples.labels.mean() < 0.8
    document = tasks["document"]
    assert len(np.unique(document.examples.labels)) == 8


def test_probing_leaves_the_model_as_it_was(data, model):
    before = [p.clone() for p in model.parameters()]
    state = torch.get_rng_state()
    model.train()
    rows = probe_rows(model, tasks_of(data, None, seed=0)[:2], {"step": 3}, seed=0)
    assert model.training
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
    assert not model.gpt_neox.layers[0]._forward_hooks
    assert {(r["measure"], r["layer"]) for r in rows} == {
        (measure, layer) for measure in ("probe", "probe_selectivity") for layer in range(3)
    }


def test_the_input_layer_knows_the_token_and_so_its_frequency(data, model):
    task = next(task for task in tasks_of(data, None, seed=0) if task.name == "frequency class")
    found = {r["layer"]: r["value"] for r in probe_rows(model, [task], {"step": 0}, seed=0) if r["measure"] == "probe"}
    assert found[0] > 0.2


def write(path, lines):
    path.write_text("\n".join(lines), encoding="utf-8")
    return str(path)


def test_labels_of_ones_own_are_probed(tmp_path, data, model):
    lines = ["text,label"] + [
        f"{'alpha beta' if k % 2 else 'zeta gamma'} delta,{'odd' if k % 2 else 'even'}" for k in range(120)
    ]
    task = tasks_of(data, write(tmp_path / "own.csv", lines), seed=0)[-1]
    rows = probe_rows(model, [task], {"step": 0}, seed=0)
    assert {r["variant"] for r in rows} == {"own labels"}
    assert max(r["value"] for r in rows if r["measure"] == "probe") > 0.3


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (["text,kind", "a,b"], "columns text and label"),
        (["text,label", *["a,b"] * 70, "only text"], "1 fields, or no label, in line 72"),
        (["text,label", *["a,b"] * 70, "a,"], "no label, in line 72"),
        (["text,label", *["a,b"] * 70], "70 and 1"),
        (["text,label", "a,b", "a,c"], "2 and 2"),
    ],
)
def test_files_of_labels_that_cannot_be_used_are_told(tmp_path, lines, message):
    with pytest.raises(ValueError, match=message):
        read_labels(write(tmp_path / "labels.csv", lines))


def test_a_file_of_labels_that_is_not_there_is_told():
    with pytest.raises(Exception, match="cannot read"):
        read_labels("/nowhere/labels.csv")
