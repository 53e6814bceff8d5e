"""The calibration page is made of what sections gave, and no cell is above a bar without a word about it."""

import json
import re

import pytest
from bench.calibration import page as pages
from bench.calibration.cells import ABOVE, MISS_BAR, rate
from bench.calibration.planted import Planted, tally
from bench.calibration.section import Limit, Section

import anisoscope
from anisoscope import testing
from anisoscope.evaluate.small_scale_rows import CONTROLS
from anisoscope.geometry.tangency import DRAWS


def test_the_page_is_made_of_what_is_kept():
    records = pages.kept()
    assert list(records) == list(pages.SECTIONS)
    assert pages.PAGE.read_text(encoding="utf-8") == pages.page(records), "run `python -m bench.calibration --only`"


def test_no_cell_is_above_a_bar_unless_it_is_a_known_limit():
    assert pages.unlisted(pages.kept()) == []


def test_rates_are_marked_only_where_their_whole_interval_is_above():
    assert ABOVE in rate(300, 2000, MISS_BAR)
    assert ABOVE not in rate(230, 2000, MISS_BAR)
    assert ABOVE not in rate(300, 2000, None)
    assert rate(0, 0, MISS_BAR) == "–"


def test_a_limit_speaks_for_its_own_rows_alone():
    rows = [["16 to 24", "32", f"0.4 {ABOVE}"], ["8 to 64", "32", f"0.4 {ABOVE}"], ["8 to 64", "64", "0.05"]]
    section = Section("s", "S", "", ["a", "b", "c"], lambda n: iter(rows), limits=(Limit("known", "16 to 24"),))
    assert section.unlisted(rows) == [rows[1]]


@pytest.mark.parametrize("name", pages.SECTIONS)
def test_every_section_can_be_run_alone(name):
    section = pages.SECTIONS[name]
    first = next(section.make(2))
    assert len(first) == len(section.heads)
    assert "{" not in section.about.format(repetitions=2)


def test_commits_are_named_by_section_only_where_they_differ():
    records = {name: json.loads(json.dumps(record)) for name, record in pages.kept().items()}
    for record in records.values():
        record["commit"] = "abc"
    assert " ".join(pages.page(records).split()).count("commit abc") == 1
    records["shapes"]["commit"] = "def"
    assert " ".join(pages.page(records).split()).count("Made at commit") == len(records)


def test_every_construction_that_the_page_names_is_public():
    named = {word for section in pages.SECTIONS.values() for word in re.findall(r"`(\w+_\w+)`", section.about)}
    made = {word for word in named if not hasattr(anisoscope, word)}
    assert {"coupled_on_one_side", "planted_effect", "leaning_by_length", "embedding_batch"} <= made
    assert made <= set(testing.__all__)


def test_tangency_is_tried_with_as_many_controls_as_a_run_has():
    assert {row[2] for row in pages.kept()["tangency"]["rows"]} == {str(CONTROLS), str(DRAWS)}


@pytest.mark.parametrize(
    ("planted", "word", "mixed"),
    [
        (Planted(0.5), "Supported", 0),
        (Planted(0.5, first=3), "Supported in part", 0),
        (Planted(0.0, error=0.04), "Not supported", 0),
        (Planted(0.0, error=0.3), "Undecided", 0),
        (Planted(-0.5), "Not supported", 0),
        (Planted(0.5, below=0.5), "Undecided", 4),
    ],
)
def test_planted_models_get_the_words_that_are_true_of_them(planted, word, mixed):
    found = tally(planted, 12, 0.5, 4)
    assert found.words == {word: 4}
    assert found.mixed == mixed
