"""The page of a theory run: what it says, what it says when something fails, and the slider in a browser."""

import pytest

from anisoscope.report.make import make_report
from anisoscope.report.paper_figures import draw_figures
from anisoscope.report.reading import read
from anisoscope.report.sections.theory.laboratory import OPEN_CLAIM, Laboratory
from anisoscope.report.sections.theory.theory_page import bounds_blocks, headline, verdict_section
from anisoscope.report.tree import Figure, Table, Text
from anisoscope.report.view import view
from anisoscope.store.run import create_run
from report import browser as finder
from report.blocks import block, headed, the
from report.test_chromium import ALL_DRAWN, until
from study.theory.test_theory_study import SMALL, Silent


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    from anisoscope.study.setting_fields import made_of
    from anisoscope.study.theory.theory_settings import Laboratory
    from anisoscope.study.theory.theory_study import theory

    return theory(made_of(Laboratory, SMALL), Silent(), out=tmp_path_factory.mktemp("theory") / "lab")


NUMBERS = {"equal": (1.0, 0.95, 1.05), "below": (0.5, 0.4, 0.6), "cannot tell": (0.5, 0.0, 1.0)}


def fit(claim, expected, outcome, *, old=False):
    """A row as it is written today, or as it was when the verdict was in the note."""
    value, low, high = (expected - 1 + number for number in NUMBERS[outcome])
    words = {"equal": "holds", "below": "does not hold", "cannot tell": "undetermined"}
    said = {"note": words[outcome]} if old else {"outcome": outcome, "detectable": 0.7}
    return {"measure": "fit", "variant": claim, "value": value, "low": low, "high": high} | said


def planted(*, outcome="equal", corrected=1.0, published=0.3, ratio=None, held=None, old=False):
    rows = [
        fit("chord", 4.0, outcome, old=old),
        {"measure": "fit_expected", "variant": "chord", "value": 4.0},
        {"measure": "bound_holds", "variant": "published", "value": published, "note": f"{published * 10:g} of 10"},
        {"measure": "bound_holds", "variant": "corrected", "value": corrected, "note": f"{corrected * 10:g} of 10"},
    ]
    if ratio:
        rows += [
            fit(OPEN_CLAIM, 1.0, ratio, old=old),
            {"measure": "fit_expected", "variant": OPEN_CLAIM, "value": 1.0},
        ]
    if held:
        share = {"value": held / 4, "low": 0.1, "high": 1.0, "n": 4, "note": f"{held} of 4"}
        rows.append({"measure": "bound_holds", "variant": "held-out"} | share)
    return Laboratory([{"model": None, "n": 10, "low": None, "high": None, **row} for row in rows])


def test_the_page_begins_with_its_verdict_and_has_every_section(run):
    report = view(read([run.path]))
    assert [section.id for section in report.sections] == [
        "verdict",
        "scalings",
        "frequency",
        "gradients",
        "counter-example",
        "bounds",
        "provenance",
    ]
    said = the(Text, report.sections[0].blocks[0])
    assert said.head == "Supported in part."
    assert (
        "12 of 13 claims hold. The published ratio of gradients with tokens all round a point does not hold."
        in said.text
    )
    assert "the corrected one, βt/γ, in 20 of 20." in said.text
    assert len(report.figures()) == 8


@pytest.mark.parametrize("old", [False, True])
def test_failures_are_said(old):
    """Also of runs that hold "does not hold" and "undetermined" in their notes."""
    said = headline(planted(outcome="below", ratio="equal", old=old))
    assert said.head == "Supported in part, with failures."
    assert "1 of 2 claims holds." in said.text
    assert headline(planted(outcome="below", old=old)).head == "Not supported."
    assert headline(planted(outcome="cannot tell", old=old)).head == "Undecided."
    assert headline(planted(corrected=0.9, old=old)).tone == "no"
    assert headline(planted(published=1.0, old=old)).head == "Supported."
    assert headline(Laboratory([])).head == "Nothing to judge."
    section = verdict_section(planted(outcome="cannot tell", old=old))
    said = headed(section.blocks, "Cannot tell:")
    seen = "about 0.7 off theory would have been seen in 80 % of repetitions"
    assert (seen in said.text) is not old  # runs of old do not know it
    assert "undetermined" not in str(section.blocks).lower()


