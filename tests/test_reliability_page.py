"""docs/reliability.md is what the parts of `make faults` came to, and none of them failed."""

from faults.conftest import LEFT, PAGE, kept, page


def test_the_page_is_what_was_kept_and_holds_no_failure():
    parts = kept()
    assert parts
    assert [name for name, part in parts.items() if part["outcome"] not in ("passed", "left")] == []
    assert PAGE.read_text(encoding="utf-8") == page(parts)


def test_a_part_that_failed_is_on_the_page():
    common = {"source": "a", "seconds": 60.0, "measured": {}}
    good = common | {"outcome": "passed", "cases": {"a promise": 3}, "measured": {"speed": "9"}}
    made = page({"x": good, "y": common | {"outcome": "failed", "cases": {"a promise": 2}}})
    assert "| a promise | 5 | 1 |" in made
    assert "- failed: `y`" in made
    assert "| speed | 9 |" in made
    assert "2 of 2 parts (2 of the source a), 2 minutes in all" in made


def test_a_part_that_is_left_is_on_the_page():
    made = page({"tests/faults/x.py::y": LEFT})
    assert "0 of 1 parts (), 0 minutes in all; **1 are left and were not tried** (1 of x)" in made
