"""Tensors are made beside what they are combined with, whatever torch's default device is.

With "meta" as the default, a tensor that follows the default has no numbers, and the first use of it fails. So this
also finds, on a machine without a GPU, what would mix devices on one with a GPU.
"""

import pytest
import torch

import anisoscope as an
from anisoscope.evaluate.evaluator import Evaluator, EvaluatorSettings
from anisoscope.evaluate.judge_sites import Request
from anisoscope.observe.finalize import finalize
from anisoscope.observe.offline import observe_model
from anisoscope.observe.site_selection import choose
from anisoscope.testing import sphere
from capture.families import VOCABULARY, batch, build
from observe.grouped import grouped


@pytest.fixture(scope="module")
def cloud():
    return sphere(600, dim=2, width=10, radius=2.0).float()


@pytest.fixture(scope="module")
def sequences():
    generator = torch.Generator().manual_seed(0)
    return torch.randn(2, 16, 12, 10, generator=generator)


CLOUD = {
    "moments": lambda x: an.Moments.of(x).second.sum(),
    "reservoir": lambda x: an.Reservoir.of_rows(x, rows=50, seed=1).sample().values.sum(),
    "two_nn": an.two_nn,
    "gride": an.gride,
    "levina_bickel": an.levina_bickel,
    "isoscore": an.isoscore,
    "isoscore_star": an.isoscore_star,
    "partition_ratio": an.partition_ratio,
    "participation_ratio": an.participation_ratio,
    "effective_rank": an.effective_rank,
    "average_cosine": an.average_cosine,
    "rankme": an.rankme,
    "spectral_decay": an.spectral_decay,
    "top_share": an.top_share,
    "local_isotropy": lambda x: an.local_isotropy(x, clusters=3),
    "curvature": lambda x: an.curvature(x, dim=2).rms,
    "visible_curvature": lambda x: an.visible_curvature(x, [0.8], dim=2).points[0],
    "pca": lambda x: an.tangent_overlap(x, an.fit_subspace(x, method="pca", rank=3), dim=2),
    "semi_nmf": lambda x: an.energy_share(x, an.fit_subspace(x, method="semi_nmf", rank=3)),
    "haar": lambda x: an.energy_share(x, an.fit_subspace(x, method="haar", rank=3)),
    "judge": lambda x: an.judge(x, an.fit_subspace(x, method="pca", rank=3), resamples=19).energy,
}
PAIR = {
    "cross_fit": lambda x, g: an.cross_fit(x, g, rank=2, resamples=19).energy,
    "weights": lambda x, g: an.cross_fit_weight(x, g, rank=2, resamples=19).energy,
    "linear_cka": lambda x, g: an.linear_cka(x, g).floor,
    "neighbourhood_overlap": lambda x, g: an.neighbourhood_overlap(x, g, k=3, across=True).floor,
    "pairing_share": lambda x, g: an.pairing_share(
        x.flatten(0, 1), g.flatten(0, 1), an.fit_subspace(x[0], method="pca", rank=2)
    ),
    "verify": lambda x, g: an.verify(x, g, ranks=(2,), resamples=19).rows[0].value,
}


@pytest.mark.parametrize("name", CLOUD)
def test_of_a_cloud(name, cloud):
    expected = CLOUD[name](cloud)
    with torch.device("meta"):
        assert float(CLOUD[name](cloud)) == pytest.approx(float(expected), nan_ok=True)


@pytest.mark.parametrize("name", PAIR)
def test_of_activations_and_gradients(name, sequences):
    expected = PAIR[name](*sequences)
    with torch.device("meta"):
        assert float(PAIR[name](*sequences)) == pytest.approx(float(expected), nan_ok=True)


def test_of_a_training():
    model = build("gpt_neox").eval()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    batches = [batch(seed=step, sequences=30) for step in range(3)]
    probe = torch.randint(VOCABULARY, (160, 30), generator=torch.Generator().manual_seed(0))
    given = {"rank": 4, "resamples": 19, "schedule": 1, "strict": True, "targets": True, "anchor": 1, "probe": probe}
    with torch.device("meta"):
        scope = an.Scope(model, frequency=True, **grouped(**given))
        for inputs in batches:
            with scope.step():
                model(**inputs).loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        rows = scope.rows()
        scope.close()
    assert {r["step"] for r in rows} == {0, 1, 2}


def test_of_a_judgement():
    """In a training it is another process, which has a default of its own; here it is this one."""
    model = build("gpt_neox").eval()
    nulls = ("haar", "normal", "pairing", "axes", "init", "targets", "targets-uniform")
    request = Request(("pca", "semi_nmf"), 4, ("all", "no-first"), nulls, 19, 0, ranks=(2,))
    inputs, counts = batch(seed=0, sequences=30), 1 + torch.arange(VOCABULARY)
    with torch.device("meta"):
        judge = Evaluator(EvaluatorSettings(request, 0))
        for step in (0, 1):
            seen = observe_model(model, choose(model, None, None), [inputs], step=step, targets=True, frequency=counts)
            rows = judge.judged(finalize(seen, rows=8192, seed=0)).rows
    assert {"energy", "bin_enrichment", "tangent_overlap", "frequency_correlation"} <= {r["measure"] for r in rows}
