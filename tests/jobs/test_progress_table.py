"""The display of every command: what rows show, when a plain line is due, and which of the two a console gets."""

import io
import subprocess
import sys
import time

import pytest
from rich.console import Console
from rich.progress import BarColumn, TaskProgressColumn

from anisoscope.jobs.progress_table import PlainLines, ProgressTable, TimeLeft, TimeTaken, Words, open_display


@pytest.fixture
def clock(monkeypatch):
    now = {"at": 100.0}
    monkeypatch.setattr(time, "monotonic", lambda: now["at"])
    return now


def drawn(table, width=80):
    """What a table shows, a line each."""
    out = io.StringIO()
    console = Console(file=out, width=width)
    console.print(table)
    return [line.rstrip() for line in out.getvalue().splitlines()]


def test_texts_from_outside_are_shown_as_they_stand():
    table = ProgressTable(Console(file=io.StringIO()), Words("{task.description}"), Words("{task.fields[text]}"))
    table.add_task("step[red]512 :smile:", text="a\x1b[31m\nb {task}")
    assert drawn(table) == ["step[red]512 :smile:  a\\x1b[31m\\nb {task}"]


def test_headings_stand_only_over_columns_that_have_them():
    plain = ProgressTable(Console(), Words("{task.description}"))
    headed = ProgressTable(Console(), Words("{task.description}", "model"), TimeLeft("{}", "left"), note="a note")
    for table in (plain, headed):
        assert drawn(table) == []
        table.add_task("decoder", total=2)
    assert drawn(plain) == ["decoder"]
    assert drawn(headed) == ["model    left", "decoder  ?", "a note"]


def test_more_rows_than_are_shown_are_counted():
    table = ProgressTable(Console(), Words("{task.description}"), most=2)
    for name in "ab":
        table.add_task(name)
    assert drawn(table) == ["a", "b"]
    table.add_task("c")
    table.add_task("d")
    assert drawn(table) == ["a", "b", "and 2 more"]


def test_the_time_left_is_the_rows_own_or_the_mean_pace_of_late(clock):
    table = ProgressTable(Console(), Words("{task.description}"), TimeTaken(), TimeLeft())
    steady = table.add_task("steady", total=100)
    table.add_task("own", total=100, left=lambda: 3723.0)
    table.add_task("endless", total=None)
    over = table.add_task("over", total=1, left=lambda: 9.0)
    for done in range(0, 21, 2):  # two a second
        table.update(steady, completed=done)
        clock["at"] += 1.0
    table.update(over, completed=1)
    assert [line.split() for line in drawn(table)] == [
        ["steady", "0:11", "0:40", "left"],
        ["own", "0:11", "1:02:03", "left"],
        ["endless", "0:11"],
        ["over", "0:11"],
    ]


def test_where_there_is_little_room_bars_and_long_texts_are_cut_and_numbers_stay_whole():
    text = Words("{task.fields[text]}", long=True)
    table = ProgressTable(
        Console(), Words("{task.description}"), BarColumn(20), TaskProgressColumn(), TimeTaken(), text
    )
    table.add_task("checkpoint-512-0", total=2, completed=1, text="forward and backward of many batches")
    (line,) = drawn(table, width=50)
    bar = line.split()[1]
    assert line.split()[0] == "checkpoint-512-0"
    assert set(bar) <= set("━╸")
    assert len(bar) < 10
    assert line.split()[2:4] == ["50%", "0:00"]
    assert line.endswith("…")


def test_a_plain_line_is_due_every_ten_seconds_for_each_name(clock):
    lines = PlainLines(Console(file=io.StringIO()))
    assert lines.is_due("a")
    assert not lines.is_due("a")
    assert lines.is_due("b")
    clock["at"] += 9.9
    assert not lines.is_due("a")
    assert lines.is_due("a", always=True)
    clock["at"] += 9.9
    assert not lines.is_due("a")
    clock["at"] += 0.2
    assert lines.is_due("a")


@pytest.mark.parametrize(
    ("terminal", "term", "expected"),
    [(True, "xterm-256color", ProgressTable), (True, "dumb", PlainLines), (False, "xterm-256color", PlainLines)],
)
def test_a_display_changes_only_where_the_cursor_can_be_moved(terminal, term, expected, monkeypatch):
    monkeypatch.setenv("TERM", term)
    out = io.StringIO()
    console = Console(file=out, force_terminal=terminal)
    with open_display(console, lambda found: ProgressTable(found, Words("{task.description}")), PlainLines) as shown:
        assert type(shown) is expected
        shown.said("a word [red]as it stands")
    assert "a word [red]as it stands" in out.getvalue()


def test_help_imports_no_display():
    code = "import sys; from anisoscope import cli\ntry: cli.main(['measure', '--help'])\nexcept SystemExit: pass\n"
    code += "sys.exit(any(name in sys.modules for name in ('rich.progress', 'anisoscope.jobs.progress_table')))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True).returncode == 0
