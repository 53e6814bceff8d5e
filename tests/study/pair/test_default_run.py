"""The default job as a newcomer runs it: what is promised of it holds (minutes; `make slow`)."""

import math
import re
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats

from anisoscope import open_run
from anisoscope.capture.sites import find_sites
from anisoscope.data.tokens import prepare
from anisoscope.evidence.frequency_evidence import frequency_bins
from anisoscope.models.loading import describe, load, locate
from anisoscope.report.reading import read
from anisoscope.report.sections.expectations import EXPECTED
from anisoscope.study.dataset import TrainingDataset, collated
from anisoscope.study.pair.pair_settings import PairSettings
from reference import slow_types as types

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def out(tmp_path_factory):
    """The run; the weights of every observation are kept, which changes no number."""
    out = tmp_path_factory.mktemp("default") / "run"
    subprocess.run([sys.executable, "-m", "anisoscope.cli", "pair", "--history", "--out", str(out)], check=True)
    return out


def test_what_is_promised_of_the_default_run_holds(out):
    assert open_run(out).finished
    assert (out / "report.html").stat().st_size < 5_000_000
    found = {(s.role, e.says): e.found(s) for s in read([str(out)]).subjects for e in EXPECTED}
    assert len(found) == 2 * len(EXPECTED)
    # What one run of two small models can tell; the encoder at step 0 and pairing at the end are open or do not hold.
    sure = ("At the end of training", "Permuted labels", "The weight view is above")
    broken = {key: said for key, said in found.items() if key[1].startswith(sure) and (not said or said[0] != "holds")}
    assert not broken
    said = [words for (_, says), words in found.items() if says.startswith("The final loss")]
    assert [words[0] for words in said] == ["no verdict"] * 2  # one training has no interval; the numbers are these
    assert all(loss < entropy for loss, entropy in ([float(x) for x in re.findall(r"\d+\.\d+", s[1])] for s in said))


@pytest.mark.parametrize("role", ["decoder", "encoder"])
def test_its_frequency_statistics_are_those_of_a_slow_reference(out, role):
    """From the weights that were kept and the batches they were observed on, with loops and scipy."""
    run, given = open_run(out), PairSettings()
    assert given.steps == 400
    rows = [r for r in run.table().to_pylist() if r["role"] == role]
    data = prepare(given.corpus, length=given.length, vocabulary=given.vocabulary, held_out=given.held_out)
    lessons = TrainingDataset(data, role, samples=given.steps * given.batch, seed=0, mask_rate=given.mask_rate)
    counts = np.zeros(data.vocabulary, dtype=np.int64)
    for number in range(given.steps * given.batch):
        lesson = lessons[number]
        ids = lesson["input_ids"] if role == "decoder" else data.train.ids[lessons.place(number)]
        counts += np.bincount(np.asarray(ids)[np.asarray(lesson["attention_mask"], bool)], minlength=data.vocabulary)
    seen = counts > 0
    tables = {"input": [], "output": []}
    model: Any = None
    steps = given.observed
    assert isinstance(steps, list)
    for step in steps:
        model = load(describe(locate(str(out / "history" / f"{role}-0" / f"checkpoint-{step}"))))
        tables["input"].append(model.get_input_embeddings().weight.detach().double().numpy())
        tables["output"].append(model.get_output_embeddings().weight.detach().double().numpy())
    last, log_count = steps[-1], np.log(counts[seen])

    def said(measure, step=last, **where):
        (found,) = [r for r in rows if r["measure"] == measure and r["step"] == step and where.items() <= r.items()]
        return found["value"]

    for points, history in tables.items():
        table = history[-1]
        for centre, middle in (("plain", table[seen].mean(0)), ("weighted", counts @ table / counts.sum())):
            distance = np.linalg.norm(table[seen] - middle, axis=1)
            for how, reference in (("pearson", stats.pearsonr), ("spearman", stats.spearmanr)):
                found = said("frequency_correlation", tensor=points, variant=f"distance, {centre}, {how}")
                assert found == pytest.approx(reference(log_count, distance)[0], abs=1e-5)
        wander = np.stack(history).var(0).sum(1)[seen]
        found = said("frequency_correlation", tensor=points, variant="trajectory, spearman")
        assert found == pytest.approx(stats.spearmanr(log_count, wander)[0], abs=1e-5)

    size, layer = given.batch, given.layers // 2
    batch = collated([lessons[k] for k in range(last * size, (last + 1) * size)])
    states = []
    (block,) = [site.module for site in find_sites(model).blocks if site.layer == layer]
    block.register_forward_hook(lambda module, args, output: states.append(output))
    loss = model(**batch).loss
    state = states[0][0] if isinstance(states[0], tuple) else states[0]
    (gradient,) = torch.autograd.grad(loss, state)
    mask = batch["attention_mask"].bool()
    asked = batch["labels"]
    if role == "decoder":
        asked = torch.cat([asked[:, 1:], torch.full_like(asked[:, :1], -100)], 1)
    bins = frequency_bins(torch.from_numpy(counts), by="tokens")
    for side, tokens in (("input", batch["input_ids"]), ("target", asked)):
        place = torch.where(mask & (tokens >= 0), bins[tokens.clamp_min(0)], -1)
        energy = gradient.double().square().sum(-1)
        whole = float(energy[mask].sum())
        for k in range(-1, 5):  # −1: the mask token and what nothing was asked of
            cloud = f"{side} tokens " + ("uncounted" if k < 0 else f"{k + 1}/5")
            found = said("bin_energy", layer=layer, view="representation", subset=cloud)
            expected = float(energy[mask & (place == k)].sum()) / whole
            assert found == pytest.approx(expected, rel=1e-3) or (math.isnan(found) and expected == 0)
    later = mask.clone()
    later[:, 0] = False
    vectors, tokens, place = state.detach().double()[later], batch["input_ids"][later], torch.nonzero(later)[:, 0]
    enough = [i for i in tokens.unique().tolist() if len(place[tokens == i].unique()) >= 4 and counts[i]]
    spread = [types.spread(vectors[tokens == i], place[tokens == i]) for i in enough]
    found = said("frequency_correlation", layer=layer, view="representation", variant="spread, spearman")
    assert found == pytest.approx(stats.spearmanr(np.log(counts[enough]), spread)[0], abs=1e-5)
