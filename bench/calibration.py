"""How often nulls reject and intervals miss on data where the truth is known: writes docs/calibration.md.

``python -m bench.calibration [--repetitions 2000]``; about ten minutes on one core. Every construction comes from
``anisoscope.testing`` or is stated on the page.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from scipy import stats

from anisoscope import Subspace, cross_fit, cross_fit_weight, judge
from anisoscope.evidence.conclude import conclude
from anisoscope.evidence.energy import energy_share
from anisoscope.evidence.fold import Fold
from anisoscope.evidence.inference import adjust
from anisoscope.evidence.typed_units import TypedUnits
from anisoscope.geometry.isotropy import isoscore_star
from anisoscope.geometry.registry import methods
from anisoscope.geometry.results import Estimate
from anisoscope.observe.measure_units import MeasureUnits
from anisoscope.shape import independent, name_shape
from anisoscope.stats.moments import Moments
from anisoscope.testing import (
    LAWS,
    coupled_energies,
    independent_clouds,
    rare_large_tokens,
    rotation,
    sequences_of_documents,
)
from anisoscope.verdict import ladder
from anisoscope.vocabulary import ladder_of

PAGE = Path(__file__).parents[1] / "docs" / "calibration.md"
REJECTION_BAR, MISS_BAR = 0.07, 0.10
RESAMPLES = 199
Row = list[str]


def rate(hits: int, tries: int, bar: float | None) -> str:
    """A share with its 99 % interval; marked if all of that lies above the bar."""
    if not tries:
        return "–"
    ends = stats.binomtest(hits, tries).proportion_ci(0.99)
    mark = " **above the bar**" if bar is not None and ends.low > bar else ""
    return f"{hits / tries:.3f} [{ends.low:.3f}, {ends.high:.3f}]{mark}"


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def orientation(repetitions: int) -> list[Row]:
    """P over `haar` and of the isotropy gain on clouds that know nothing of one another."""
    rows = []
    for law, word in LAWS.items():
        haar = gain = refused = wrong = 0
        for seed in range(repetitions):
            x, g = independent_clouds(law, n=24, seed=seed)
            found = cross_fit(x, g, rank=6, resamples=RESAMPLES, generator=generator(seed))
            e = found.enrichment["haar"]
            haar += found.p["haar"] <= 0.05
            gain += (found.isotropy_gain_p or 1.0) <= 0.05
            refused += e.low is None
            wrong += e.low is not None and found.p["haar"] <= 0.05 and not e.low < 1 < (e.high or 1)
        rows.append(
            [
                f"`{law}`: {word.about}",
                rate(haar, repetitions, REJECTION_BAR),
                rate(gain, repetitions, REJECTION_BAR),
                rate(wrong, repetitions, REJECTION_BAR),
                f"{refused / repetitions:.2f}",
            ]
        )
        print(rows[-1], flush=True)
    return rows


def power(repetitions: int) -> list[Row]:
    """How often a planted effect is found: gradients a little larger inside the activations' main directions."""
    rows = []
    for factor in (1.1, 1.2, 1.4):
        for n in (16, 32, 64):
            p = rule = 0
            for seed in range(repetitions):
                g0, turn = generator(seed), rotation(24, seed=seed)
                scale = torch.ones(24, dtype=torch.float64)
                scale[:6] = 3.0
                x = torch.randn(n, 16, 24, generator=g0, dtype=torch.float64) * scale
                lift = torch.ones(24, dtype=torch.float64)
                lift[:6] = factor
                g = torch.randn(n, 16, 24, generator=g0, dtype=torch.float64) * lift
                found = cross_fit(x @ turn, g @ turn, rank=6, resamples=RESAMPLES, generator=g0, isotropy=False)
                low = found.enrichment["haar"].low
                p += found.p["haar"] <= 0.05
                rule += found.p["haar"] <= 0.05 and low is not None and low > 1
            rows.append([f"{factor**2:.2f}", str(n), rate(p, repetitions, None), rate(rule, repetitions, None)])
            print(rows[-1], flush=True)
    return rows


