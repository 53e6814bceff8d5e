"""How a job goes: rate and time left from the steps of late, and the same news live or in plain lines."""

import io
from pathlib import Path

import pytest
from rich.console import Console

from anisoscope.evaluate.row_builders import row
from anisoscope.study.pair import training_display as room
from anisoscope.study.pair.pair_settings import PairSettings
from anisoscope.study.pair.trainer_run import TrainingJob
from anisoscope.study.pair.training_display import Board, Lines, sparkline


@pytest.fixture
def clock(monkeypatch):
    now = {"at": 100.0}
    monkeypatch.setattr(room.time, "monotonic", lambda: now["at"])
    return now


def job():
    return TrainingJob(PairSettings(steps=100), "decoder", 0, Path("nowhere"))


def observation(values, **changed):
    common = {"view": "representation", "measure": "enrichment", "null": "haar", "timing": "rolling", "proxy": "pca"}
    common |= {"tensor": "gradients"}
    return [row(**(common | {"step": 7, "rank": 32, "layer": i, "value": v} | changed)) for i, v in enumerate(values)]


def test_time_left_is_at_the_pace_of_late_and_not_known_at_once(clock):
    shown = Lines(Console(file=io.StringIO())).training(job(), 0)
    assert shown.left != shown.left
    for step in range(1, 21):
        clock["at"] += 9.0 if step == 1 else 0.5  # the first one warms up
        shown.stepped(step, 3.0, 1000)
    assert shown.left == pytest.approx(0.5 * 80)
    assert shown.rate == pytest.approx(2000)


def test_plain_lines_come_now_and_then_and_with_every_observation(clock):
    out = io.StringIO()
    shown = Lines(Console(file=out, width=200)).training(job(), 0)
    for step in range(1, 101):
        clock["at"] += 1.0
        shown.stepped(step, 3.0, 1000)
    shown.observed(observation([1.0, 9.5]))
    shown.observed(observation([5.0], measure="energy", null=None))  # no headline in it
    lines = out.getvalue().splitlines()
    assert sum("tokens/s" in line for line in lines) == pytest.approx(11, abs=1)
    assert lines[-1] == "decoder-0: at step 7 enrichment over haar by layer: 1.0 9.5"


def test_a_terminal_shows_one_row_a_training(clock):
    out = io.StringIO()
    console = Console(file=out, width=160, force_terminal=True, color_system=None)
    board = Board(console)
    with board:
        shown = board.training(job(), 40)
        for step in range(41, 61):
            clock["at"] += 0.5
            shown.stepped(step, 2.5, 1000)
        shown.observed(observation([1.0, 4.0]))
        shown.observed(observation([2.0, 8.0]))
        board.said("a word [red]in between")
    text = out.getvalue()
    assert "60/100" in text
    assert "2.0 8.0" in text
    assert "0:20" in text
    assert "▁█" in text
    assert "a word [red]in between" in text


def test_a_sparkline_leaves_out_what_has_no_logarithm():
    assert sparkline([]) == ""
    assert sparkline([0.0, float("nan"), 1.0, 10.0]) == "▁█"


def test_the_line_shows_the_first_proxy_whichever_it_is(clock):
    out = io.StringIO()
    given = PairSettings(steps=100, proxies=("svd", "pca"))
    shown = Lines(Console(file=out, width=200)).training(TrainingJob(given, "decoder", 0, Path("nowhere")), 0)
    shown.observed(observation([3.0, 4.0], proxy="svd") + observation([1.0, 1.0]))
    assert out.getvalue().splitlines()[-1].endswith("enrichment over haar by layer: 3.0 4.0")
