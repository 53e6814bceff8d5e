"""Penalties against closed forms, finite differences, two processes, and trainings that they must change."""

import copy
import sys
from datetime import timedelta
from itertools import pairwise

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch.multiprocessing.spawn import start_processes
from torch.nn.parallel import DistributedDataParallel

from anisoscope import Subspace, average_cosine, fit_subspace, isoscore_star
from anisoscope.capture.sites import find_sites
from anisoscope.capture.taps import Listener, Taps
from anisoscope.errors import AnisoscopeError
from anisoscope.models.twins import Shape, build
from anisoscope.regularizers import CosReg, CurvatureReg, IStar, Regularizer, SpectralDecay, TangentReg

WIDTH = 6
DOSES = (-0.1, -0.03, 0.0, 0.03, 0.1)
BASIS = torch.linalg.qr(torch.randn(WIDTH, 2, generator=torch.Generator().manual_seed(5), dtype=torch.float64)).Q


def cloud(n=60, width=WIDTH, seed=0, offset=3.0):
    generator = torch.Generator().manual_seed(seed)
    scale = torch.arange(1.0, width + 1, dtype=torch.float64) ** -0.7
    return torch.randn(n, width, generator=generator, dtype=torch.float64) * scale + offset


def cosine_by_pairs(x):
    u = x / np.linalg.norm(x, axis=1, keepdims=True)
    return np.mean([u[i] @ u[j] for i in range(len(u)) for j in range(len(u)) if i != j])


def score_by_eigenvalues(x, zeta=0.2):
    values = np.linalg.eigvalsh(np.cov(x.T))
    values = (1 - zeta) * values + zeta * values.mean()
    return (values.sum() ** 2 / (values**2).sum() - 1) / (x.shape[1] - 1)


def decay_by_polyfit(x):
    values = np.sort(np.linalg.eigvalsh(np.cov(x.T)))[::-1]
    last = min(x.shape[1], len(x) - 1) // 2
    places = np.arange(11, last + 1)
    return -np.polyfit(np.log(places), np.log(values[10:last]), 1)[0]


