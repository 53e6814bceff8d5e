"""The conformance ledger: every measure on clouds with closed-form answers, beside what the peers say of them.

``make conformance`` asks the peers and writes ``docs/conformance-peers.json`` and ``docs/conformance.md``; without
``--peers`` only the page is written, from the answers stored. A test checks the page.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from anisoscope import (
    average_cosine,
    effective_rank,
    gride,
    isoscore,
    isoscore_star,
    levina_bickel,
    linear_cka,
    local_isotropy,
    neighbourhood_overlap,
    participation_ratio,
    partition_ratio,
    rankme,
    top_share,
    two_nn,
)
from anisoscope.testing import cone, gaussian, lattice, plane, sphere, with_duplicates
from bench import llm_microscope
from bench.peers import Peers

DOCS = Path(__file__).parents[1] / "docs"
AGREE = 0.01


@dataclass(frozen=True)
class Cloud:
    """A cloud, what it is, and the answers its law gives in closed form."""

    title: str
    make: Callable[[], object]
    truth: dict[str, float]

    def array(self) -> np.ndarray:
        """Its points."""
        return np.asarray(self.make())


SPECTRUM = [4.0, 2.0, 1.0, 1.0, 0.5, 0.5, 0.25, 0.25]
_V = np.array(SPECTRUM)


def _entropy_rank(strengths: np.ndarray) -> float:
    share = strengths / strengths.sum()
    return math.exp(-(share * np.log(share)).sum())


def _isotropic(directions: int, width: int) -> dict[str, float]:
    return {
        "top_share": 1 / directions,
        "top_share p=1": 1 / directions,
        "effective_rank": directions,
        "effective_rank p=2": directions,
        "participation_ratio": directions,
        "participation_ratio corrected": directions,
        "isoscore": (directions - 1) / (width - 1),
        "isoscore corrected": (directions - 1) / (width - 1),
    }


CLOUDS = {
    "sphere": Cloud(
        "Uniform points of the 5-sphere in R²⁰, N = 2 000",
        lambda: sphere(2000, dim=5, width=20),
        _isotropic(6, 20) | {"average_cosine": 0.0, "two_nn": 5, "two_nn mle": 5, "levina_bickel": 5, "gride": 5},
    ),
    "gaussian": Cloud(
        "Gaussian of variances 4, 2, 1, 1, ½, ½, ¼, ¼ in R⁸, N = 2 000",
        lambda: gaussian(2000, SPECTRUM),
        {
            "top_share": 4 / _V.sum(),
            "top_share p=1": 2 / np.sqrt(_V).sum(),
            "effective_rank": _entropy_rank(np.sqrt(_V)),
            "effective_rank p=2": _entropy_rank(_V),
            "participation_ratio": _V.sum() ** 2 / (_V**2).sum(),
            "participation_ratio corrected": _V.sum() ** 2 / (_V**2).sum(),
            "isoscore": (_V.sum() ** 2 / (_V**2).sum() - 1) / 7,
            "isoscore corrected": (_V.sum() ** 2 / (_V**2).sum() - 1) / 7,
            "two_nn": 8, "two_nn mle": 8, "levina_bickel": 8, "gride": 8,
        },
    ),
    "few rows": Cloud(
        "Isotropic Gaussian in R⁶⁴ with only N = 64 rows",
        lambda: gaussian(64, [1.0] * 64),
        _isotropic(64, 64),
    ),
    "plane": Cloud(
        "Uniform points of a cube in a 3-plane of R¹², N = 2 000",
        lambda: plane(2000, dim=3, width=12),
        _isotropic(3, 12) | {"two_nn": 3, "two_nn mle": 3, "levina_bickel": 3, "gride": 3},
    ),
    "cone": Cloud(
        "Unit vectors at 0.3 rad to an axis of R¹⁰, N = 2 000",
        lambda: cone(2000, width=10),
        _isotropic(9, 10)
        | {"average_cosine": math.cos(0.3) ** 2, "two_nn": 8, "two_nn mle": 8, "levina_bickel": 8, "gride": 8},
    ),
    "lattice": Cloud(
        "The 10³ integer points of a cube", lambda: lattice(10, dim=3), _isotropic(3, 3)
    ),
    "duplicates": Cloud(
        "Isotropic Gaussian in R¹⁰, N = 2 000, of which 40 % are exact copies",
        lambda: with_duplicates(gaussian(2000, [1.0] * 10), 0.4),
        {"two_nn": 10, "two_nn mle": 10, "levina_bickel": 10, "gride": 10},
    ),
    "near duplicates": Cloud(
        "Isotropic Gaussian in R¹⁰, N = 2 000, of which 10 % are copies moved by 1e-7 of the rms norm",
        lambda: with_duplicates(gaussian(2000, [1.0] * 10), 0.1, noise=1e-7),
        {"two_nn": 10, "two_nn mle": 10, "levina_bickel": 10, "gride": 10},
    ),
    "offset": Cloud(
        "Isotropic Gaussian in R¹⁰ of spread 0.01 about a mean of 50, N = 2 000",
        lambda: gaussian(2000, [1e-4] * 10, mean=50.0),
        _isotropic(10, 10) | {"two_nn": 10, "two_nn mle": 10, "levina_bickel": 10, "gride": 10},
    ),
}  # fmt: skip

OURS: dict[str, Callable[[np.ndarray], float]] = {
    "top_share": lambda x: float(top_share(x)),
    "top_share p=1": lambda x: float(top_share(x, power=1)),
    "average_cosine": lambda x: float(average_cosine(x)),
    "isoscore": lambda x: float(isoscore(x)),
    "isoscore corrected": lambda x: float(isoscore(x, corrected=True)),
    "isoscore_star": lambda x: float(isoscore_star(x)),
    "isoscore_star identity": lambda x: float(isoscore_star(x, reference="identity")),
    "partition_ratio": lambda x: float(partition_ratio(x)),
    "effective_rank": lambda x: float(effective_rank(x)),
    "effective_rank p=2": lambda x: float(effective_rank(x, power=2)),
    "rankme": lambda x: float(rankme(x)),
    "participation_ratio": lambda x: float(participation_ratio(x)),
    "participation_ratio corrected": lambda x: float(participation_ratio(x, corrected=True)),
    "local_isotropy": lambda x: float(local_isotropy(x)),
    "two_nn": lambda x: float(two_nn(x)),
    "two_nn mle": lambda x: float(two_nn(x, variant="mle")),
    "levina_bickel": lambda x: float(levina_bickel(x)),
    "gride": lambda x: float(gride(x)),
}

DEFINITIONS = {
    "top_share": "`top_share(x)`: σ₁²/Σσ², centred",
    "top_share p=1": "`top_share(x, power=1)`: σ₁/Σσ, centred",
    "average_cosine": "`average_cosine(x)`: all pairs, exact",
    "isoscore": "`isoscore(x)`: (PR − 1)/(D − 1)",
    "isoscore corrected": "`isoscore(x, corrected=True)`: unbiased traces",
    "isoscore_star": "`isoscore_star(x)`: ζ = 0.2, C₀ = (tr C/D)·I",
    "isoscore_star identity": '`isoscore_star(x, reference="identity")`: ζ = 0.2, C₀ = I',
    "partition_ratio": "`partition_ratio(x)`: eigenvectors of XᵀX, both signs",
    "effective_rank": "`effective_rank(x)`: exp H(σ/Σσ), centred",
    "effective_rank p=2": "`effective_rank(x, power=2)`: exp H(σ²/Σσ²), centred",
    "rankme": "`rankme(x)`: exp H(σ/Σσ), not centred",
    "participation_ratio": "`participation_ratio(x)`: (tr C)²/‖C‖²",
    "participation_ratio corrected": "`participation_ratio(x, corrected=True)`: unbiased traces",
    "local_isotropy": "`local_isotropy(x)`: 16 clusters, each corrected",
    "two_nn": "`two_nn(x)`: fit, discard 0.1, duplicates removed",
    "two_nn mle": '`two_nn(x, variant="mle")`: (N−1)/Σ log μ',
    "levina_bickel": "`levina_bickel(x)`: k = 20, inverse of the mean",
    "gride": "`gride(x)`: n = 1",
}

#: Which peer answers which measure, and how it is shown.
PEERS = {
    "top_share": {"llm_microscope_anisotropy": "LLM-Microscope"},
    "isoscore": {"isoscore": "IsoScore", "isoscore_transposed": "IsoScore of xᵀ"},
    "isoscore_star identity": {"isoscore_star_identity": "IsoScore*"},
    "two_nn": {
        "skdim_two_nn": "scikit-dimension",
        "dadapy_two_nn": "DADApy",
        "llm_microscope_dimension": "LLM-Microscope",
    },
    "two_nn mle": {"skdim_two_nn_mle": "scikit-dimension", "dadapy_two_nn_mle": "DADApy"},
    "levina_bickel": {"skdim_mle": "scikit-dimension"},
    "gride": {"dadapy_gride": "DADApy"},
}
LOCAL = {
    "llm_microscope_anisotropy": llm_microscope.anisotropy,
    "llm_microscope_dimension": llm_microscope.intrinsic_dimension,
}

#: Why a peer differs: the first entry that fits (peer, cloud) is shown; "*" fits every cloud.
_RATIO_ONE = "drops points with a copy but keeps the copies as others' neighbours, whose r₂ = r₁ then"
_HUGE = "takes a copy 1e-7 away for a neighbour: ratios of 1e7"
_ALL_ONE = "divides by Σ log μ = 0"
REASONS = {
    ("isoscore_transposed", "*"): "takes (points, dimensions) without a check: the transposed matrix is another cloud",
    ("llm_microscope_dimension", "duplicates"): "drops the ratios of copies but keeps their ranks in F: a shifted line",
    ("llm_microscope_dimension", "near duplicates"): "sees r₂ ≈ r₁ beside every pair of copies; those fill its fifth",
    ("llm_microscope_dimension", "*"): "fits the smallest fifth of the ratios only: same law, more variance",
    ("skdim_two_nn", "lattice"): "has only ratios of 1 to fit",
    ("skdim_two_nn", "duplicates"): _RATIO_ONE,
    ("skdim_two_nn", "near duplicates"): _HUGE,
    ("dadapy_two_nn", "lattice"): "has only ratios of 1 to fit and returns where its search began",
    ("dadapy_two_nn", "duplicates"): "gets an infinite ratio from r₁ = 0",
    ("dadapy_two_nn", "near duplicates"): _HUGE,
    ("skdim_two_nn_mle", "lattice"): _ALL_ONE,
    ("skdim_two_nn_mle", "duplicates"): _RATIO_ONE,
    ("skdim_two_nn_mle", "near duplicates"): _HUGE,
    ("dadapy_two_nn_mle", "lattice"): _ALL_ONE,
    ("dadapy_two_nn_mle", "duplicates"): "gets an infinite ratio from r₁ = 0",
    ("dadapy_two_nn_mle", "near duplicates"): _HUGE,
    ("skdim_mle", "lattice"): "averages over shells of equal distance; ours refuses tied neighbours",
    ("skdim_mle", "duplicates"): "takes the logarithm of r = 0",
    ("skdim_mle", "near duplicates"): _HUGE,
    ("dadapy_gride", "few rows"): "asks for the 64th neighbour of 63",
    ("dadapy_gride", "lattice"): "ends at the edge of its search",
    ("dadapy_gride", "duplicates"): "puts a machine epsilon in place of r₁ = 0",
    ("dadapy_gride", "near duplicates"): _HUGE,
}


def _sequences(noise: float, within: float) -> np.ndarray:
    """Two clouds of 40 sequences of 25 tokens in R¹⁶: the second is the first with noise, or with ``inf`` another."""
    generator = torch.Generator().manual_seed(0)

    def drawn() -> torch.Tensor:
        own, common = (torch.randn(40, t, 16, generator=generator, dtype=torch.float64) for t in (25, 1))
        return math.sqrt(1 - within) * own + math.sqrt(within) * common

    x, other = drawn(), drawn()
    return torch.stack([x, other if math.isinf(noise) else x + noise * other]).flatten(1, 2).numpy()


RELATIONS = {
    "a cloud and itself with noise": lambda: _sequences(0.5, 0.0),
    "independent rows": lambda: _sequences(math.inf, 0.0),
    "independent but for their sequences (correlation 0.3)": lambda: _sequences(math.inf, 0.3),
}


def relations(stored: dict) -> list[str]:
    """The part of the ledger about two clouds."""
    lines = [
        "## Two clouds of the same tokens, 40 sequences of 25 in R¹⁶",
        "",
        "No package of unbiased CKA was to be had here; the tests compare it with its U-statistic by loops.",
        "",
        "| clouds | `linear_cka(x, y)` | its floor | `neighbourhood_overlap(x, y)` | its floor | peers |",
        "|---|---:|---:|---:|---:|---|",
    ]
    for name, make in RELATIONS.items():
        x, y = make().reshape(2, 40, 25, 16)
        cka, overlap = linear_cka(x, y), neighbourhood_overlap(x, y)
        ours = (cka.value, cka.floor, overlap.value, overlap.floor)
        theirs = f"DADApy: {_shown(stored['relations'][name]['dadapy_overlap'])}"
        lines.append(f"| {name} | {' | '.join(f'{value:.4g}' for value in ours)} | {theirs} |")
    return [*lines, ""]


def ask_peers(python: str) -> dict:
    """Every peer's answer on every cloud, with versions."""
    peers = Peers(python)
    answers: dict[str, dict[str, object]] = {}
    for cloud_name, cloud in CLOUDS.items():
        x = cloud.array()
        file = peers.put(x, cloud_name.replace(" ", "-"))
        answers[cloud_name] = {
            name: _plain(LOCAL[name](x) if name in LOCAL else peers.ask(do="value", peer=name, file=file))
            for names in PEERS.values() for name in names
        }  # fmt: skip
    pairs = {}
    for name, make in RELATIONS.items():
        file = peers.put(make(), "pair")
        pairs[name] = {"dadapy_overlap": _plain(peers.ask(do="value", peer="dadapy_overlap", file=file))}
    versions = peers.ask(do="versions") | {"LLM-Microscope": "formulas of 0.0.7"}
    peers.close()
    return {"versions": versions, "answers": answers, "relations": pairs}


