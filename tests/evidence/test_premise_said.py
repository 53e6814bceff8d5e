"""What is said of the premise comes from its outcome, whether or not there is a quotient."""

import math

import pytest

from anisoscope.report.reading import read
from anisoscope.report.sections.small_scale import local_section
from anisoscope.report.tree import Text
from anisoscope.store.run import create_run

AT = {"model": "m", "role": "decoder", "seed": 0, "subset": "all", "view": "weight", "tensor": "gradients"}
AT |= {"measure": "non_cancellation", "variant": "tangent over normal"}


REFUSED, FEW = "no quotient, the tangent parts may cancel completely", "5.1 effective units, fewer than 8"
TODAY = (
    {"value": math.nan, "outcome": "below", "note": REFUSED},
    {"value": 1.3, "low": 1.1, "high": 1.6, "outcome": "above"},
    {"value": math.nan, "outcome": "cannot tell", "note": FEW},
)
OF_OLD = (
    {"value": math.nan, "note": f"fails: {REFUSED}"},
    {"value": 1.3, "low": 1.1, "high": 1.6, "note": "holds"},
    {"value": math.nan, "note": f"cannot tell: {FEW}"},
)


def said_of(folder, *rows):
    run = create_run(folder / "run", kind="scope", steps=12)
    run.write("scope", [AT | TODAY[1] | {"step": 0, "layer": layer} for layer in (0, 1, 2)])
    run.write("scope", [AT | row | {"step": 10, "layer": k} for k, row in enumerate(rows)])
    run.close("finished")
    section = local_section(read([run.path]))
    assert section is not None
    return " ".join(block.text for block in section.blocks if isinstance(block, Text))


@pytest.mark.parametrize("rows", [TODAY, OF_OLD])
def test_an_outcome_without_a_quotient_is_said_at_the_last_step(rows, tmp_path):
    """Rows of old hold it in their note, before a colon."""
    said = said_of(tmp_path, *rows)
    assert f"holds at layer 1; fails at layer 0; is undecided ({FEW}) at layer 2." in said


def test_what_cannot_be_told_comes_with_what_would_have_been_seen(tmp_path):
    open_ = {"value": 1.1, "low": 0.8, "high": 1.5, "outcome": "cannot tell", "detectable": 1.7}
    equal = {"value": 1.02, "low": 0.9, "high": 1.1, "outcome": "equal"}
    said = said_of(tmp_path, open_, equal, {"value": 0.9, "low": 0.85, "high": 0.97, "outcome": "equal, below 1"})
    assert "holds up to the margin (the two are equal within it) at layer 1; fails by less than the margin" in said
    assert "is undecided at layer 0. A quotient γᵀ/γᴺ of about 1.7, or its inverse, would have been found" in said
