"""A run in a notebook: tidy frames that hold what the rows hold, figures like the report's, its headline when shown."""

import subprocess
import sys

import pytest

import anisoscope
from anisoscope.store.run import open_run
from report.planted import LAYERS, STEPS, plant
from report.test_claims import passing, plant_run


@pytest.fixture(scope="module")
def run(planted):
    return anisoscope.open_run(planted / "good")


def test_a_curve_is_the_rows_of_the_main_proxy_in_order(run):
    frame = run.curve(null="haar", view="representation", role="decoder", layer=[1, 2])
    assert len(frame) == 2 * len(STEPS)
    assert list(frame["step"][: len(STEPS)]) == STEPS
    wanted = {"measure": "enrichment", "null": "haar", "view": "representation", "role": "decoder", "layer": 1}
    wanted |= {"step": 200, "proxy": "pca", "timing": "rolling", "subset": "all", "rank": 32}
    (row,) = [r for r in open_run(run.path).table().to_pylist() if all(r[k] == v for k, v in wanted.items())]
    mine = frame[(frame["layer"] == 1) & (frame["step"] == 200)].iloc[0]
    assert (mine["value"], mine["low"], mine["high"], mine["q"]) == (row["value"], row["low"], row["high"], row["q"])


def test_other_proxies_come_when_they_are_named(run):
    every = run.curve(null="haar", view="representation", role="decoder", layer=1, proxy=...)
    assert set(every["proxy"]) == {"pca", "svd", "semi_nmf"}
    anchored = run.curve(null="haar", view="representation", role="decoder", layer=1, timing="anchored")
    assert anchored["step"].min() > 120
    assert len(run.curve("two_nn", role="decoder", subset="all")) == LAYERS * len(STEPS)


def test_verdicts_are_those_of_the_page(tmp_path):
    plant_run(tmp_path / "run", passing(init="equal", targets="below"))
    frame = anisoscope.open_run(tmp_path / "run").verdicts()
    late = frame[frame["window"] == "late"].set_index("null")
    assert list(late["outcome"]) == ["above", "above", "equal", "below", "above"]
    assert list(late["passed"]) == [True, True, False, False, False]
    assert late.loc["haar", "odds_ratio"] == pytest.approx(4.0)
    assert (late.loc["haar", "share"], late.loc["haar", "chance"]) == (pytest.approx(0.81), pytest.approx(0.25))
    assert late.loc["targets", "layers_above"] == 0


def test_verdicts_of_another_proxy_and_timing(run):
    frame = run.verdicts(proxy="svd", timing="anchored")
    assert set(frame["window"]) == {"middle", "late"}
    with pytest.raises(ValueError, match="the proxy must be one that was judged, got mean"):
        run.verdicts(proxy="mean")


def test_wrong_words_are_named_with_those_that_there_are(run):
    with pytest.raises(ValueError, match="the measure must be one that the run holds, got nope; there are angle,"):
        run.curve("nope")
    with pytest.raises(ValueError, match="columns to choose by must be keys of a row, got colour; they are"):
        run.curve(colour="red")
    with pytest.raises(ValueError, match="there must be rows to draw"):
        run.plot(layer=99)


def test_a_plot_has_a_panel_a_model_a_line_a_layer_and_the_null(run):
    figure = run.plot()
    assert [axes.get_title(loc="left") for axes in figure.axes] == ["Decoder", "Encoder"]
    drawn = figure.axes[0].get_lines()
    assert sum(len(line.get_xdata()) == len(STEPS) for line in drawn) == LAYERS
    assert any(list(line.get_ydata()) == [1.0, 1.0] for line in drawn)
    assert figure.axes[0].get_yscale() == "log"
    assert run.plot("two_nn", subset="all", role="decoder", width="column").get_figwidth() == 3.25


def test_a_run_shows_its_headline(run):
    shown = run._repr_html_()
    assert "Supported in part." in shown
    assert "hold 56 % of the gradient&#39;s energy" in shown
    assert shown.count("<tr>") == 1 + 6


def test_a_headline_is_text_only(tmp_path):
    path = plant(tmp_path / "run", until=5, model="<script>alert(1)</script>")
    opened = anisoscope.open_run(path)
    opened.update(name="<img src=x onerror=alert(1)>")
    shown = opened._repr_html_()
    assert "<script" not in shown
    assert "<img" not in shown


def test_reading_a_run_needs_no_torch(planted):
    code = (
        "import sys, anisoscope; run = anisoscope.open_run(sys.argv[1]); "
        "run.curve(); run.verdicts(); run._repr_html_(); "
        "assert 'torch' not in sys.modules and 'matplotlib' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code, str(planted / "half")], check=True)
