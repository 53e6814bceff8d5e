"""What is said of the premise comes from the verdict, whether or not there is a quotient."""

import math

from anisoscope.report.local import local_section
from anisoscope.report.reading import read
from anisoscope.report.tree import Text
from anisoscope.store.run import create_run

AT = {"model": "m", "role": "decoder", "seed": 0, "subset": "all", "view": "weight", "tensor": "gradients"}
AT |= {"measure": "non_cancellation", "variant": "tangent over normal"}


def test_a_verdict_without_a_quotient_is_said_at_the_last_step(tmp_path):
    told = {"value": 1.3, "low": 1.1, "high": 1.6, "note": "holds"}
    refused = {"value": math.nan, "note": "fails: no quotient, the tangent parts may cancel completely"}
    too_few = {"value": math.nan, "note": "cannot tell: 5.1 effective units, fewer than 8"}
    run = create_run(tmp_path / "run", kind="scope", steps=12)
    run.write("scope", [AT | told | {"step": 0, "layer": layer} for layer in (0, 1, 2)])
    run.write("scope", [AT | row | {"step": 10, "layer": k} for k, row in enumerate((refused, told, too_few))])
    run.close("finished")
    section = local_section(read([run.path]))
    assert section is not None
    said = " ".join(block.text for block in section.blocks if isinstance(block, Text))
    assert "holds at layer 1; fails at layer 0; cannot be told at layer 2." in said