def coverage(repetitions: int) -> list[Row]:
    """Intervals where size and share of a sequence go together."""
    rows = []
    proxy = Subspace(torch.eye(6, 2, dtype=torch.float64))
    for sigma, tail in ((0.0, None), (1.0, None), (2.0, None), (0.0, 1.5)):
        for n in (16, 32, 64):
            issued = missed = 0
            widths = []
            for seed in range(repetitions):
                g, truth = coupled_energies(n, sigma=sigma, tail=tail, seed=seed)
                e = judge(g, proxy, resamples=1, isotropy=False).enrichment["haar"]
                if e.low is not None and e.high is not None:
                    issued += 1
                    missed += not e.low < truth < e.high
                    widths.append(math.log(e.high / e.low) / 2)
            width = f"× {math.exp(float(np.median(widths))):.2f}" if widths else "–"
            held = f"{1 - missed / issued:.3f}" if issued else "–"
            name = f"{sigma:g}" if tail is None else f"Pareto {tail:g}"
            rows.append([name, str(n), f"{issued / repetitions:.2f}", held, rate(missed, repetitions, MISS_BAR), width])
            print(rows[-1], flush=True)
    return rows


def swaps(repetitions: int) -> list[Row]:
    """`targets`: both sides hold the same share, one of them in sequences of very different size."""
    rows = []
    proxy = Subspace(torch.eye(8, 2, dtype=torch.float64))
    for sigma in (0.0, 1.0, 1.5):
        for n in (16, 32, 64):
            p = rule = 0
            for seed in range(repetitions):
                g0 = generator(seed)
                sizes = (sigma * torch.randn(n, 1, 1, generator=g0, dtype=torch.float64)).exp()
                g = sizes * torch.randn(n, 6, 8, generator=g0, dtype=torch.float64)
                other = torch.randn(n, 6, 8, generator=g0, dtype=torch.float64)
                options = {"resamples": RESAMPLES, "generator": g0, "isotropy": False}
                found = judge(g, proxy, nulls=("targets",), others={"targets": other}, **options)
                e = found.enrichment["targets"]
                hit = found.p["targets"] <= 0.05
                p += hit
                rule += hit and e.low is not None and e.high is not None and not e.low < 1 < e.high
            rows.append([f"{sigma:g}", str(n), rate(p, repetitions, None), rate(rule, repetitions, REJECTION_BAR)])
            print(rows[-1], flush=True)
    return rows


def pairing(repetitions: int) -> list[Row]:
    """Sequences of unequal length whose direction depends on their length; δ and x are independent given it."""
    rows = []
    for n in (32, 64):
        for lengths in ((16, 24), (8, 64)):
            p = told = rule = 0
            for seed in range(repetitions):
                g0 = generator(seed)
                low, high = lengths
                size = torch.randint(low, high + 1, (n,), generator=g0)
                inside = torch.arange(high)[None] < size[:, None]
                lean = ((size - low) / (high - low))[:, None, None].double()
                x = torch.randn(n, high, 10, generator=g0, dtype=torch.float64)
                d = torch.randn(n, high, 4, generator=g0, dtype=torch.float64)
                x[..., :2] += 2 * lean
                d[..., :1] += 2 * lean
                strata = torch.where(inside, 0, -1)
                options = {"rank": 2, "nulls": ("pairing",), "resamples": RESAMPLES, "generator": g0}
                found = cross_fit_weight(
                    x * inside[..., None], d * inside[..., None], strata=strata, isotropy=False, **options
                )
                if "pairing" in found.p:
                    told += 1
                    hit = found.p["pairing"] <= 0.05
                    e = found.enrichment["pairing"]
                    p += hit
                    rule += hit and e.low is not None and e.high is not None and not e.low < 1 < e.high
            rows.append(
                [
                    f"{lengths[0]} to {lengths[1]}",
                    str(n),
                    f"{told / repetitions:.2f}",
                    rate(p, told, REJECTION_BAR),
                    rate(rule, told, REJECTION_BAR),
                ]
            )
            print(rows[-1], flush=True)
    return rows


def missed(e: Estimate, truth: float) -> tuple[int, int]:
    """Whether an interval was issued, and whether it misses."""
    if e.low is None or e.high is None:
        return 0, 0
    return 1, int(not e.low <= truth <= e.high)


def line(name: str, n: int, found: list[tuple[int, int]], bar: float | None = MISS_BAR) -> Row:
    issued, missing = (sum(column) for column in zip(*found, strict=True))
    held = f"{1 - missing / issued:.3f}" if issued else "–"
    row = [name, str(n), f"{issued / len(found):.2f}", held, rate(missing, len(found), bar)]
    print(row, flush=True)
    return row


