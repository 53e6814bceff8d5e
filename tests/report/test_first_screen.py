"""The page as a reader meets it, in a real Chromium: first screen, folds, links, choices, accessibility."""

import re

import pytest

from anisoscope.report.make import make_report
from anisoscope.report.reading import Choice
from report.axe import violations
from report.test_chromium import ALL_DRAWN, browser, opened, pages, sync_api, until

assert browser, (opened, pages, sync_api)  # fixtures of the other file

IN_VIEW = """(tall) => {
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT), found = [];
  for (let n = walker.nextNode(); n; n = walker.nextNode()) {
    const range = document.createRange(); range.selectNodeContents(n);
    const box = range.getBoundingClientRect();
    if (box.height && box.bottom <= tall && n.parentElement.checkVisibility()) found.push(n.textContent);
  }
  return found.join(' ').replace(/\\s+/g, ' ');
}"""


@pytest.mark.parametrize(("width", "height", "screens"), [(1400, 900, 1), (390, 844, 2)])
def test_the_first_screen_says_what_was_found_shown_passed_and_not_known(opened, width, height, screens):
    page = opened("good", width, height=height, unfold=False)
    text = page.evaluate(IN_VIEW, screens * height)
    for part in (
        "A decoder and an encoder (width 256) trained on kjv for 400 steps; 1 seed, 15 observations; finished.",
        "Supported in part. Late in training, the decoder's 32 main activation directions hold",
        "times the 12.5 % expected by chance",
        "Gradients computed with shuffled targets have a larger share of their energy there, not a smaller one: this "
        "null is not passed.",
        "Enrichment of the gradient's energy over training",
        "Which nulls are passed",
        "Decoder, late",
        "Encoder, late",
        "What this run cannot say",
        "there is only one seed",
    ):
        assert part in text, part
    marks = page.locator("#figure-answer .mark").count()
    assert marks == 60  # two models over two nulls at 15 observations
    bottom = page.locator("#figure-answer .plot").evaluate("p => p.getBoundingClientRect().bottom")
    assert bottom <= screens * height
    signs = page.locator(".front .sign")
    assert signs.count() == 30
    assert signs.last.evaluate("s => s.getBoundingClientRect().bottom") <= screens * height


@pytest.mark.parametrize(("name", "width", "tallest"), [("good", 1400, 6000), ("both", 390, 12_000)])
def test_with_closed_folds_the_page_is_short(opened, name, width, tallest):
    page = opened(name, width, unfold=False)
    assert page.evaluate("document.documentElement.scrollHeight") <= tallest
    assert page.evaluate("document.documentElement.scrollWidth") <= width


@pytest.mark.parametrize(
    ("width", "scheme", "unfold"),
    [
        (1400, "light", True),
        (390, "dark", True),
        pytest.param(1400, "dark", True, marks=pytest.mark.slow),
        pytest.param(390, "light", True, marks=pytest.mark.slow),
        pytest.param(1400, "dark", False, marks=pytest.mark.slow),
        pytest.param(390, "light", False, marks=pytest.mark.slow),
    ],
)
def test_axe_finds_nothing_to_complain_of(opened, width, scheme, unfold):
    assert violations(opened("good", width, scheme, unfold=unfold)) == []


def test_each_fold_says_what_it_holds_and_all_open_at_once(opened):
    page = opened("good", unfold=False)
    folds = page.locator("details.fold")
    closed = folds.evaluate_all("all => all.filter(f => !f.open).length")
    assert closed >= 10
    findings = page.locator("details.fold > summary .finding").all_text_contents()
    assert len(findings) == folds.count()
    assert all(20 < len(text) < 260 for text in findings), findings
    button = page.locator("button.unfold")
    button.click()
    assert folds.evaluate_all("all => all.every(f => f.open)")
    assert button.text_content() == "Fold all"
    button.click()
    assert not folds.evaluate_all("all => all.some(f => f.open)")


