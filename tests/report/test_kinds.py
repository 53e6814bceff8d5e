"""Every kind of run has a page while it is made, figures for papers, and a page that a browser shows without fault."""

import re
import threading
import time

import pytest

from anisoscope.errors import AnisoscopeError
from anisoscope.report.make import make_report
from anisoscope.report.paper_figures import draw_figures
from anisoscope.report.reading import read
from anisoscope.report.view import view
from report.kinds import KINDS, STUDIES, grown, made
from report.test_chromium import ALL_DRAWN, browser, opened, pages, sync_api, until

assert browser, (opened, pages, sync_api)  # fixtures of the other file
WITHOUT_FIGURES = {"verify"}  # its findings are tables


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Runs by kind, each made once."""
    found = {}

    def run(kind):
        if kind not in found:
            found[kind] = made(kind, tmp_path_factory.mktemp(kind))
        return found[kind]

    return run


def heavy(*kinds):
    """Kinds as parameters, all but the lightest among the slow tests."""
    return [pytest.param(kind, marks=[] if kind == "theory" else pytest.mark.slow) for kind in kinds]


def whole(page):
    return page.startswith("<!doctype html>") and page.rstrip().endswith("</html>") and 'id="words">' in page


@pytest.mark.parametrize("kind", heavy("scope", *STUDIES))
def test_there_is_a_page_from_the_first_rows_on(runs, tmp_path, kind):
    path, seen = runs(kind), 0
    for unfinished in grown(path, tmp_path / "run"):
        page = make_report([str(unfinished)], live=True)
        assert whole(page)
        assert "data-live" in page
        seen += 1
    assert seen >= 2
    assert "data-live" not in make_report([str(path)], live=True)


@pytest.mark.slow
@pytest.mark.parametrize("kind", STUDIES)
def test_the_command_keeps_the_page_while_it_works(tmp_path, kind, monkeypatch):
    """Polled all the while: once there, it is whole and live until the run has ended, and then it is no longer live."""
    monkeypatch.setenv("ANISOSCOPE_LIVE_PAGE", "1")
    page, ended, states = tmp_path / "run" / "report.html", threading.Event(), []

    def poll():
        while not ended.is_set():
            if page.exists():
                text = page.read_text(encoding="utf-8")
                states.append((whole(text), "data-live" in text))
            time.sleep(0.02)

    poller = threading.Thread(target=poll)
    poller.start()
    try:
        made(kind, tmp_path)
    finally:
        ended.set()
        poller.join()
    assert all(is_whole for is_whole, _ in states)
    if kind in ("checkpoints", "intervene"):  # the others are done before a page can be made
        assert any(is_live for _, is_live in states)
    text = page.read_text(encoding="utf-8")
    assert whole(text)
    assert "data-live" not in text


@pytest.mark.parametrize("kind", heavy(*KINDS))
def test_every_figure_of_its_page_is_drawn_for_papers(runs, kind):
    report = view(read([str(runs(kind))]))
    if kind in WITHOUT_FIGURES:
        assert report.figures() == []
        return
    files = dict(draw_figures(report, forms=("pdf",)))
    assert report.figures()
    for figure in report.figures():
        own = [name for name in files if re.fullmatch(rf"{figure.id}(-[a-z0-9-]+)?\.pdf", name)]
        assert own, figure.id
        for name in own:
            assert b"/FontFile2" in files[name], name
            assert rb"\caption{" in files[name.replace(".pdf", ".tex")]


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("width", "tallest"), [(1400, 6000), (390, 12_000)])
def test_a_browser_shows_it_whole_and_short(runs, opened, pages, kind, width, tallest):
    (pages / f"kind-{kind}.html").write_text(make_report([str(runs(kind))]), encoding="utf-8")
    page = opened(f"kind-{kind}", width, unfold=False)
    assert page.evaluate("document.documentElement.scrollHeight") <= tallest
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    page.locator("button.unfold").click()
    until(page, ALL_DRAWN)
    assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_without_figures_the_command_says_so(tmp_path):
    from anisoscope import cli
    from anisoscope.store.run import create_run

    create_run(tmp_path / "run", kind="intervene").close("finished")
    with pytest.raises((SystemExit, AnisoscopeError)):
        cli.main(["figures", str(tmp_path / "run")])