@pytest.mark.parametrize(
    ("ratio", "head", "tone", "words"),
    [
        ("equal", "Supported.", "yes", "with tokens all round: holds"),
        ("below", "Supported in part.", "no", "with tokens all round: does not hold"),
        ("cannot tell", "Supported in part.", "open", "with tokens all round: cannot tell (about 0.7 off theory"),
    ],
)
def test_the_published_ratio_counts_in_the_verdict(ratio, head, tone, words):
    """A few lucky cases of the bound do not make up for it, and what cannot be told is not refuted."""
    blocks = verdict_section(planted(published=1.0, ratio=ratio)).blocks
    first, said = the(Text, blocks[0]), headed(blocks, "The ratio of gradients:")
    assert first.head == head
    assert ("2 of 2 claims hold." if ratio == "equal" else "1 of 2 claims holds.") in first.text
    assert said.tone == tone
    assert words in said.text


def test_titles_of_figures_claim_nothing(run):
    """What holds is said where the rows say it, not in a title that stands whatever they say."""
    titles = " ".join(figure.title for figure in view(read([run.path])).figures())
    assert "falls faster" not in titles
    assert "the less curvature" not in titles


def test_a_bound_that_no_theorem_promises_is_not_refuted_by_a_miss():
    (bounds,) = bounds_blocks(planted(held=3))
    table = the(Table, bounds)
    assert [row[1].tone for row in table.rows] == ["no", "yes", "part"]
    assert "In 6 cases γ is not clearly above noise: other sequences give no bound." in table.caption
    assert "taken literally" in table.caption


def test_all_round_means_one_thing_on_the_page(run):
    """Mirror images; tokens that are only drawn evenly are called uniform, in runs of old as well."""
    rows = run.table().to_pylist()
    old = [row | {"subset": "all round"} if row["subset"] == "uniform" else row for row in rows]
    assert old != rows
    for given in (rows, old):
        figure = the(Figure, bounds_blocks(Laboratory(given))[-1])
        assert "uniform" in figure.toggle[0].values
        assert "all round" not in figure.toggle[0].values


def test_the_mixture_owns_up_to_its_short_span(run):
    table = block(view(read([run.path])), "verdict", Table, "claims")
    assert "factor of 30, that of the mixture over a factor of 1.73; R²" in table.caption


def test_a_run_that_broke_off_has_a_page(tmp_path):
    create_run(tmp_path / "run", kind="theory").close("interrupted")
    page = make_report([str(tmp_path / "run")])
    assert "Nothing to judge." in page
    assert "The run did not come this far." in page


def test_a_theory_run_stands_alone(run):
    with pytest.raises(ValueError, match="report of its own"):
        make_report([run.path, run.path])


def test_figures_for_papers_show_one_place_of_the_slider(run):
    names = [name for name, _ in draw_figures(view(read([run.path])), forms=("svg",)) if name.endswith("svg")]
    assert len([name for name in names if name.startswith("pull")]) == 1
    assert any(name.startswith("draws") for name in names)


@pytest.fixture(scope="module")
def browser():
    api = pytest.importorskip("playwright.sync_api", reason="NO PLAYWRIGHT: the slider was not tried in a browser")
    path = finder.chromium()
    with api.sync_playwright() as playwright:
        launched = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield launched
        launched.close()


@pytest.mark.parametrize(("width", "scheme"), [(1400, "light"), (390, "dark")])
def test_the_slider_makes_the_ratio_blow_up(run, browser, tmp_path, width, scheme):
    (tmp_path / "page.html").write_text(make_report([run.path]), encoding="utf-8")
    context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme, offline=True)
    page, troubles = context.new_page(), []
    page.on("console", lambda m: troubles.append(m.text))
    page.on("pageerror", lambda e: troubles.append(str(e)))
    page.goto((tmp_path / "page.html").as_uri())
    assert page.evaluate("document.documentElement.dataset.drawn") == "8"
    page.locator("button.unfold").click()
    until(page, ALL_DRAWN)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    slider, other = (page.locator(f"#figure-{name} input[type=range]") for name in ("pull", "counter-ratio"))
    said = page.locator("#figure-counter-ratio output")
    lines = page.locator("#figure-counter-ratio .plot svg .series path")
    slider.focus()
    page.keyboard.press("End")
    assert "γ = 1;" in said.text_content()
    assert "holds" in said.text_content()
    assert other.input_value() == "20"  # one slider moves both
    assert lines.count() == 3
    page.keyboard.press("Home")
    page.keyboard.press("ArrowRight")
    assert "the ratio is 6.67: the published bound, 0.5, fails; the corrected one is 10" in said.text_content()
    page.keyboard.press("Home")
    assert "the ratio is infinite" in said.text_content()
    assert lines.count() == 1  # only the published bound is finite
    context.close()
    assert troubles == []
