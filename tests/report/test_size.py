"""How large a page is and what making it costs: a default run, and one of ten seeds and 200 000 rows."""

import re
import time

import pytest

from anisoscope.report.make import make_report
from report.planted import plant

SLACK = 3.0
"""CPU seconds of a machine that does other work too; the times themselves are told by ``-s`` and in docs/report.md."""


def made(path):
    began = time.process_time()
    page = make_report([str(path)])
    return page, time.process_time() - began


def shown_rows(page):
    return int(re.findall(r"([\d,]+) rows,", page)[0].replace(",", ""))


@pytest.mark.slow
def test_the_page_of_a_default_run_is_small_and_soon_made(planted):
    page, seconds = made(planted / "good")
    print(f"{shown_rows(page):,} rows: {len(page.encode()) / 1e6:.2f} MB in {seconds:.1f} CPU s")
    assert len(page.encode()) <= 1_500_000
    assert seconds <= 3 * SLACK


@pytest.mark.slow
def test_the_page_of_ten_seeds_is_bounded_too(tmp_path):
    page, seconds = made(plant(tmp_path / "run", seeds=tuple(range(10))))
    print(f"{shown_rows(page):,} rows: {len(page.encode()) / 1e6:.2f} MB in {seconds:.1f} CPU s")
    assert shown_rows(page) > 200_000
    assert len(page.encode()) <= 5_000_000
    assert seconds <= 20 * SLACK
    assert "seed 9" in page  # a choice at the top
