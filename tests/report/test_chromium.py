"""The page in a real Chromium: nothing asked of the network, everything drawn, every control of use."""

import csv
import io
import time

import pytest

from anisoscope.report.make import make_report
from report import browser as finder

sync_api = pytest.importorskip("playwright.sync_api", reason="NO PLAYWRIGHT: the report was not looked at in a browser")


ALL_DRAWN = "[...document.querySelectorAll('.plot')].every(p => p.querySelector('svg'))"


def until(page, condition, patience=10.0):
    """Wait for something to become true; the page's policy forbids playwright's own way."""
    end = time.monotonic() + patience
    while not steady(lambda: page.evaluate(condition)):
        assert time.monotonic() < end, condition
        page.wait_for_timeout(20)


def steady(look):
    """Look at a page that reads itself anew now and then; once more if it did so meanwhile."""
    for _ in range(4):
        try:
            return look()
        except sync_api.Error as error:
            if "navigation" not in str(error):
                raise
    return look()


@pytest.fixture(scope="module")
def browser():
    path = finder.chromium()
    with sync_api.sync_playwright() as playwright:
        launched = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield launched
        launched.close()


@pytest.fixture(scope="module")
def pages(planted, tmp_path_factory):
    folder = tmp_path_factory.mktemp("pages")
    runs = {"good": ["good"], "bad": ["bad"], "seeds": ["seeds"], "half": ["half"], "both": ["good", "bad"]}
    for name, members in runs.items():
        made = make_report([str(planted / member) for member in members])
        (folder / f"{name}.html").write_text(made, encoding="utf-8")
    return folder


@pytest.fixture
def opened(browser, pages):
    """A function that opens a page and afterwards proves that it was silent."""
    contexts, troubles = [], []

    def open_page(name, width=1400, scheme="light", *, unfold=True, height=900):
        context = browser.new_context(
            viewport={"width": width, "height": height}, color_scheme=scheme, accept_downloads=True
        )
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda m: troubles.append(f"console {m.type}: {m.text}"))
        page.on("pageerror", lambda e: troubles.append(f"error: {e}"))
        page.on("dialog", lambda d: troubles.append(f"dialog: {d.message}"))
        allowed = ("file:", "data:", "blob:")
        page.on("request", lambda r: None if r.url.startswith(allowed) else troubles.append(f"request: {r.url}"))
        page.goto((pages / f"{name}.html").as_uri())
        assert page.evaluate("document.documentElement.dataset.drawn") is not None
        if unfold:
            page.locator("button.unfold").click()
            until(page, ALL_DRAWN)
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert troubles == []


@pytest.mark.parametrize(
    ("name", "width", "scheme"),
    [
        ("good", 1400, "light"),
        ("good", 390, "dark"),
        ("bad", 390, "light"),
        ("seeds", 1400, "dark"),
        ("half", 390, "light"),
        ("both", 1400, "light"),
        ("both", 390, "dark"),
    ],
)
def test_every_figure_is_drawn_and_nothing_overflows(opened, name, width, scheme):
    page = opened(name, width, scheme)
    figures = page.locator("figure")
    assert figures.count() == 12
    marks = page.evaluate(
        "[...document.querySelectorAll('figure')].map(f => f.querySelectorAll('.plot svg .mark').length)"
    )
    assert min(marks) > 3
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    named = page.evaluate(
        "[...document.querySelectorAll('.plot svg')].every(s => s.getAttribute('aria-label').length > 20)"
    )
    assert named
    wrong = "e => [...e.attributes].some(a => /NaN|Infinity|undefined/.test(a.value))"
    broken = page.evaluate(f"[...document.querySelectorAll('.plot svg *')].some({wrong})")
    assert not broken


def test_without_any_chromium_the_tests_are_skipped_loudly(monkeypatch, capfd):
    monkeypatch.setattr(finder, "on_path", lambda: None)
    monkeypatch.setattr(finder, "_tried", lambda command: False)
    with pytest.raises(pytest.skip.Exception, match="NO CHROMIUM"):
        finder.chromium.__wrapped__()
    assert "NO CHROMIUM" in capfd.readouterr().err


def test_hostile_tokens_are_text_and_nothing_else(opened):
    page = opened("good")
    assert page.locator("img").count() == 0
    tokens = page.locator(".token").all_text_contents()
    assert "</script><img src=x onerror=alert(1)>" in tokens
    assert "⟨U+202E⟩evil⟨U+202C⟩" in tokens
    assert "␣the" in tokens


def drawing(page, id):
    return page.locator(f"#figure-{id} .plot svg").evaluate("s => s.innerHTML")


