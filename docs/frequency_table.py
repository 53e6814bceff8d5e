"""Prints the table of docs/frequency.md from a run of `anisoscope pair`: `python docs/frequency_table.py RUN`."""

import math
import sys

from anisoscope.store.run import open_run

ROLES = ("decoder", "encoder")


def last(rows, **where):
    """Rows of the last observation that match and hold a number."""
    found = [r for r in rows if all(r[key] == value for key, value in where.items())]
    found = [r for r in found if r["value"] is not None and math.isfinite(r["value"])]
    step = max((r["step"] for r in found), default=None)
    return sorted((r for r in found if r["step"] == step), key=lambda r: r["value"])


def shown(row, *, digits=2, factor=False, sign=False):
    def text(value, sign=False):
        return f"{math.exp(value) if factor else value:{'+' if sign else ''}.{digits}f}".replace("-", "−")

    if row["low"] is None:
        return f"{text(row['value'], sign)}, no interval"
    return f"{text(row['value'], sign)} [{text(row['low'])}, {text(row['high'])}]"


def median(rows, **options):
    return shown(rows[(len(rows) - 1) // 2], **options) if rows else "–"


def correlation(what, **where):
    return lambda rows: median(
        last(rows, measure="frequency_correlation", variant=f"{what}, spearman", **where), sign=True
    )


def trend(measure, subset):
    def said(rows):
        found = last(rows, measure=f"{measure}_trend", view="representation", subset=subset)
        up, down = sum((r["low"] or 0) > 0 for r in found), sum((r["high"] or 0) < 0 for r in found)
        return f"{median(found, factor=True)} ({up}↑ {down}↓ of {len(found)})"

    return said


def uncounted(rows):
    found = last(rows, measure="bin_energy", view="representation", subset="input tokens uncounted")
    return f"{100 * found[0]['value']:.0f} to {100 * found[-1]['value']:.0f} % (the mask)" if found else "none"


def overlap(variant):
    return lambda rows: median(last(rows, measure="tangent_overlap", variant=variant), digits=3)


LINES = {
    "log count and distance, output embedding, plain centroid": correlation("distance, plain", tensor="output"),
    "the same, weighted centroid": correlation("distance, weighted", tensor="output"),
    "log count and distance, input embedding, plain centroid": correlation("distance, plain", tensor="input"),
    "the same, weighted centroid ": correlation("distance, weighted", tensor="input"),
    "log count and trajectory, output embedding": correlation("trajectory", tensor="output"),
    "the same, input embedding": correlation("trajectory", tensor="input"),
    "the same, contextual means": correlation("trajectory", view="representation"),
    "enrichment, factor a fifth, by target token": trend("bin_enrichment", "target tokens"),
    "the same, fifths of equal types": trend("bin_enrichment", "target types"),
    "enrichment, factor a fifth, by input token": trend("bin_enrichment", "input tokens"),
    "gradient energy at positions in no bin of the input token": uncounted,
    "spread of contextual vectors, factor a fifth": trend("bin_spread", "input tokens"),
    "visible curvature, factor a fifth": trend("bin_visible_curvature", "input tokens"),
    "local tangents inside the proxy": overlap(None),
    "the same in clouds of equal covariance and radii": overlap("elliptical"),
}

if __name__ == "__main__":
    table = open_run(sys.argv[1]).table().to_pylist()
    print("| | " + " | ".join(ROLES) + " |\n|---|---|---|")
    for words, said in LINES.items():
        cells = [said([r for r in table if r["role"] == role]) for role in ROLES]
        print(f"| {words.strip()} | " + " | ".join(cells) + " |")