def curvature_by_svd(x, dimension, neighbours, anchors):
    found = []
    for a in range(anchors):
        centre = x[a * len(x) // anchors]
        near = np.argsort(np.linalg.norm(x - centre, axis=1))[: neighbours + 1]
        squares = np.linalg.svd(x[near] - x[near].mean(0), compute_uv=False) ** 2
        found.append(squares[dimension:].sum() / squares[:dimension].sum())
    return np.mean(found)


def share_inside(covariance, basis):
    return np.trace(basis.T @ covariance @ basis) / np.trace(covariance)


@pytest.mark.parametrize(
    ("penalty", "x", "expected"),
    [
        (CosReg(), cloud(), lambda x: cosine_by_pairs(x)),
        (IStar(reference="trace"), cloud(), lambda x: 1 - score_by_eigenvalues(x)),
        (IStar(zeta=0.0), cloud(), lambda x: 1 - score_by_eigenvalues(x, 0.0)),
        (SpectralDecay(0.3), cloud(200, 64), lambda x: (decay_by_polyfit(x) - 0.3) ** 2),
        (
            TangentReg(BASIS),
            cloud(),
            lambda x: np.trace(BASIS.T.numpy() @ np.cov(x.T) @ BASIS.numpy()) / np.cov(x.T).trace(),
        ),
        (CurvatureReg(2, 10, 7), cloud(), lambda x: curvature_by_svd(x, 2, 10, 7)),
    ],
    ids=lambda value: type(value).__name__,
)
def test_penalties_equal_slow_references(penalty, x, expected):
    assert float(penalty(x)) == pytest.approx(float(expected(x.numpy())), rel=1e-9)


PENALTIES = {
    "cos": (CosReg(), cloud(12)),
    "istar": (IStar(), cloud(12)),
    "istar, trace": (IStar(reference="trace"), cloud(12)),
    "decay": (SpectralDecay(0.5), cloud(80, 62)),
    "tangent": (TangentReg(Subspace(BASIS)), cloud(12)),
    "curvature": (CurvatureReg(2, 6, 5), cloud(20)),
}


@pytest.mark.parametrize("name", PENALTIES)
def test_gradients_are_those_of_finite_differences(name):
    penalty, x = PENALTIES[name]
    if name == "istar":  # a reference of another batch is there, and each call would move it
        penalty(cloud(12, seed=9))
        kept = penalty.state_dict()

        def value(x):
            penalty.load_state_dict(kept)
            return penalty(x)

    else:
        value = penalty
    assert torch.autograd.gradcheck(value, x.requires_grad_(), fast_mode=True)


def test_gradients_stay_finite_where_directions_vanish():
    flat = torch.zeros(40, 62, dtype=torch.float64)
    flat[:, 0] = torch.arange(40.0)
    for penalty in (CosReg(), IStar(), TangentReg(torch.eye(62, 2)), CurvatureReg(2, 6, 5)):
        x = flat.clone().requires_grad_()
        penalty(x).backward()
        assert x.grad is not None
        assert bool(torch.isfinite(x.grad).all()), type(penalty).__name__


@pytest.mark.parametrize("name", PENALTIES)
def test_padding_counts_for_nothing(name):
    penalty, x = PENALTIES[name]
    x = x.detach()
    padded = torch.cat([x, torch.full_like(x[:8], 1e3)])[None]
    mask = torch.arange(padded.shape[1])[None] < len(x)
    penalty = copy.deepcopy(penalty)
    if name == "curvature":  # anchors are spread over padding too, and those count for nothing
        penalty.anchors = padded.shape[1]
        bare = CurvatureReg(2, 6, len(x))
    else:
        bare = copy.deepcopy(penalty)
    assert float(penalty(padded, mask)) == pytest.approx(float(bare(x)), rel=1e-9)


def test_an_offset_costs_no_digits_in_float32():
    x = (cloud(2000, offset=0.0) * 0.01).float() + 50
    expected = float(IStar(reference="trace")(x.double()))
    assert float(IStar(reference="trace")(x)) == pytest.approx(expected, rel=1e-3)


def test_a_plane_has_no_curvature_and_a_sphere_has():
    generator = torch.Generator().manual_seed(0)
    plane = torch.zeros(300, 5, dtype=torch.float64)
    plane[:, :2] = torch.randn(300, 2, generator=generator, dtype=torch.float64)
    ball = torch.nn.functional.normalize(torch.randn(300, 3, generator=generator, dtype=torch.float64), dim=1)
    assert float(CurvatureReg(2, 12)(plane)) == pytest.approx(0, abs=1e-12)
    assert float(CurvatureReg(2, 12)(ball)) > 1e-3


def test_the_reference_forgets_and_is_kept_with_a_checkpoint():
    batches = [cloud(40, seed=seed) for seed in range(3)]
    penalty = IStar(zeta=0.5, decay=0.0)
    values = [penalty(x) for x in batches]
    before, own = (np.cov(x.numpy().T) for x in batches[1:])
    mixed = 0.5 * own + 0.5 * before
    score = (np.trace(mixed) ** 2 / (mixed**2).sum() - 1) / (WIDTH - 1)
    assert float(values[-1]) == pytest.approx(1 - score)
    again = IStar(zeta=0.5, decay=0.0)
    again.load_state_dict(penalty.state_dict())
    assert torch.equal(again(batches[0]), penalty(batches[0]))


def tiny(seed=0):
    return build("twin", "decoder", Shape(layers=2, width=32, heads=2, vocabulary=60, length=24), seed=seed)


def batch(step, n=8, seed=0):
    generator = torch.Generator().manual_seed(1000 * seed + step)
    law = torch.arange(1.0, 61) ** -1.0
    ids = torch.multinomial(law, n * 24, replacement=True, generator=generator).view(n, 24)
    return {"input_ids": ids, "labels": ids, "attention_mask": torch.ones_like(ids)}


def trained(penalty, weight, *, seed=0, steps=40):
    model = tiny(seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    losses = []
    with Regularizer(model, penalty, weight=weight, layers=(1,)) as regularizer:
        for step in range(steps):
            loss = model(**batch(step, seed=seed)).loss + regularizer()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    return model, losses


class Keep(Listener):
    def __init__(self):
        self.x = {}

    def activation(self, at, x_BTD, batch):
        self.x[at.layer] = x_BTD.flatten(0, 1)


def held_out(model):
    kept = Keep()
    with torch.no_grad(), Taps(model, find_sites(model), kept, evaluations=True):
        model(**batch(10_000, n=64))
    return kept.x[1]


@pytest.mark.parametrize("seed", [0, *(pytest.param(k, marks=pytest.mark.slow) for k in (1, 2))])
def test_istar_moves_the_score_both_ways_over_five_doses(seed):
    scores = [float(isoscore_star(held_out(trained(IStar(), w, seed=seed)[0]))) for w in DOSES]
    assert all(a < b for a, b in pairwise(scores)), scores


def test_cosreg_lowers_the_average_cosine_and_tangentreg_empties_or_fills_its_subspace():
    control, _ = trained(CosReg(), 0.0)
    assert float(average_cosine(held_out(trained(CosReg(), 2.0)[0]))) < float(average_cosine(held_out(control)))
    proxy = fit_subspace(held_out(control), method="haar", rank=4, generator=torch.Generator().manual_seed(1))

    def share(model):
        x = held_out(model).double()
        x = x - x.mean(0)
        return float(proxy.project(x).square().sum() / x.square().sum())

    emptied, filled = (share(trained(TangentReg(proxy), w)[0]) for w in (2.0, -2.0))
    assert emptied < share(control) < filled


@pytest.mark.parametrize("penalty", [CosReg(), IStar(), TangentReg(torch.eye(32, 2)), CurvatureReg()])
def test_dose_0_is_bit_identical_to_no_penalty(penalty):
    bare, optimizer_losses = tiny(), []
    optimizer = torch.optim.AdamW(bare.parameters(), lr=3e-3)
    for step in range(5):
        loss = bare(**batch(step)).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        optimizer_losses.append(loss.item())
    model, losses = trained(penalty, 0.0, steps=5)
    assert losses == optimizer_losses
    assert all(torch.equal(a, b) for a, b in zip(bare.parameters(), model.parameters(), strict=True))


def worker(rank, folder):
    dist.init_process_group("gloo", f"file://{folder}/store", rank=rank, world_size=2, timeout=timedelta(seconds=60))
    torch.save(regularised(rank), f"{folder}/{rank}.pt")
    dist.destroy_process_group()


SHARED = {
    "cos": CosReg(),
    "istar": IStar(),
    "tangent": TangentReg(torch.eye(32, 2)),
    "curvature": CurvatureReg(2, 10, 16),
}


def regularised(rank):
    """Penalties of two steps, and the gradient of the penalty alone as data parallelism averages it."""
    found = {}
    for name, penalty in SHARED.items():
        model = tiny().double()
        used = model if rank is None else DistributedDataParallel(model)
        with Regularizer(used, penalty, weight=1.0) as regularizer:
            for step in range(2):
                given = batch(step)
                # An even half each: a process's loss is a mean over its own tokens.
                mine = given if rank is None else {key: value[4 * rank : 4 * rank + 4] for key, value in given.items()}
                model.zero_grad()
                out = used(**mine)
                value = regularizer()
                (out.loss * 0 + value).backward()
                gradients = [p.grad for p in model.parameters() if p.grad is not None]
                found[f"{name} {step}"] = torch.cat([value.detach()[None], *(g.flatten() for g in gradients)])
    return found


@pytest.mark.skipif(sys.platform != "linux", reason="processes are forked")
def test_two_processes_have_the_value_and_the_gradient_of_one(tmp_path):
    start_processes(worker, (str(tmp_path),), nprocs=2, start_method="fork")
    first, second = (torch.load(tmp_path / f"{rank}.pt", weights_only=True) for rank in (0, 1))
    for name, expected in regularised(None).items():
        assert torch.equal(first[name], second[name])
        assert float(expected[1:].abs().max()) > 1e-6
        torch.testing.assert_close(first[name], expected, rtol=1e-8, atol=1e-12)


def test_accumulated_passes_each_have_their_own_penalty():
    model = tiny()
    with Regularizer(model, CosReg(), weight=1.0) as penalty:
        values = []
        for step in range(2):
            model(**batch(step))
            values.append(float(penalty().detach()))
    assert values[0] != values[1]


def test_layers_take_turns_and_weigh_as_much_over_all_passes():
    model, seen, total = tiny(), [], 0.0
    with Regularizer(model, CosReg(), weight=0.5, every=4) as penalty:
        for _ in range(8):
            model(**batch(0))
            value = float(penalty().detach())
            seen.append(value)
            total += value
        model(**batch(0))
        state = penalty.state_dict()
    with Regularizer(model, CosReg(), weight=0.5) as each:
        model(**batch(0))
        whole = float(each().detach())
    assert [bool(value) for value in seen] == [True, False, True, False] * 2
    assert total == pytest.approx(8 * whole, rel=1e-5)
    assert seen[0] == pytest.approx(0.5 * 4 * float(each.values[1]), rel=1e-5)
    with Regularizer(model, CosReg(), weight=0.5, every=4) as again:
        again.load_state_dict(state | {"passes": torch.tensor(1)})
        model(**batch(0))
        assert float(again()) == 0.0  # the second pass is nobody's turn


def test_a_spectral_decay_is_asked_in_every_20th_pass_unless_told_otherwise():
    assert Regularizer(tiny(), SpectralDecay(), weight=1.0).every == 20
    assert Regularizer(tiny(), SpectralDecay(every=3), weight=1.0).every == 3
    assert Regularizer(tiny(), SpectralDecay(), weight=1.0, every=1).every == 1
    assert Regularizer(tiny(), IStar(), weight=1.0).every == 1


def test_what_a_regularizer_remembers_goes_on():
    model = tiny()
    with Regularizer(model, IStar(), weight=1.0) as first:
        model(**batch(0))
        first()
        state = first.state_dict()
        model(**batch(1))
        expected = first().detach()
    assert set(state) >= {"1.mean", "2.scatter"}
    with Regularizer(model, IStar(), weight=1.0) as second:
        second.load_state_dict(state)
        model(**batch(1))
        assert torch.equal(second().detach(), expected)


def compiled():
    """A model with a block that is compiled in place, as torch marks it."""
    model = tiny()
    model.gpt_neox.layers[0]._compiled_call_impl = model.gpt_neox.layers[0].forward
    return model


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Regularizer(tiny(), CosReg(), weight=float("nan")), "finite number"),
        (lambda: Regularizer(tiny(), CosReg(), weight=1.0, layers=(0,)), r"numbers in 1…2"),
        (lambda: Regularizer(tiny(), CosReg(), weight=1.0, layers=()), r"numbers in 1…2"),
        (lambda: Regularizer(tiny(), CosReg(), weight=1.0, every=0), "whole number of passes"),
        (lambda: Regularizer(compiled(), CosReg(), weight=1.0), "not be compiled"),
        (lambda: IStar(zeta=1.0), "zeta"),
        (lambda: IStar(decay=2.0), "decay"),
        (lambda: CurvatureReg(5, 5), "more neighbours than dimensions"),
        (lambda: SpectralDecay()(cloud(20)), "at least 20 eigenvalues"),
        (lambda: TangentReg(torch.eye(4, 2))(cloud()), "width of the subspace"),
        (lambda: CurvatureReg()(cloud(10)), "more than 24 vectors"),
    ],
)
def test_wrong_use_is_told(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_a_penalty_without_a_pass_is_an_error():
    with Regularizer(tiny(), CosReg(), weight=1.0) as penalty, pytest.raises(AnisoscopeError, match="no forward pass"):
        penalty()
