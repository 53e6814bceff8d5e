"""Runs with planted rows, so that every sentence and number of a report has a known answer."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np

from anisoscope.store.run import create_run

HOSTILE = "</script><img src=x onerror=alert(1)>"
STEPS = [0, 5, 10, 20, 40, 80, 120, 160, 200, 240, 280, 320, 360, 380, 400]
TOTAL, WIDTH, RANK, LAYERS = 400, 256, 32, 5
NULLS = ("haar", "normal", "axes", "init", "targets", "targets-uniform")


def share_of(ratio: float, rank: int = RANK) -> float:
    """The energy share whose odds are ``ratio`` times those of K/D."""
    odds = ratio * rank / (WIDTH - rank)
    return odds / (1 + odds)


def strength(role: str, view: str, null: str, step: int, layer: int, supported: bool) -> float:
    """Planted enrichment: rises early, then fades; ``targets`` about 0.9; the weight view high from the start."""
    grown = 1 - math.exp(-step / 20)
    fade = math.exp(-step / 500)
    peak = (14 if role == "decoder" else 6) * (1 + 0.15 * layer)
    haar = 0.95 + (peak * fade - 0.95) * grown if supported else 0.97 + 0.01 * layer
    if view == "weight":
        haar = 12 + 40 * grown
        if role == "encoder" and 80 <= step <= 160:  # all inputs along their mean for a while
            haar = 0.4
    if view == "embedding":
        haar = 1 + 0.5 * (haar - 1)
    table = {"haar": haar, "normal": haar, "axes": max(haar * 0.9, 0.5), "init": max(haar / 0.95, 0.5), "pairing": 1.02}
    return table.get(null, 0.9 if null == "targets" else 1.6)


def evidence(role: str, step: int, rng: np.random.Generator, supported: bool) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for view, layers in (("representation", range(LAYERS)), ("weight", range(1, LAYERS)), ("embedding", [0])):
        for layer in layers:
            for proxy in ("pca", "svd", "semi_nmf"):
                for timing in ("rolling", "anchored"):
                    if timing == "anchored" and (step <= 0.3 * TOTAL or proxy == "semi_nmf"):
                        continue
                    if proxy == "semi_nmf" and view != "representation":
                        continue
                    for cloud in ("all", "no-first") if (view, proxy) == ("representation", "pca") else ("all",):
                        rows += _judged(role, step, rng, supported, view, layer, proxy, timing, cloud, RANK)
    if step in (20, 200, 400):
        for rank in (4, 8, 16, 64):
            for layer in range(LAYERS):
                given = _judged(role, step, rng, supported, "representation", layer, "pca", "rolling", "all", rank)
                rows += [r for r in given if r["measure"] == "energy" or r.get("null") == "haar"]
    return rows + pooled(rows)


def _judged(role, step, rng, supported, view, layer, proxy, timing, cloud, rank) -> list[dict[str, Any]]:
    common = {
        "step": step,
        "tokens": step * 4096,
        "layer": layer,
        "view": view,
        "tensor": "gradients",
        "subset": cloud,
        "proxy": proxy,
    }
    common |= {"rank": rank, "timing": timing, "n": 64}
    wobble = math.exp(0.02 * rng.standard_normal())
    true = {null: strength(role, view, null, step, layer, supported) * wobble for null in (*NULLS, "pairing")}
    if proxy == "svd" and view == "weight":
        true["haar"] = true["normal"] = 60 * wobble
    energy = share_of(true["haar"], rank)
    rows = [common | {"measure": "energy", "value": energy, "floor": rank / WIDTH}]
    for null in (*NULLS, *(("pairing",) if view == "weight" else ())):
        if null == "init" and step == 0:
            continue
        value, half = true[null], 0.08
        p = 0.002 if abs(math.log(value)) > half else 0.4
        rows.append(
            common
            | {
                "measure": "enrichment",
                "null": null,
                "value": value,
                "low": value * math.exp(-half),
                "high": value * math.exp(half),
                "low90": value * math.exp(-0.84 * half),
                "high90": value * math.exp(0.84 * half),
                "se": half / 1.96,
                "df": 1e6,
                "detectable": math.exp(1.4 * half),
            }
            | ({"p": None, "q": None} if null == "normal" else {"p": p, "q": min(1.0, p * 1.2)})
        )
    rows += [
        common | {"measure": "isotropy_gain", "value": 0.2 * energy, "floor": 0.0, "p": 0.004, "q": 0.005},
        common | {"measure": "isotropy_gain", "variant": "zeta0", "value": 0.3 * energy},
        common | {"measure": "isotropy_gain_normal", "null": "normal", "value": -0.01},
        common | {"measure": "captured", "value": 0.4 * energy, "floor": 0.05} | _ends(0.4 * energy, step),
    ]
    if view == "representation":
        rows.append(common | {"measure": "radial", "value": 0.01})
    return rows


def _ends(value: float, step: int) -> dict[str, Any]:
    """An interval that lies above chance once something was learned."""
    return {"low": value - 0.04, "high": value + 0.04, "p": 0.004 if step else 0.6, "q": 0.005 if step else 0.7}


def pooled(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The effect over all layers, of rows of one observation."""
    keys = ("step", "tokens", "view", "tensor", "subset", "proxy", "rank", "timing", "null")
    groups: dict[tuple[Any, ...], list[float]] = {}
    for row in rows:
        if row["measure"] == "enrichment":
            groups.setdefault(tuple(row[key] for key in keys), []).append(math.log(row["value"]))
    found = []
    for key, logs in groups.items():
        mean = sum(logs) / len(logs)
        ends = {"low": math.exp(mean - 0.08), "high": math.exp(mean + 0.08), "se": 0.04, "df": 1e6}
        about = dict(zip(keys, key, strict=True)) | {"layer": None, "measure": "pooled_enrichment", "n": len(logs)}
        found.append(about | {"value": math.exp(mean)} | ends)
    return found


