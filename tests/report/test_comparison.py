"""Several runs in one page: settings that differ, and headlines apart, with an interval that holds what it should."""

import math

import numpy as np
import pytest

from anisoscope.report.reading import read
from anisoscope.report.sections.run_comparison import comparison_section, ratio
from anisoscope.report.tree import Table, Text
from anisoscope.report.window_effects import Effect
from report.blocks import the
from report.test_claims import passing, plant_run


def tables(*folders):
    section = comparison_section(read([str(folder) for folder in folders]))
    return {block.id: block for block in section.blocks if isinstance(block, Table)}, section


def test_settings_and_headlines_that_differ_are_told(tmp_path):
    plant_run(tmp_path / "a", passing(), config={"steps": 400, "lr": 0.1, "nested": {"x": 1, "y": 2}})
    plant_run(tmp_path / "b", passing(), config={"steps": 400, "lr": 0.2, "nested": {"x": 1, "y": 3}}, factors={0: 0.5})
    found, section = tables(tmp_path / "a", tmp_path / "b")
    rows = [[cell.text for cell in row] for row in found["settings"].rows]
    assert rows == [["lr", "0.1", "0.2"], ["nested.y", "2", "3"]]
    first = found["differences"].rows[0]
    half = math.hypot(1.959964 * 0.1, 1.959964 * 0.1)
    low, high = 0.5 * math.exp(-half), 0.5 * math.exp(half)
    assert first[2].text == f"0.5 [{low:.3g}, {high:.3g}]"
    assert first[2].tone == "part"
    assert section.finding == "2 settings differ; 5 differences of the headline have an interval that excludes 1."


def test_runs_that_are_alike_are_said_to_be(tmp_path):
    plant_run(tmp_path / "a", passing())
    plant_run(tmp_path / "b", passing())
    found, section = tables(tmp_path / "a", tmp_path / "b")
    assert set(found) == {"differences"}
    assert found["differences"].rows[0][2].tone is None
    assert the(Text, section.blocks[0]).text == "The runs have the same settings."


def test_a_single_run_has_no_such_section(tmp_path):
    assert comparison_section(plant_run(tmp_path / "a", passing())) is None


def test_the_interval_of_a_ratio_covers_it():
    """Two independent estimates with errors of their own, 2 000 times: 95 % hold the true ratio."""
    rng = np.random.default_rng(0)
    held = 0
    for a, b in rng.normal([1.0, 0.3], [0.2, 0.05], size=(2000, 2)):
        ends = [Effect(math.exp(x), math.exp(x - 1.96 * s), math.exp(x + 1.96 * s)) for x, s in ((a, 0.2), (b, 0.05))]
        _, low, high = ratio(*ends)
        held += low <= math.exp(0.7) <= high
    assert held / 2000 == pytest.approx(0.95, abs=0.015)


def test_without_an_interval_there_is_none():
    assert ratio(Effect(4.0), Effect(2.0, 1.0, 3.0)) == (2.0, None, None)


def test_every_figure_of_several_runs_has_panels_by_run(tmp_path):
    from anisoscope.report.tree import Figure
    from anisoscope.report.view import view
    from report.planted import plant

    plant(tmp_path / "a", until=40)
    plant(tmp_path / "b", until=80, supported=False)
    figures = [f for f in view(read([str(tmp_path / "a"), str(tmp_path / "b")])).figures() if isinstance(f, Figure)]
    assert len(figures) > 8
    for figure in figures:
        assert figure.panel is not None, figure.id
        runs_in = {}
        for s in figure.series:
            runs_in.setdefault(s.tags[figure.panel], set()).add(s.tags["model"].split(" · ")[0])
        assert all(len(runs) == 1 for runs in runs_in.values()), figure.id
        assert set().union(*runs_in.values()) == {"a", "b"}, figure.id