def _plain(answer: object) -> object:
    answer = answer[0] if isinstance(answer, list) else answer
    return str(answer) if isinstance(answer, float) and not math.isfinite(answer) else answer


def _shown(value: object) -> str:
    if isinstance(value, int | float):
        return f"{float(value):.4g}"
    return f"`{value}`" if value not in ("nan", "inf") else str(value)


def _differs(ours: float, theirs: object) -> bool:
    if not isinstance(theirs, int | float):
        return str(theirs) != str(ours)
    return math.isnan(ours) or abs(theirs - ours) > AGREE * max(abs(ours), 1e-12)


def reason(peer: str, cloud: str) -> str:
    """Why this peer gives another number here; a ``KeyError`` if nobody has found out."""
    return REASONS[peer, cloud] if (peer, cloud) in REASONS else REASONS[peer, "*"]


def page(stored: dict) -> str:
    """The ledger as Markdown."""
    versions = ", ".join(f"{name} {version}" for name, version in stored["versions"].items())
    lines = [
        "# Conformance ledger",
        "",
        "Made by `make conformance`; checked by `make test`. *Law* is the answer of the distribution in closed form: a",
        "finite sample differs from it; peers were given the very same arrays. Where a peer is more than 1 % off our",
        f"number, the reason stands beside it. Peers: {versions}.",
        "",
    ]
    for cloud_name, cloud in CLOUDS.items():
        x = cloud.array()
        lines += [
            f"## {cloud.title}",
            "",
            "| measure | law | anisoscope | peers | why they differ |",
            "|---|---:|---:|---|---|",
        ]
        for measure, act in OURS.items():
            ours = act(x)
            shown, why = [], []
            for peer, label in PEERS.get(measure, {}).items():
                theirs = stored["answers"][cloud_name][peer]
                shown.append(f"{label}: {_shown(theirs)}")
                if _differs(ours, theirs):
                    why.append(f"{label} {reason(peer, cloud_name)}")
            law = f"{cloud.truth[measure]:.4g}" if measure in cloud.truth else ""
            lines.append(f"| {DEFINITIONS[measure]} | {law} | {_shown(ours)} | {'; '.join(shown)} | {'; '.join(why)} |")
        lines.append("")
    return "\n".join(lines + relations(stored))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--peers", help="python of the peers' environment; without it, stored answers are used")
    options = parser.parse_args()
    store = DOCS / "conformance-peers.json"
    if options.peers:
        store.write_text(json.dumps(ask_peers(options.peers), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    (DOCS / "conformance.md").write_text(page(json.loads(store.read_text(encoding="utf-8"))), encoding="utf-8")
    print(f"wrote {DOCS / 'conformance.md'}")


if __name__ == "__main__":
    main()
