"""Enrichment of the embedding's updates in the report: a figure, a table, and nothing where none was judged."""

import pytest

from anisoscope.evaluate.row_builders import row
from anisoscope.report.make import make_report
from anisoscope.report.reading import read
from anisoscope.report.sections.update_enrichment import updates_section
from anisoscope.report.tree import Figure, Table, Text
from anisoscope.store.run import create_run


def rows_of(tensor, step, shift, seed=0):
    common = {"view": "embedding", "tensor": tensor, "subset": "all", "proxy": "pca", "rank": 8, "timing": "rolling"}
    common |= {"step": step, "layer": 0, "site": "table", "width": 64, "n": 40}
    made = [row(**common, measure="energy", value=0.2 + shift, floor=0.125)]
    made.append(row(**common, measure="enrichment", null="haar", value=2.0 + shift, floor=1.0, p=0.01, q=0.01))
    if tensor == "gradients":
        made.append(row(**common, measure="enrichment", null="targets", value=1.1, floor=1.0, low=0.9, high=1.4))
    else:
        made.append(row(**common, measure="enrichment", null="init", value=1.5 + shift, floor=1.0))
    return [one | {"model": "mine", "role": "decoder", "seed": seed, "run": "run"} for one in made]


def written(folder, tensors, seeds=1):
    run = create_run(folder, config={"rank": 8}, steps=100)
    for seed in range(seeds):
        for step in (10, 80, 90):
            rows = [one for tensor in tensors for one in rows_of(tensor, step, step / 100 + seed / 10, seed)]
            run.write(f"mine-{seed}-{step}", rows)
    run.update(status="finished")
    run.close()
    return str(folder)


def test_updates_stand_beside_gradients_with_every_null_that_there_is(tmp_path):
    path = written(tmp_path / "run", ("update", "gradients"))
    section = updates_section(read([path]))
    assert section is not None
    figure = next(block for block in section.blocks if isinstance(block, Figure))
    found = {(s.tags["tensor"], s.tags["null"]): [(p.x, p.y) for p in s.points] for s in figure.series}
    assert found["update", "haar"] == [(10, 2.1), (80, 2.8), (90, 2.9)]
    assert set(found) == {("update", "haar"), ("update", "init"), ("gradients", "haar"), ("gradients", "targets")}
    table = next(block for block in section.blocks if isinstance(block, Table))
    late = {row[1].text: [cell.text for cell in row] for row in table.rows if row[2].text == "late"}
    # The median of two observations is the lower one; the update has no `targets`, the gradient no `init` here.
    columns = ["model", "tensor", "window", "energy share", "over haar", "over init", "over targets"]
    assert table.columns == columns
    assert late["update"][4:] == ["2.8", "2.3", "–"]
    assert late["gradients"][5:] == ["–", "1.1"]
    assert any(isinstance(block, Text) and "no interval within a seed" in block.text for block in section.blocks)
    assert 'id="updates"' in make_report([path])


def test_over_seeds_there_is_an_interval(tmp_path):
    section = updates_section(read([written(tmp_path / "run", ("change",), seeds=3)]))
    assert section is not None
    figure = next(block for block in section.blocks if isinstance(block, Figure))
    (line,) = (s for s in figure.series if s.tags["null"] == "haar")
    assert all(point.low is not None and point.low < point.y < point.high for point in line.points)


@pytest.mark.parametrize("tensors", [("gradients",), ("gradients-out", "gradients")])
def test_a_run_without_updates_has_no_such_section(tmp_path, tensors):
    assert updates_section(read([written(tmp_path / "run", tensors)])) is None