def test_a_link_opens_the_fold_that_it_leads_to(opened, pages):
    page = opened("good", unfold=False)
    page.locator("nav a[href='#drift']").click()
    assert page.locator("#drift details.fold").evaluate("d => d.open")
    until(page, "Math.abs(document.getElementById('drift').getBoundingClientRect().top) < 300")
    assert page.evaluate("location.hash") == "#drift"
    page.goto((pages / "good.html").as_uri() + "#figure-emergence~null=targets|view=weight")
    page.reload()
    assert page.locator("#emergence details.fold").evaluate("d => d.open")
    assert page.locator("#figure-emergence select[data-key=null]").input_value() == "targets"
    assert page.locator("#figure-emergence select[data-key=view]").input_value() == "weight"


def test_a_sign_leads_to_its_evidence_and_tells_its_numbers(opened):
    page = opened("good", unfold=False)
    sign = page.locator(".front .sign").nth(3)
    sign.hover()
    said = page.locator("#tip").text_content()
    assert said.startswith("Decoder, early, over shuffled targets: below. Pooled odds ratio 0.")
    assert "Of 5 layers: 4.4 below, 0.6 equal." in said
    sign.click()
    assert page.locator("#figure-emergence select[data-key=null]").input_value() == "targets"
    assert page.locator("#figure-emergence .plot svg").is_visible()


def test_the_index_follows_the_scroll(opened):
    page = opened("good")
    page.locator("#drift").evaluate("s => s.scrollIntoView()")
    until(page, "document.querySelector('nav a[aria-current]')?.textContent === 'Proxy drift'")


def test_words_are_explained_on_hover_and_tap_and_in_the_glossary(opened):
    page = opened("good", unfold=False)
    term = page.locator(".front button.term", has_text="shuffled targets")
    term.click()
    tip = page.locator("#tip")
    assert tip.text_content() == "shuffled targets: A null. It breaks the data's signal: labels are permuted."
    assert term.get_attribute("aria-describedby") == "tip"
    page.keyboard.press("Escape")
    assert tip.evaluate("t => getComputedStyle(t).visibility") == "hidden"
    listed = page.locator(".glossary dt").all_text_contents()
    named = {"random directions haar", "semi-NMF semi_nmf"}  # what options call them stands beside the words
    assert {"proxy", "enrichment", "fold", "late (window)", "anchored", *named} <= set(listed)


IDENTIFIERS = re.compile(r"(?<![\w-])(haar|init|targets-uniform|semi_nmf|pca|svd)(?![\w-])")


def test_no_identifier_is_shown_where_there_is_a_word(opened):
    """Everything a reader sees but the glossary and the settings, with every fold and detail open."""
    page = opened("good")
    text = page.evaluate("""() => {
      for (const d of document.querySelectorAll('details')) d.open = true;
      return [...document.querySelectorAll('header, .front, main > section')].filter(s => !['glossary', 'provenance']
        .includes(s.id)).map(s => s.innerText + [...s.querySelectorAll('svg text')].map(t => t.textContent).join(' ')
        + [...s.querySelectorAll('svg')].map(t => t.getAttribute('aria-label')).join(' ')).join(' ');
    }""")
    assert len(text) > 20_000
    assert sorted(set(IDENTIFIERS.findall(text))) == []


def test_captions_are_short_and_their_details_behind_a_fold(opened):
    page = opened("good")
    shown = page.evaluate(
        "[...document.querySelectorAll('figcaption, .caption')].map(c => [...c.childNodes].filter(n => n.nodeName !== "
        "'DETAILS').map(n => n.textContent).join('').length)"
    )
    assert len(shown) > 15
    assert max(shown) <= 300


