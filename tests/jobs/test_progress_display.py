"""How jobs go: counted in plain lines, or as rows under a bar for all of them."""

import io
import time

import pytest
from rich.console import Console

from anisoscope.jobs.job_pool import JobListener, Outcome, Task
from anisoscope.jobs.progress_display import JobBoard, JobLines


def outcomes_for(listener):
    good, bad = Task("step[red]512", len), Task("bad", len)
    listener.begun([good.name, bad.name, "third"])
    listener.started(good.name)
    listener.progressed(good.name, 0.5, "layer [b]3")
    yield
    listener.ended(Outcome(good, value=1, seconds=8.12))
    listener.started(bad.name)
    listener.failed_once(bad.name, "OSError: [Errno 5]")
    listener.started(bad.name)
    listener.ended(Outcome(bad, error="OSError: [Errno 5]", tries=2))
    yield


def test_plain_lines_count_and_say_failures_at_once(monkeypatch):
    now = {"at": 100.0}
    monkeypatch.setattr(time, "monotonic", lambda: now["at"])
    out = io.StringIO()
    lines = JobLines(Console(file=out, width=60))
    assert isinstance(lines, JobListener)
    for _ in outcomes_for(lines):
        pass
    lines.started("third")
    for _ in range(25):
        now["at"] += 1.0
        lines.progressed("third", 0.25, "")
    assert out.getvalue().splitlines() == [
        "3 jobs",
        "1 of 3 done: step[red]512 (8.1 s)",
        "bad failed and is tried again: OSError: [Errno 5]",
        "bad failed for good after 2 tries: OSError: [Errno 5]",
        "third: 25%, about 0:03 left",  # two and a quarter of three jobs took ten seconds
        "third: 25%, about 0:07 left",
    ]


def test_a_terminal_shows_what_runs_and_how_much_is_left(monkeypatch):
    now = {"at": 100.0}
    monkeypatch.setattr(time, "monotonic", lambda: now["at"])
    out = io.StringIO()
    console = Console(file=out, width=120, force_terminal=True, color_system=None)
    board = JobBoard(console)
    assert isinstance(board, JobListener)
    assert board.left is None
    with board:
        steps = outcomes_for(board)
        next(steps)
        now["at"] += 60.0
        assert board.left == pytest.approx(60.0 / 0.5 * 2.5)
        board.refresh()
        next(steps)
        board.refresh()
    text = out.getvalue()
    for part in ("step[red]512", "layer [b]3", "50%", "5:00 left", "0 of 3 done", "1 of 3 done", "1 failed"):
        assert part in text
    assert "bad failed for good after 2 tries: OSError: [Errno 5]" in text


def test_of_many_that_run_twenty_are_shown_and_the_rest_counted():
    out = io.StringIO()
    console = Console(file=out, width=80)
    board = JobBoard(console)
    board.begun([f"job{i}" for i in range(30)])
    for i in range(23):
        board.started(f"job{i}")
    console.print(board)
    lines = [line.rstrip() for line in out.getvalue().splitlines()]
    assert lines[0].split() == ["0", "of", "30", "done", "?", "left"]
    assert [line.split()[0] for line in lines[1:-1]] == [f"job{i}" for i in range(20)]
    assert lines[-1] == "and 3 more"


def test_a_try_that_failed_is_no_part_of_the_time_left(monkeypatch):
    now = {"at": 0.0}
    monkeypatch.setattr(time, "monotonic", lambda: now["at"])
    board = JobBoard(Console(file=io.StringIO()))
    board.begun(["a", "b"])
    board.started("a")
    board.progressed("a", 0.9, "nearly")
    now["at"] = 9.0
    assert board.left == pytest.approx(11.0)  # 0.9 of a job in 9 s, 1.1 to go
    board.failed_once("a", "lost")
    assert board.left is None


def test_another_round_of_jobs_begins_anew():
    out = io.StringIO()
    console = Console(file=out, width=80)
    board = JobBoard(console)
    board.begun(["a", "b"])
    board.started("a")
    board.ended(Outcome(Task("a", len)))
    board.started("b")
    board.begun(["c"])
    console.print(board)
    assert out.getvalue().split() == ["0", "of", "1", "done", "?", "left"]


def test_before_there_is_a_job_nothing_is_drawn():
    out = io.StringIO()
    console = Console(file=out, width=80)
    board = JobBoard(console)
    board.begun([])
    console.print(board)
    assert out.getvalue().strip() == ""
