"""Figures and tables for papers: every figure of every kind of run, at the widths of columns, with its caption."""

import re
import shutil
import subprocess
import sys
from dataclasses import replace

import pytest

from anisoscope.cli import main
from anisoscope.errors import AnisoscopeError
from anisoscope.report.paper_figures import HUES, WIDTHS, caption_tex, draw_figures, figure_parts
from anisoscope.report.paper_tables import paper_tables
from anisoscope.report.reading import read
from anisoscope.report.tex import tex
from anisoscope.report.tree import Axis, Figure, LadderFigure, Node, Point, Report, Section, Series, Track
from anisoscope.report.view import view
from anisoscope.vocabulary import OUTCOMES
from report.test_claims import passing, plant_run


def report_of(*figures):
    return Report("", "", [], [Section("s", "s", list(figures))])


def figure_of(**tags):
    """A figure of one tag with these values."""
    ((key, values),) = tags.items()
    series = [
        Series(v, {key: v}, [Point(x, 1.0 + i + x, x, 2.0 + i + x) for x in (0, 1, 2)]) for i, v in enumerate(values)
    ]
    return Figure("f", "Title", "Caption of 5 % `haar`.", "alt", Axis("x"), Axis("y"), series, colour=key)


@pytest.mark.parametrize("form", ["pdf", "svg", "png"])
def test_every_figure_of_a_pair_is_drawn_with_its_caption(planted, form):
    report = view(read([str(planted / "half")]))
    few = replace(report, sections=[s for s in report.sections if s.id in ("verdict", "emergence", "ablations")])
    made = dict(draw_figures(few if form == "svg" else replace(few, sections=few.sections[:1]), forms=(form,)))
    assert {f"answer.{form}", f"ladder-representation.{form}", "answer.tex"} <= made.keys()
    for name, content in made.items():
        assert len(content) > (1000 if name.endswith(form) else 100)
        assert name.isascii()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["good", "bad", "seeds", "two"])
def test_all_of_a_run_is_drawn(planted, name):
    report = view(read([str(planted / name)]))
    made = [name for name, _ in draw_figures(report)]
    assert len(set(made)) == len(made) > 40
    for figure in report.figures():
        assert any(part.startswith(figure.id) for part in made)


@pytest.mark.parametrize(
    "layers",
    [
        ["0", "1", "10", "2", "median"],
        ["layer 0", "layer 10", "layer 2"],
        ["all layers"],
        ["1 attn.q_proj", "1 mlp.up_proj", "0 attn.q_proj"],
    ],
)
def test_layers_by_any_name_are_drawn_in_their_order(layers):
    made = dict(draw_figures(report_of(figure_of(layer=layers)), forms=("svg",)))
    legend = re.findall(r"<!-- (.*?) -->", made["f.svg"].decode())
    names = [name if name[0] not in "0123456789" else f"layer {name}" for name in layers]
    found = [word.removeprefix("layer ") for word in legend if word in names]
    numbers = [int(word.split()[0]) for word in found if word[0].isdigit()]
    assert len(found) == len(layers)
    assert numbers == sorted(numbers)


@pytest.mark.parametrize(("width", "inches"), [("column", 3.25), ("page", 6.75)])
def test_figures_are_as_wide_as_a_column_or_a_page_and_hold_their_fonts(width, inches):
    made = dict(draw_figures(report_of(figure_of(model=["a", "b"])), forms=("pdf", "svg"), width=width))
    box = re.search(rb"/MediaBox \[ 0 0 ([\d.]+)", made["f.pdf"])
    assert float(box.group(1)) == pytest.approx(72 * inches, abs=0.5)
    assert WIDTHS[width] == inches
    assert b"/FontFile2" in made["f.pdf"]
    assert b"<text" not in made["f.svg"]  # letters are outlines, so a reader needs no font


def test_one_panel_takes_a_column_and_several_a_page():
    one = figure_of(model=["a", "b"])
    two = replace(one, id="g", panel="model")
    made = dict(draw_figures(report_of(one, two), forms=("pdf",)))
    widths = {
        name: float(re.search(rb"/MediaBox \[ 0 0 ([\d.]+)", made[name]).group(1)) / 72 for name in ("f.pdf", "g.pdf")
    }
    assert widths == {"f.pdf": pytest.approx(3.25, abs=0.01), "g.pdf": pytest.approx(6.75, abs=0.01)}


def seen(colour, kind):
    """A colour as people with this kind of dichromacy see it (Viénot, Brettel & Mollon 1999), in linear light."""
    red, green, blue = (((int(colour[i : i + 2], 16) / 255 + 0.055) / 1.055) ** 2.4 for i in (1, 3, 5))
    mixed = {"protan": 0.11238 * red + 0.88762 * green, "deutan": 0.29275 * red + 0.70725 * green}[kind]
    return mixed, blue


@pytest.mark.parametrize("kind", ["protan", "deutan"])
def test_the_first_hues_are_told_apart_by_the_colour_blind(kind):
    def distance(a, b):
        pairs = zip(seen(a, kind), seen(b, kind), strict=True)
        return max(abs(x**0.45 - y**0.45) for x, y in pairs)

    first = HUES[:6]
    assert min(distance(a, b) for i, a in enumerate(first) for b in first[:i]) > 0.09
    assert distance("#8a6d00", "#d55e00") < 0.1  # a brown and a red that are hard to tell


