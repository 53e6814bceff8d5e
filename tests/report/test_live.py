"""The page of a run that is still going: there from the first rows on, whole at every reading, and as it was left."""

import re
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request

import numpy as np
import pytest

from anisoscope.cli import main
from anisoscope.cli.page_server import PageServer
from anisoscope.errors import AnisoscopeError
from anisoscope.record.report_page import report_of
from anisoscope.report.headline import headline_lines, sparkline
from anisoscope.report.live import Follower
from anisoscope.report.make import make_report
from anisoscope.report.reading import read
from anisoscope.store.run import create_run, open_run
from report.planted import RANK, STEPS, TOTAL, evidence, plant
from report.test_chromium import browser, steady, sync_api, until

assert browser, sync_api  # a fixture of the other file


def begun(folder):
    run = create_run(folder, config={"rank": RANK}, kind="scope", steps=TOTAL)
    return run, run.sink("w", role="decoder", model="m", seed=0)


def rows_at(step):
    given = evidence("decoder", step, np.random.default_rng(step), True)
    return [row for row in given if row["view"] == "representation" and row["proxy"] == "pca"]


def whole(page):
    return page.startswith("<!doctype html>") and page.rstrip().endswith("</html>") and "Which nulls are passed" in page


@pytest.fixture
def switched_on(monkeypatch):
    monkeypatch.setenv("ANISOSCOPE_LIVE_PAGE", "1")