def units(repetitions: int) -> list[Row]:
    """Intervals where sequences are not independent, and where a few tokens hold the energy."""
    proxy = Subspace(torch.eye(6, 2, dtype=torch.float64))
    rows = []
    for n in (16, 32, 64):
        by_sequence, by_document, rare = [], [], []
        for seed in range(repetitions):
            g, ids, truth = sequences_of_documents(n // 4 if n < 32 else n // 2, seed=seed)
            options = {"resamples": 1, "isotropy": False}
            by_sequence.append(missed(judge(g, proxy, **options).enrichment["haar"], truth))
            by_document.append(missed(judge(g, proxy, groups=ids, **options).enrichment["haar"], truth))
            g, truth = rare_large_tokens(n, seed=seed)
            rare.append(missed(judge(g, proxy, **options).enrichment["haar"], truth))
        documents = n // 4 if n < 32 else n // 2
        rows.append(line("4 sequences a document, by document", documents, by_document))
        rows.append(line("the same by sequence (wrong)", documents, by_sequence, None))
        rows.append(line("one token in a hundred 100 times larger", n, rare))
    return rows


def embedding(repetitions: int) -> list[Row]:
    """The gradient of an embedding, a sum by type, on new batches of sequences; the proxies stay."""
    rows = []
    turn = rotation(12, seed=5)
    bases = [turn[:, :3].contiguous(), turn[:, 1:4].contiguous()]
    for n in (16, 32, 64):
        for signal in (0.0, 1.0):
            estimates = [_embedding_batch(n, signal, seed, bases, turn) for seed in range(repetitions)]
            truth = math.exp(float(np.mean([math.log(e.value) for e in estimates])))
            found = [missed(e, truth) for e in estimates]
            rows.append(line("types share a signal" if signal else "no signal", n, found))
    return rows


def _embedding_batch(n: int, signal: float, seed: int, bases: list[torch.Tensor], turn: torch.Tensor) -> Estimate:
    g0, vocabulary, length = generator(seed), 60, 24
    weights = 1 / torch.arange(1, vocabulary + 1, dtype=torch.float64)
    types = torch.multinomial(weights.expand(n, -1), length, replacement=True, generator=g0).flatten()
    own = torch.randn(vocabulary, 12, generator=generator(99), dtype=torch.float64)
    own[:, :3] *= 2.0
    shared = torch.randn(n, 1, 12, generator=g0, dtype=torch.float64).expand(n, length, 12).reshape(-1, 12)
    rows = (
        signal * own[types] + 0.5 * shared + torch.randn(n * length, 12, generator=g0, dtype=torch.float64)
    ) @ turn.T
    side = types % 2
    typed = TypedUnits.of(rows, types, torch.arange(n).repeat_interleave(length), side, bases)
    folds = []
    for held in (0, 1):
        table_VD = torch.zeros(vocabulary, 12, dtype=torch.float64).index_add_(0, types, rows)
        moments = Moments.of(table_VD[held::2], higher=False)
        subspace = Subspace(bases[held])
        share = energy_share(moments, subspace)
        folds.append(Fold(subspace, share, moments.second, moments.covariance, vocabulary // 2, typed))
    found = conclude(folds, nulls=("haar",), initial=None, resamples=1, seed=0, isotropy=False)
    return found.enrichment["haar"]


def gains(repetitions: int) -> list[Row]:
    """Isotropy gain, captured share and the measures of a cloud, on new batches of sequences."""
    rows = []
    proxy = Subspace(rotation(16, seed=3).T[:, :4].contiguous())
    for law in ("gaussian", "clustered", "t3", "lognormal"):
        for n in (16, 32):
            found = [_gain_batch(law, n, seed, proxy) for seed in range(repetitions)]
            for place, name in enumerate(("isotropy gain", "captured share", "IsoScore*, activations")):
                estimates = [one[place] for one in found]
                truth = float(np.mean([e.value for e in estimates]))
                rows.append(line(f"{name}, `{law}`", n, [missed(e, truth) for e in estimates]))
    return rows


def _gain_batch(law: str, n: int, seed: int, proxy: Subspace) -> tuple[Estimate, Estimate, Estimate]:
    scale = torch.linspace(3, 0.3, 16, dtype=torch.float64)
    g = LAWS[law].draw(n, 12, 16, generator(seed)) * scale
    found = cross_fit(g, g, method=lambda rows: proxy, resamples=1, nulls=(), generator=generator(seed))
    moments = Moments.of(g.flatten(0, 1), higher=False)
    by_unit = MeasureUnits.of(moments, g.flatten(0, 1), torch.arange(n).repeat_interleave(12))
    method = next(method for method in methods(training=True) if method.name == "isoscore_star")
    score = isoscore_star(moments)
    assert found.isotropy_gain_estimate is not None
    assert found.captured_estimate is not None
    of_measure = score if by_unit is None else by_unit.estimate(method, score)
    return found.isotropy_gain_estimate, found.captured_estimate, of_measure


def weight_targets(repetitions: int) -> list[Row]:
    """`targets` in the weight view: the same law on both sides, so that the true ratio is 1."""
    rows = []
    proxy = Subspace(torch.eye(8, 2, dtype=torch.float64))
    for signal in (0.0, 0.3):
        for n in (16, 32):
            found = []
            for seed in range(repetitions):
                g0 = generator(seed)
                x = torch.randn(n, 6, 8, generator=g0, dtype=torch.float64) + signal
                d, other = (torch.randn(n, 6, 5, generator=g0, dtype=torch.float64) + signal for _ in "ab")
                gradient = torch.einsum("nte,ntd->ed", d, x)
                options = {"nulls": ("targets",), "others": {"targets": other}, "resamples": 1, "isotropy": False}
                e = judge(gradient, proxy, inputs=x, deltas=d, **options).enrichment["targets"]
                found.append(missed(e, 1.0))
            rows.append(line("a common signal" if signal else "no common signal", n, found))
    return rows


def verdicts(repetitions: int) -> list[Row]:
    """How far a model gets, by layers, how much noise they share, and how large the effect is in standard errors."""
    nulls, rows = ladder_of("representation"), []
    for layers in (12, 31):
        for shared in (0.0, 0.5, 0.99):
            for effect in (0.0, 2.8, 5.0):
                rng = np.random.default_rng(layers)
                heights, pooled = np.zeros(len(nulls) + 1), 0
                for _ in range(repetitions):
                    common = rng.standard_normal((1, len(nulls)))
                    own = rng.standard_normal((layers, len(nulls)))
                    z = effect + math.sqrt(shared) * common + math.sqrt(1 - shared) * own
                    found = ladder(_rows_of(z, nulls), view="representation").model
                    heights[found.height] += 1
                    error = math.sqrt(shared + (1 - shared) / layers)
                    pooled += bool((z.mean(0) > 1.96 * error).all())
                shares = [f"{count / repetitions:.3f}" for count in heights]
                name = "none" if effect == 0 else f"{effect:g}"
                rows.append([str(layers), f"{shared:g}", name, *shares, f"{pooled / repetitions:.3f}"])
                print(rows[-1], flush=True)
    return rows


def _rows_of(z_LN: np.ndarray, nulls: tuple[str, ...]) -> list[dict[str, object]]:
    """Rows of one observation whose log odds ratios have a standard error of 0.1."""
    p_LN = 2 * stats.norm.sf(np.abs(z_LN))
    q_LN = np.stack([adjust(p_LN[:, k]) for k in range(len(nulls))], 1)
    found = []
    for (layer, k), z in np.ndenumerate(z_LN):
        ends = {name: math.exp(0.1 * (z + c)) for name, c in (("low", -1.96), ("high", 1.96))}
        ends |= {name: math.exp(0.1 * (z + c)) for name, c in (("low90", -1.645), ("high90", 1.645))}
        about = {"layer": layer, "null": nulls[k], "value": math.exp(0.1 * z), "p": p_LN[layer, k], "q": q_LN[layer, k]}
        found.append(about | ends)
    return found


def shapes(repetitions: int) -> list[Row]:
    """What profiles of noise are called, and a planted bell."""
    rows = []
    for layers in (6, 12, 32):
        for height in (0.0, 6.0):
            rng, words = np.random.default_rng(layers), {}
            truth = height * np.exp(-((np.arange(layers) - layers / 2) ** 2) / (layers / 2))
            for _ in range(repetitions):
                values = truth + rng.standard_normal(layers) + 10
                named = name_shape(values.tolist(), independent([1.0] * layers))
                assert named is not None
                words[named.word] = words.get(named.word, 0) + 1
            turned = words.get("bell", 0) + words.get("valley", 0)
            slope = words.get("rising", 0) + words.get("falling", 0)
            bar = REJECTION_BAR if height == 0 else None
            what = "noise" if height == 0 else "a bell of 6 standard errors"
            rows.append([str(layers), what, rate(turned, repetitions, bar), rate(slope, repetitions, None)])
            print(rows[-1], flush=True)
    return rows


def table(heads: Row, rows: list[Row]) -> str:
    return "\n".join("| " + " | ".join(line) + " |" for line in [heads, ["---"] * len(heads), *rows])


def page(repetitions: int) -> str:
    def section(make: Callable[[int], list[Row]], heads: Row, count: int) -> str:
        return table(heads, make(count))

    quarter = max(100, repetitions // 4)
    return f"""# Calibration

Made by `make calibration` (`python -m bench.calibration --repetitions {repetitions}`). Brackets are 99 %
binomial intervals. The
bar: no rejection rate whose interval lies wholly above {REJECTION_BAR}, no rate of issued and missing intervals
wholly above {MISS_BAR}.
Draws of each null: {RESAMPLES}. The laws are `anisoscope.testing.LAWS`, to try your own null or measure on.

## Orientation: no effect

Activations and gradients of one law, each in an orientation of its own (24 sequences of 16 tokens, D = 24, K =
6, {repetitions}
repetitions). *Both*: p ≤ 0.05 and the 95 % interval excludes 1, which is what a verdict asks for. *Refused*: no
interval, for fewer
than 8 effective units.

{section(orientation, ["law", "p over `haar`", "p of the isotropy gain", "both", "refused"], repetitions)}

## Orientation: a planted effect

Gradients whose energy is larger by a factor in the six main directions of the activations ({quarter} repetitions).

{section(power, ["energy × ", "sequences", "p ≤ 0.05", "both"], quarter)}

## Intervals

Sequences of log-normal size with deviation σ, or of Pareto size; large ones lie more inside the proxy
(`coupled_energies`, {repetitions} repetitions).
*Width*: the factor from the value to an end, in the median.

{section(coverage, ["σ", "sequences", "issued", "covers", "issued and misses", "width"], repetitions)}

## Units

*Issued*: at least 8 effective units. The true odds ratio is known (`sequences_of_documents`, `rare_large_tokens`,
{repetitions}
repetitions). The second column counts documents in the first two constructions, else sequences.

{section(units, ["construction", "units", "issued", "covers", "issued and misses"], repetitions)}

## The embedding's gradient

A table of 60 types whose gradient is a sum over sequences; folds are of types, units are sequences. The truth is the
mean over all
batches ({quarter} repetitions).

{section(embedding, ["construction", "sequences", "issued", "covers", "issued and misses"], quarter)}

## Isotropy gain, captured share, isotropy of a cloud

Intervals over sequences against the mean over all batches, for a fixed proxy ({quarter} repetitions).

{section(gains, ["statistic", "sequences", "issued", "covers", "issued and misses"], quarter)}

## `targets` in the weight view

Both sides of one law, so that the true ratio is 1 ({quarter} repetitions).

{section(weight_targets, ["construction", "sequences", "issued", "covers", "issued and misses"], quarter)}

## Swap tests

`targets` where nothing differs but the sizes of sequences on one side (log-normal with deviation σ, {quarter}
repetitions).

{section(swaps, ["σ", "sequences", "p ≤ 0.05", "both"], quarter)}

## Pairing with unequal lengths

The direction of inputs and of error signals depends on the length of their sequence alone ({quarter}
repetitions). *Told*: enough sequences in classes of equal length.

{section(pairing, ["lengths", "sequences", "told", "p ≤ 0.05, where told", "both, where told"], quarter)}

## Verdicts

How far a model gets (the last null passed in a row by more than half of its layers), where no null is false and where
all five are, by an effect in standard errors. *Shared*: correlation of the layers' noise. *Pooled*: the interval of the
mean over layers lies above 1 for all five nulls ({quarter} repetitions of rows, not of trainings).

{section(verdicts, ["layers", "shared", "effect", "none", *ladder_of("representation"), "pooled"], quarter)}

## Shapes of profiles

Profiles of independent layers with known standard errors ({repetitions} repetitions).

{section(shapes, ["layers", "profile", "called bell or valley", "called rising or falling"], repetitions)}

## Known limits

- Energies with Pareto tails of index 1.5 that go with the share make intervals miss more often than the bar allows
  (the last rows of *Intervals*).
- By itself the p of a swap test is too small where only one side couples size and share; a verdict asks for the
  interval too.
- Classes of `pairing` are 8 positions wide. Where the direction changes from one extreme to the other within one
  class (the rows "16 to 24"), it rejects too often; spread over 8 to 64 positions it does not.
- Documents are units only where they are known: `pair`, `profile` and `checkpoints` know those of their corpus,
  `Scope.step` takes `documents=`, `judge` and `cross_fit` take `groups=`. Else sequences of one document count as
  independent, and intervals are too narrow (the rows *wrong* above).
- In the weight view an interval is too wide where sequences share no signal: the gradient is a sum, and the jackknife
  of a sum of noise overstates its error. The isotropy gain there rests on error signals kept as 32 random directions,
  which widens it by 1.5 to 6.
- The output side of a tied embedding and its update have no interval: their parts by sequence are not known. Train
  several seeds.
"""


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repetitions", type=int, default=2000)
    torch.set_num_threads(1)
    PAGE.write_text(page(parser.parse_args().repetitions), encoding="utf-8")