def test_in_grey_lines_have_shapes_of_their_own():
    made = dict(draw_figures(report_of(figure_of(model=["a", "b", "c"])), forms=("svg",)))
    shapes = set(re.findall(r'<path id="m[0-9a-f]+" d="(.*?)"', made["f.svg"].decode(), re.S))
    assert len(shapes) >= 3 + 2  # three lines, and the ticks of two axes


def test_a_style_file_overrules_and_a_wrong_one_is_named(tmp_path):
    (tmp_path / "mine.mplstyle").write_text("axes.facecolor: 123456\n")
    report = report_of(figure_of(model=["a"]))
    made = dict(draw_figures(report, forms=("svg",), style=str(tmp_path / "mine.mplstyle")))
    assert b"#123456" in made["f.svg"]
    assert b"#123456" not in dict(draw_figures(report, forms=("svg",)))["f.svg"]
    with pytest.raises(ValueError, match="--style must be a style that matplotlib can read, got no-such-style"):
        next(draw_figures(report, style="no-such-style"))


def test_a_ladder_with_every_status_is_drawn():
    nodes = [Node(name, name, 1.0, 0.5, 2.0, "") for name in OUTCOMES]
    nodes.append(Node("last", "not measured", None, None, None, ""))
    figure = LadderFigure("ladder", "t", "c", "a", [Track("$x$ $", {"view": "weight"}, "above", nodes)], [])
    made = dict(draw_figures(report_of(figure), forms=("svg",)))
    assert list(made) == ["ladder.svg", "ladder.tex"]
    assert b"$x$" in made["ladder.svg"]  # text, no formula


def test_figures_are_the_same_twice():
    first, second = (dict(draw_figures(report_of(figure_of(model=["a", "b"])), forms=("pdf", "svg"))) for _ in range(2))
    assert first == second


def test_captions_are_latex_that_pdflatex_can_read(planted):
    report = view(read([str(planted / "good")]))
    for figure in report.figures():
        made = tex(f"{figure.title}. {figure.caption}")
        assert made.isascii(), {c for c in made if not c.isascii()}
        assert not re.search(r"(?<!\\)[%&#_]", re.sub(r"\$[^$]*\$", "", made))
        assert made.count("{") == made.count("}")
    assert tex(r"a_b & 5 % of \x {y} $z$") == r"a\_b \& 5 \% of \textbackslash{}x \{y\} \$z\$"


def test_the_main_table_has_every_window_with_its_numbers(tmp_path):
    made = dict(paper_tables(plant_run(tmp_path / "run", passing(targets="below", init="cannot tell"))))
    assert set(made) == {"table-representation.tex", "table-representation.md"}
    lines = made["table-representation.md"].decode().splitlines()
    nulls = ["random directions", "shared axes", "untrained network", "shuffled targets", "random targets"]
    assert lines[0] == f"| {' | '.join(['model', 'window', 'share', 'chance', *nulls])} |"
    late = next(line for line in lines if "| late |" in line)
    assert late.startswith("| Decoder | late | 81 % | 25 % | 4 [3.29, 4.87] + | 4 [3.29, 4.87] + | 1.5 [")
    assert " ? | " in late
    assert " − | " in late
    latex = made["table-representation.tex"].decode()
    assert r"Decoder & late & 81 \% & 25 \% & 4 + & 4 + &" in latex
    assert r" &  &  &  & {\scriptsize [3.29, 4.87]} & " in latex
    assert len(re.findall(r"\\\\(\[2pt\])?$", latex, re.M)) == 1 + 2 * 3
    assert r"\toprule" in latex


def test_without_matplotlib_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(AnisoscopeError, match=r'pip install "anisoscope\[report\]"'):
        next(draw_figures(report_of(figure_of(model=["a"]))))


PAPER = r"""\documentclass{article}
\usepackage[textwidth=6.75in]{geometry}
\usepackage{booktabs}
\begin{document}
%s
\end{document}
"""


def test_latex_reads_every_caption_and_table(planted, tmp_path):
    """With booktabs and no package else; the main table fits between the margins of a page of two columns."""
    pdflatex = shutil.which("pdflatex")
    if pdflatex is None:
        pytest.skip("there is no pdflatex")
    context = read([str(planted / "half")])
    tables = [content.decode() for name, content in paper_tables(context) if name.endswith(".tex")]
    captions = [caption_tex(name, part) for figure in view(context).figures() for name, part in figure_parts(figure)]
    assert len(tables) == 3
    assert len(captions) > 20
    floats = [f"\\begin{{table}}[p]\n{table}\\end{{table}}\\clearpage" for table in tables]
    floats += [f"\\begin{{figure}}[p]\\rule{{1cm}}{{1cm}}\n{text}\\end{{figure}}\\clearpage" for text in captions]
    (tmp_path / "paper.tex").write_text(PAPER % "\n".join(floats), encoding="ascii")
    command = [pdflatex, "-interaction=nonstopmode", "-halt-on-error", "-no-shell-escape", "paper.tex"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, errors="replace", timeout=120)
    assert done.returncode == 0, done.stdout[-2000:]
    assert (tmp_path / "paper.pdf").read_bytes().startswith(b"%PDF")
    assert "Overfull" not in done.stdout, done.stdout[-3000:]


@pytest.mark.slow
def test_the_command_writes_both_formats_tables_and_captions(planted, tmp_path, capsys):
    main(["figures", str(planted / "half"), "--out", str(tmp_path / "f"), "--width", "column"])
    names = {path.name for path in (tmp_path / "f").iterdir()}
    assert {"answer.pdf", "answer.svg", "answer.tex", "emergence-haar.pdf", "table-weight.md"} <= names
    assert str(tmp_path / "f" / "answer.pdf") in capsys.readouterr().out