def test_a_run_of_twelve_observations_never_shows_a_broken_page(tmp_path, switched_on):
    run, sink = begun(tmp_path / "run")
    run.keep_page()
    page, seen, polls = tmp_path / "run" / "report.html", set(), 0
    sink.write(rows_at(STEPS[0]))
    sink.write(rows_at(STEPS[1]))
    end = time.monotonic() + 60
    while not page.exists():  # the process has to begin
        assert time.monotonic() < end, "no page came"
        time.sleep(0.05)
    for k in range(200):
        if k % 20 == 0:
            sink.write(rows_at(STEPS[2 + k // 20]))
        text = page.read_text(encoding="utf-8")
        assert whole(text), f"poll {k}"
        assert "data-live" in text
        seen.add(re.search(r"(\d+) observations;", text).group(1))
        polls += 1
        time.sleep(0.02)
    process = run._page._process
    run.close("finished")
    assert polls == 200
    assert process.poll() is not None
    text = page.read_text(encoding="utf-8")
    assert whole(text)
    assert "12 observations; finished." in text
    assert "data-live" not in text
    assert not list((tmp_path / "run").glob(".tmp*"))


def test_it_ends_with_the_process_that_began_it(tmp_path, switched_on):
    code = (
        "import sys, time; sys.path[:0] = ['tests', '.']; from report.test_live import begun, rows_at; "
        f"run, sink = begun({str(tmp_path / 'run')!r}); run.keep_page(); sink.write(rows_at(0)); "
        "print(run._page._process.pid, flush=True); time.sleep(100)"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as parent:
        child = int(parent.stdout.readline())
        parent.kill()
    end = time.monotonic() + 30
    while _lives(child):
        assert time.monotonic() < end
        time.sleep(0.05)


def _lives(pid):
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_no_file_of_the_working_directory_is_run_in_place_of_a_module(tmp_path, monkeypatch, switched_on):
    for name in ("random", "json", "numpy", "anisoscope"):
        (tmp_path / f"{name}.py").write_text(f"open({str(tmp_path / 'planted')!r}, 'a').write({name!r})\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", [path for path in sys.path if path not in ("", str(tmp_path))])
    run, sink = begun(tmp_path / "run")
    run.keep_page()
    sink.write(rows_at(0))
    run.close("finished")
    page = tmp_path / "run" / "report.html"
    assert page.read_text().startswith("<!doctype html>")
    page.unlink()
    assert report_of(run.path) == page  # as a scope with report=True makes it
    assert page.read_text().startswith("<!doctype html>")
    assert not (tmp_path / "planted").exists()


def test_it_can_be_switched_off_and_needs_no_interpreter(tmp_path, monkeypatch, switched_on):
    monkeypatch.setattr(sys, "executable", "/no/such/python")
    run, sink = begun(tmp_path / "run")
    run.keep_page()
    sink.write(rows_at(0))
    run.close("finished")
    assert open_run(tmp_path / "run").table().num_rows > 0
    monkeypatch.setenv("ANISOSCOPE_LIVE_PAGE", "0")
    run, sink = begun(tmp_path / "other")
    run.keep_page()
    sink.write(rows_at(0))
    assert run._page._process is None
    run.close("finished")


def test_a_page_is_made_again_only_if_the_run_has_changed(tmp_path):
    run, sink = begun(tmp_path / "run")
    sink.write(rows_at(0))
    follower = Follower(str(tmp_path / "run"))
    assert follower.refresh()
    assert not follower.refresh()
    sink.write(rows_at(5))
    assert follower.refresh()
    run.close("finished")
    assert follower.refresh()
    assert "data-live" not in follower.page
    assert not Follower(str(tmp_path / "nothing")).refresh()


def test_it_reads_itself_anew_and_comes_back_as_it_was_left(tmp_path, browser):
    run, sink = begun(tmp_path / "run")
    for step in STEPS[:6]:
        sink.write(rows_at(step))
    path = tmp_path / "page.html"
    path.write_text(make_report([str(tmp_path / "run")], live=True), encoding="utf-8")
    context = browser.new_context(viewport={"width": 1400, "height": 900}, color_scheme="light")
    page, troubles = context.new_page(), []
    page.on("console", lambda m: troubles.append(m.text))
    page.on("pageerror", lambda e: troubles.append(str(e)))
    page.goto(path.as_uri())
    page.locator("button.theme").click()
    page.locator("#drift details.fold > summary").click()
    page.locator("#emergence details.fold > summary").click()
    page.locator("#figure-emergence select[data-key=null]").select_option("targets")
    page.locator("#figure-emergence button[data-key=layer]").nth(1).click()
    page.locator("#figure-emergence button[data-scale=y]").click()
    page.evaluate("scrollTo({top: 700, behavior: 'instant'})")
    assert "6 observations" in page.locator(".subtitle").text_content()
    sink.write(rows_at(STEPS[6]))
    path.write_text(make_report([str(tmp_path / "run")], live=True), encoding="utf-8")
    until(page, "document.querySelector('.subtitle')?.textContent.includes('7 observations') ?? false", patience=40)

    def is_as_it_was_left():
        assert page.evaluate("document.documentElement.dataset.theme") == "dark"
        assert page.locator("#drift details.fold").evaluate("d => d.open")
        assert page.locator("#emergence details.fold").evaluate("d => d.open")
        assert not page.locator("#numbers details.fold").evaluate("d => d.open")
        assert page.locator("#figure-emergence select[data-key=null]").input_value() == "targets"
        chips = page.locator("#figure-emergence button[data-key=layer]")
        assert [chips.nth(i).get_attribute("aria-pressed") for i in (0, 1)] == ["true", "false"]
        assert page.locator("#figure-emergence button[data-scale=y]").get_attribute("aria-pressed") == "false"
        assert abs(page.evaluate("scrollY") - 700) < 60

    steady(is_as_it_was_left)
    run.close("finished")
    context.close()
    assert troubles == []


def fetch(url, **headers):
    with urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=10) as answer:
        return answer.status, dict(answer.headers), answer.read().decode()


def refused(url, method="GET", **headers):
    with pytest.raises(urllib.error.HTTPError) as error:
        urllib.request.urlopen(urllib.request.Request(url, headers=headers, method=method), timeout=10)
    error.value.close()
    return error.value.code


def test_the_server_gives_the_page_and_nothing_else(tmp_path):
    made = make_report([str(plant(tmp_path / "run", until=20))])
    with PageServer(lambda: made) as server:
        status, headers, body = fetch(server.url)
        assert (status, body) == (200, made)
        assert server.url.startswith("http://127.0.0.1:")
        assert len(server.token) >= 30
        assert headers["Content-Security-Policy"].startswith("default-src 'none'; script-src 'sha256-")
        assert "frame-ancestors 'none'" in headers["Content-Security-Policy"]
        assert headers["Cache-Control"] == "no-store"
        root = server.url.removesuffix(f"{server.token}/")
        for path in ("", "manifest.json", f"{server.token}", f"{server.token}/manifest.json", f"{server.token}/../"):
            assert refused(root + path) == 404, path
        assert refused(server.url, Host="evil.example") == 404  # another page that was pointed at this address
        assert fetch(server.url, Host="localhost:8000")[0] == 200  # a tunnel
        for method in ("POST", "PUT", "DELETE"):
            assert refused(server.url, method) == 501
    with PageServer(lambda: None) as server:
        assert refused(server.url) == 503
    with PageServer(lambda: None) as one, PageServer(lambda: None) as other:
        assert one.url.split("/")[3] != other.url.split("/")[3]


def test_a_port_that_is_taken_is_named():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(AnisoscopeError, match=r"cannot listen on 127\.0\.0\.1:\d+: .*choose another --port"):
            PageServer(lambda: None, port=taken.getsockname()[1])


def test_the_terminal_shows_the_same_headline(planted, capsys):
    main(["watch", str(planted / "good"), "--once"])
    said = " ".join(capsys.readouterr().out.split())
    assert "Supported in part. Late in training, the decoder's 32 main activation directions hold" in said
    lines = headline_lines(read([str(planted / "good")]))
    assert len(lines) == 10
    first = lines[0]
    assert (first.model, first.over, first.outcome) == ("Decoder", "random directions", "✓ above")
    assert len(first.course) == len(STEPS)
    assert first.course[0] == "▁"  # it begins at its lowest
    assert lines[3].outcome == "✗ below"


@pytest.mark.parametrize("form", ["--once", "--no-serve"])
def test_a_part_that_cannot_be_read_is_told_beside_the_headline(planted, tmp_path, capsys, form):
    run = shutil.copytree(planted / "good", tmp_path / "run")
    part = sorted(run.glob("rows-*.parquet"))[0]
    part.write_bytes(part.read_bytes()[:100])
    main(["watch", str(run), form])
    out, err = capsys.readouterr()
    said = err if form == "--once" else out
    assert f"1 part(s) that are damaged or cannot be read left out: {part.name}" in " ".join(said.split())


def test_many_observations_are_thinned_to_a_sparkline_that_keeps_its_ends():
    drawn = sparkline(range(1000))
    assert len(drawn) == 24
    assert (drawn[0], drawn[-1]) == ("▁", "█")
    assert sparkline([float("nan"), 1.0]) == "▄"


def test_watching_nothing_is_told_in_one_line(capsys, tmp_path):
    with pytest.raises(SystemExit) as ended:
        main(["watch", str(tmp_path / "nothing")])
    assert ended.value.code == 1
    assert "is no run" in capsys.readouterr().err


def test_a_watch_without_a_server_ends_with_the_run(planted, capsys):
    main(["watch", str(planted / "bad"), "--no-serve"])
    assert "Not supported." in capsys.readouterr().out
