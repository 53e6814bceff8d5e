"""Writes docs/vocabulary.md from the vocabulary: ``python -m docs.vocabulary``."""

from pathlib import Path

from anisoscope.geometry.measure_registry import methods
from anisoscope.store.schema import COLUMNS
from anisoscope.vocabulary import (
    HEADLINES,
    MEASURES,
    NULLS,
    OUTCOMES,
    PROXIES,
    REMOVAL_CONTROLS,
    SUBSETS,
    TENSORS,
    THEORY,
    TIMINGS,
    VIEWS,
    WINDOWS,
)

HERE = Path(__file__).parent


def table(heads, rows):
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join("| " + " | ".join(str(cell).replace("|", "\\|") for cell in line) + " |" for line in lines)


def page():
    needs = {method.name: method for method in methods()}
    measures = [
        [
            f"`{word.name}`",
            word.label,
            word.about,
            ", ".join(f"`{name}`" for name, _ in word.variants[1:] if name),
            "" if word.no_effect is None else f"{word.no_effect:g}",
            needs[word.name].needs if word.name in needs else "",
            "yes" if word.name in needs and needs[word.name].training else "",
        ]
        for word in MEASURES.values()
        if word.about != THEORY
    ]
    nulls = [
        [f"`{n.name}`", n.breaks, n.otherwise, ", ".join(n.views), "yes" if n.ladder else "no"] for n in NULLS.values()
    ]
    return (
        "\n\n".join(
            [
                "# Words of a row",
                "Made by `python -m docs.vocabulary` from `anisoscope.vocabulary`, which declares every word that a "
                "row can hold. Measures, nulls and proxies can be added from outside: see [extending](extending.md).",
                "## Columns",
                table(["column", "what it holds"], [[f"`{name}`", about] for name, (_, about) in COLUMNS.items()]),
                "## Measures",
                "*Needs*: registered measures say which part of a cloud they are computed from; the others are made by "
                "the evaluation itself. *Training*: whether the usual variant is measured at every observation.",
                table(["measure", "label", "what it is", "other variants", "no effect", "needs", "training"], measures),
                "Rows of the theory laboratory have measures of their own; see [theory](theory.md).",
                "## Nulls",
                "In the order of the ladder. *Ladder*: whether passing it counts for the verdict.",
                table(["null", "what it breaks", "if it is not passed", "views", "ladder"], nulls),
                "Removals (`removal_cost`, `removal_excess`) are compared with these, in the same column:",
                table(["control", "what is removed"], [[f"`{n}`", about] for n, about in REMOVAL_CONTROLS.items()]),
                "## Proxies",
                table(
                    ["proxy", "what it is", "fitted on"], [[f"`{p.name}`", p.about, p.needs] for p in PROXIES.values()]
                ),
                "## Views, tensors, subsets",
                table(
                    ["view", "what it is", "proxy fitted on", "judged on"],
                    [[f"`{v.name}`", v.about, v.fitted_on, ", ".join(v.judged_on)] for v in VIEWS.values()],
                ),
                table(["tensor", "what the points are"], [[f"`{name}`", about] for name, about in TENSORS.items()]),
                table(["subset", "which tokens"], [[f"`{name}`", about] for name, about in SUBSETS.items()]),
                "Bins of frequency are subsets too: `target tokens 1/5` to `input types 5/5`.",
                "## Timings, windows, outcomes, headlines",
                table(["timing", "of the proxy"], [[f"`{name}`", about] for name, about in TIMINGS.items()]),
                table(["window", "which observations"], [[f"`{name}`", about] for name, about in WINDOWS.items()]),
                table(["outcome", "what it says"], [[f"`{o.name}`", o.about] for o in OUTCOMES.values()]),
                table(
                    ["headline", "median over layers of the rows with"],
                    [
                        [f"`{h.name}`", ", ".join(f"{k} = {'null' if v is None else v}" for k, v in h.where.items())]
                        for h in HEADLINES.values()
                    ],
                ),
            ]
        )
        + "\n"
    )


if __name__ == "__main__":
    (HERE / "vocabulary.md").write_text(page(), encoding="utf-8")