def test_choices_at_the_top_rule_the_answer_and_every_figure(opened):
    page = opened("good")
    answer = page.locator(".front .headline")
    before = answer.text_content()
    page.locator("select[data-page=timing]").select_option("anchored")
    says(page, "(fitted on the first 30 % of training)")
    assert "Other choices (anchored)" in page.locator(".front .note").text_content()
    assert page.locator("#figure-emergence select[data-key=timing]").input_value() == "anchored"
    assert page.locator("select[data-page=proxy] option[value=semi_nmf]").is_disabled()  # it is never anchored here
    page.locator("select[data-page=timing]").select_option("rolling")
    until(page, "!document.querySelector('.front .headline').textContent.includes('30 %')")
    assert answer.text_content() == before
    page.locator("select[data-page=view]").select_option("weight")
    says(page, "the weight gradient's energy")
    page.locator("select[data-page=view]").select_option("representation")
    page.locator("select[data-page=model]").select_option("Encoder")
    says(page, "the encoder's 32 main activation directions")
    assert "decoder" not in answer.text_content()
    assert page.locator("#figure-emergence .plot svg .title").all_text_contents() == ["Encoder"]
    assert page.locator("#figure-ladder .plot svg .title").all_text_contents() == [
        f"Encoder, {window}" for window in ("before", "early", "middle", "late")
    ]
    rows = page.locator(".front .marks tbody th[scope=row]")
    assert rows.all_text_contents() == ["Encoder, early", "Encoder, middle", "Encoder, late"]


def says(page, text):
    """Wait until the answer holds a text: words of other choices come a moment later."""
    until(page, f"document.querySelector('.front .headline').textContent.includes({text!r})")


FOLDED = """Object.fromEntries([...document.querySelectorAll('main section')].map(s => [s.id, [
  s.querySelector('.finding').textContent, [...s.querySelectorAll('tbody')].map(t => t.textContent).join('|')]]))"""


def test_lines_of_folds_and_tables_follow_the_choices(opened, planted, tmp_path):
    """Under other choices the page says word for word what a page says that begins with them."""
    page = opened("good")
    before = page.evaluate(FOLDED)
    page.locator("select[data-page=proxy]").select_option("svd")
    page.locator("select[data-page=timing]").select_option("anchored")
    says(page, "about the origin (fitted on the first 30 % of training)")
    chosen = page.evaluate(FOLDED)
    wanted = Choice(proxy="svd", timing="anchored")
    (tmp_path / "svd.html").write_text(make_report([str(planted / "good")], wanted=wanted), encoding="utf-8")
    other = page.context.new_page()
    other.goto((tmp_path / "svd.html").as_uri())
    begins = other.evaluate(FOLDED)
    assert chosen == begins
    changed = {name for name in before if before[name] != chosen[name]}
    assert changed >= {"claims", "verdict", "numbers", "emergence", "views"}
    page.locator("select[data-page=view]").select_option("weight")
    says(page, "the weight gradient's energy")
    weight = page.evaluate(FOLDED)
    assert weight["emergence"] != chosen["emergence"]
    assert weight["claims"] != chosen["claims"]
    page.locator("select[data-page=model]").select_option("Encoder")
    says(page, "the encoder's")
    for name, (line, tables) in page.evaluate(FOLDED).items():
        assert "Decoder" not in line + tables, name


@pytest.mark.slow
def test_of_a_single_seed_lines_and_tables_are_those_of_that_seed(opened):
    page = opened("seeds", unfold=False)
    before = page.evaluate(FOLDED)
    page.locator("select[data-page=seed]").select_option("seed 2")
    until(page, "!document.querySelector('.front .headline').textContent.includes('mean of 3 seeds')")
    after = page.evaluate(FOLDED)
    assert {name for name in before if before[name] != after[name]} >= {"claims", "verdict", "numbers", "profiles"}
    page.locator("select[data-page=seed]").select_option("all seeds")
    until(page, "document.querySelector('.front .headline').textContent.includes('mean of 3 seeds')")
    assert page.evaluate(FOLDED) == before


def test_a_seed_can_be_shown_alone(opened):
    page = opened("seeds", unfold=False)
    assert "mean of 3 seeds" in page.locator(".front .headline").text_content()
    page.locator("select[data-page=seed]").select_option("seed 1")
    until(page, "!document.querySelector('.front .headline').textContent.includes('seeds')")
    assert page.locator("#figure-answer .line").count() == 4
    page.locator("button.unfold").click()
    until(page, ALL_DRAWN)
    assert page.locator("#figure-emergence .seed").count() == 0  # the curve is that of the seed


def test_print_opens_everything(opened):
    page = opened("good", unfold=False)
    page.emulate_media(media="print")
    until(page, "[...document.querySelectorAll('details')].every(d => d.open)")
    until(page, ALL_DRAWN)