def clouds(role: str, step: int, rng: np.random.Generator) -> list[dict[str, Any]]:
    rows = []
    grown = 1 - math.exp(-step / 60)
    for layer in range(LAYERS):
        bell = math.exp(-((layer - 2) ** 2) / 2) if role == "decoder" else 0.3 * layer
        rise = math.sin(math.pi * min(step / TOTAL, 1)) if role == "decoder" else 1 - grown
        values = {
            "isoscore_star": 0.6 - 0.3 * bell * grown,
            "participation_ratio": 40 - 20 * bell * grown,
            "top_share": 0.05 + 0.4 * bell * grown,
            "effective_rank": 90 - 30 * bell * grown,
            "average_cosine": 0.02 + 0.6 * bell * grown,
        }
        for cloud in ("all", "no-first"):
            for points in ("activations", "gradients"):
                common = {
                    "step": step,
                    "layer": layer,
                    "view": "representation",
                    "tensor": points,
                    "subset": cloud,
                    "n": 8192,
                }
                rows += [
                    common | {"measure": name, "value": value, "low": 0.98 * value, "high": 1.02 * value}
                    for name, value in values.items()
                ]
            value = 10 + 6 * rise + 3 * bell * (1 + grown) + 0.05 * rng.standard_normal()
            rows.append(
                {
                    "step": step,
                    "layer": layer,
                    "view": "representation",
                    "tensor": "activations",
                    "subset": cloud,
                    "n": 4096,
                }
                | {"measure": "two_nn", "variant": "probe", "value": value, "low": value - 0.3, "high": value + 0.3}
            )
        for proxy in ("pca", "svd", "semi_nmf"):
            for variant, angle in (("since first", 70 * grown), ("since previous", 40 * math.exp(-step / 100))):
                if step > 0:
                    rows.append(
                        {
                            "step": step,
                            "layer": layer,
                            "view": "representation",
                            "tensor": "activations",
                            "subset": "all",
                        }
                        | {
                            "proxy": proxy,
                            "rank": RANK,
                            "timing": "rolling",
                            "measure": "angle",
                            "variant": variant,
                            "value": angle,
                            "n": 64,
                        }
                    )
    return rows


def about(role: str, step: int) -> list[dict[str, Any]]:
    loss = 6.9 - 3.0 * (1 - math.exp(-step / 80))
    rows: list[dict[str, Any]] = [
        {"step": step, "measure": "loss", "variant": "train", "value": loss},
        {"step": step, "measure": "loss", "variant": "held-out", "value": loss + 0.1},
    ]
    if step == 0:
        rows.append({"step": 0, "measure": "unigram_entropy", "value": 5.9})
    if step == TOTAL:
        tokens = [" the", HOSTILE, "\u202eevil\u202c", "nul\x00byte", "x" * 10_000, "\n", "שלום", "&amp;", "=1+1"]
        rows += [
            {
                "step": step,
                "layer": layer,
                "proxy": "semi_nmf",
                "measure": "concept",
                "item": k,
                "place": r,
                "value": 9.0 - r,
                "token": token,
            }
            for layer in (1, 3)
            for k in range(3)
            for r, token in enumerate(tokens)
        ]
    return rows


def plant(
    path: Path,
    *,
    supported: bool = True,
    seeds: tuple[int, ...] = (0,),
    until: int = TOTAL,
    status: str | None = "finished",
    model: str = "twin",
) -> Path:
    """Write a run of both roles."""
    run = create_run(path, config={"rank": RANK, "note": HOSTILE, "nested": {"a": [1, 2]}}, kind="pair")
    run.update(
        steps=TOTAL,
        seeds=list(seeds),
        versions={"torch": "2.13.0", "evil": "\u202egnp.exe"},
        hashes={"corpus": "ab" * 32},
        machine={"cpu": "two cores"},
        corpus="kjv",
    )
    for role in ("decoder", "encoder"):
        for seed in seeds:
            rng = np.random.default_rng([seed, role == "decoder"])
            sink = run.sink(f"{role}-{seed}", role=role, model=f"{model}-{role}", seed=seed)
            for step in STEPS:
                if step <= until:
                    sink.write(evidence(role, step, rng, supported) + clouds(role, step, rng) + about(role, step))
    run.write(
        "skips",
        [
            {
                "step": 7,
                "role": "decoder",
                "model": f"{model}-decoder",
                "seed": seeds[0],
                "measure": "skipped",
                "note": HOSTILE,
            }
        ],
    )
    run.close(status)
    return path