def test_choices_scales_and_chips_change_the_drawing(opened):
    page = opened("good")
    figure = page.locator("#figure-emergence")
    before = drawing(page, "emergence")
    figure.locator("select[data-key=null]").select_option("targets")
    after_null = drawing(page, "emergence")
    assert after_null != before
    figure.locator("button[data-scale=y]").click()
    linear = drawing(page, "emergence")
    assert linear != after_null
    assert "log scale" not in linear
    lines = figure.locator(".plot svg .line").count()
    chip = figure.locator("button[data-key=layer]").first
    chip.click()
    assert chip.get_attribute("aria-pressed") == "false"
    assert figure.locator(".plot svg .line").count() == lines - 2
    figure.locator("button[data-key=model]").first.click()
    assert figure.locator(".plot svg .title").all_text_contents() == ["Encoder"]
    figure.locator("select[data-key=view]").select_option("weight")
    assert figure.locator(".plot svg .line").count() == 4


def test_options_without_rows_are_switched_off(opened):
    page = opened("good")
    select = page.locator("#figure-emergence select[data-key=null]")
    assert select.locator("option[value=pairing]").is_disabled()
    page.locator("#figure-emergence select[data-key=view]").select_option("weight")
    assert not select.locator("option[value=pairing]").is_disabled()


def test_a_pointer_reads_value_interval_n_and_q(opened):
    page = opened("good")
    page.locator("#figure-emergence .plot svg .mark").nth(20).hover(force=True)
    said = page.locator("#figure-emergence .tip").text_content()
    assert "layer" in said
    assert "[" in said
    assert "n = 64" in said
    assert "q = 0.0024" in said


def test_arrow_keys_walk_through_a_figure(opened):
    page = opened("good")
    for id in ("emergence", "ladder"):
        svg = page.locator(f"#figure-{id} .plot svg")
        svg.focus()
        said = []
        for key in ("ArrowRight", "ArrowRight", "ArrowDown", "End", "Home"):
            page.keyboard.press(key)
            said.append(page.locator(f"#figure-{id} .spoken").text_content())
        assert len(set(said)) >= 4
        page.keyboard.press("Escape")
        assert page.locator(f"#figure-{id} .tip").evaluate("t => getComputedStyle(t).visibility") == "hidden"


def test_controls_are_reached_by_the_keyboard(opened):
    page = opened("good")
    button = page.locator("#figure-emergence button[data-scale=x]")
    button.focus()
    before = drawing(page, "emergence")
    page.keyboard.press("Space")
    assert drawing(page, "emergence") != before


def test_the_theme_can_be_turned(opened):
    page = opened("good")
    ground = "getComputedStyle(document.body).backgroundColor"
    light = page.evaluate(ground)
    before = drawing(page, "emergence")
    page.locator("button.theme").click()
    assert page.evaluate(ground) != light
    assert drawing(page, "emergence") != before


@pytest.mark.parametrize("id", ["emergence", "ladder", "methods"])
def test_data_of_a_figure_are_downloaded(opened, id):
    page = opened("good")
    with page.expect_download() as waiting:
        page.locator(f"#figure-{id} button.csv").click()
    assert waiting.value.suggested_filename == f"{id}.csv"
    rows = list(csv.reader(io.StringIO(waiting.value.path().read_text(encoding="utf-8"))))
    assert len(rows) > 10
    assert len({len(row) for row in rows}) == 1


def test_it_prints_in_light_colours_with_its_legend(opened):
    page = opened("good", scheme="dark")
    page.emulate_media(media="print")
    assert page.evaluate("getComputedStyle(document.querySelector('[data-scale]')).display") == "none"
    assert page.locator("#figure-emergence .chip").first.is_visible()  # they are the legend
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert len(page.pdf()) > 50_000


def test_a_run_in_progress_says_so_at_the_top(opened):
    page = opened("half")
    assert "still in progress" in page.locator("header").text_content()


def test_single_seeds_are_drawn_thinner_and_read_out(opened):
    page = opened("seeds")
    assert page.locator("#figure-emergence .seed").count() > 100
    width = "(all) => all.map((e) => parseFloat(getComputedStyle(e).strokeWidth))"
    within, over = (page.locator(f"#figure-methods .{name}").evaluate_all(width) for name in ("within", "bar"))
    assert max(within) < min(over)
    figure = page.locator("#figure-emergence svg.chart")
    figure.focus()
    figure.press("ArrowRight")
    assert "seeds: " in page.locator("#figure-emergence .tip").text_content()
    assert opened("good").locator("#figure-emergence .seed").count() == 0


def test_a_series_without_points_does_not_break_the_page(opened, pages, planted):
    """Whatever it comes from: of every figure one series is emptied, and of the first all of them."""
    from dataclasses import replace

    from anisoscope.report.page import page
    from anisoscope.report.reading import read
    from anisoscope.report.tree import Figure
    from anisoscope.report.view import view

    made, emptied = view(read([str(planted / "seeds")])), 0
    for section in made.sections:
        for number, part in enumerate(section.blocks):
            if isinstance(part, Figure):
                bare = [replace(s, points=[]) for s in part.series]
                section.blocks[number] = replace(part, series=bare if not emptied else [bare[0], *part.series[1:]])
                emptied += 1
    assert emptied > 3
    (pages / "emptied.html").write_text(page(made), encoding="utf-8")
    shown = opened("emptied")
    assert shown.locator("figure svg").count() >= emptied - 1
