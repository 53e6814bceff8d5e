"""The view tree says what the rows say, computed here a second time and otherwise."""

import math
import statistics
from functools import cache

import pyarrow.compute as pc
import pytest

from anisoscope.report.formatting import number
from anisoscope.report.names import short_of
from anisoscope.report.reading import read
from anisoscope.report.sections.isotropy_profiles import below_one, unequal
from anisoscope.report.sections.provenance_section import status
from anisoscope.report.summary import errors
from anisoscope.report.tree import Figure, LadderFigure, Point, Table, Text, plain
from anisoscope.report.view import view
from anisoscope.store.run import create_run, open_run
from report.blocks import block, headed, the
from report.planted import HOSTILE, LAYERS, NULLS, RANK, STEPS, TOTAL, WIDTH


@pytest.fixture(scope="module")
def good(planted):
    return seen(planted / "good")


@cache
def seen(path):
    """The view of a run, made once."""
    return view(read([str(path)]))


def values(path, *, step_in, **where):
    table = open_run(path).table()
    keep = pc.field("step").isin(step_in)
    for name, value in where.items():
        keep = keep & (pc.field(name) == value)
    return table.filter(keep)


USUAL = {"subset": "all", "proxy": "pca", "timing": "rolling", "rank": RANK, "tensor": "gradients"}
EARLY = [s for s in STEPS if 0 < s <= 0.3 * TOTAL]
LATE = [s for s in STEPS if s >= 0.7 * TOTAL]


@pytest.mark.parametrize("role", ["decoder", "encoder"])
@pytest.mark.parametrize(("window", "steps"), [("early", EARLY), ("late", LATE)])
def test_the_table_holds_the_medians_of_the_rows(planted, good, role, window, steps):
    table = block(good, "numbers", Table, "numbers-representation")
    line = next(r for r in table.rows if (r[0].text, r[1].text) == (role.capitalize(), window))
    cells = dict(zip(table.columns, line, strict=True))
    for null in NULLS:
        rows = values(
            planted / "good", step_in=steps, role=role, view="representation", measure="enrichment", null=null, **USUAL
        )
        median = statistics.median_low(rows["value"].to_pylist())
        assert cells[f"over {short_of(null)}"].text == number(median)
        low = rows["low"].to_pylist()[rows["value"].to_pylist().index(median)]
        assert f"[{number(low)}, " in cells[f"over {short_of(null)}"].small
    rows = values(planted / "good", step_in=steps, role=role, view="representation", measure="energy", **USUAL)
    assert cells["energy share"].text == number(statistics.median_low(rows["value"].to_pylist()))
    assert cells["energy share"].small == f"K/D = {number(RANK / WIDTH)}"
    assert cells["gain, normal"].text == "−0.01"


def test_several_seeds_give_a_geometric_mean_and_an_interval_over_them(planted):
    report = seen(planted / "seeds")
    figure = block(report, "emergence", Figure, "emergence")
    wanted = {"model": "Decoder", "view": "representation", "null": "haar", "layer": "2"}
    wanted |= {**FIT}
    (series,) = [s for s in figure.series if s.tags == wanted]
    where = {"role": "decoder", "view": "representation", "measure": "enrichment", "null": "haar", "layer": 2}
    three = values(planted / "seeds", step_in=[200], **where, **USUAL)["value"].to_pylist()
    assert len(three) == 3
    at = next(p for p in series.points if p.x == 200)
    assert at.y == pytest.approx(math.prod(three) ** (1 / 3))
    logs = [math.log(value) for value in three]
    half = 4.302653 * statistics.stdev(logs) / math.sqrt(3)  # Student's t, 2 degrees of freedom
    assert math.log(at.high / at.y) == pytest.approx(half, rel=1e-5)
    assert math.log(at.y / at.low) == pytest.approx(half, rel=1e-5)
    assert "95 % interval over seeds" in figure.caption


@pytest.mark.parametrize(
    ("name", "said", "unsaid"),
    [
        ("good", ["One seed, so no bands"], ["over seeds"]),
        ("two", ["the mean over seeds (2 at most), without an interval"], ["Student", "range"]),
        (
            "seeds",
            ["the mean over seeds (3 at most)", "95 % interval over seeds (Student's t)"],
            ["range", "no interval"],
        ),
    ],
)
def test_the_caption_of_the_loss_says_what_its_bands_are(planted, name, said, unsaid):
    figure = block(seen(planted / name), "emergence", Figure, "loss")
    assert all(words in figure.caption for words in said)
    assert not any(words in figure.caption for words in unsaid)
    assert any(p.low is not None for s in figure.series for p in s.points) == (name == "seeds")


def at_200(path, role, **where):
    rows = values(path, step_in=[200], role=role, view="representation", measure="enrichment", null="haar", **USUAL)
    rows = [row for row in rows.to_pylist() if all(row[key] == value for key, value in where.items())]
    return sorted(rows, key=lambda row: row["seed"])


@pytest.mark.parametrize(("name", "seeds"), [("two", 2), ("seeds", 3)])
def test_curves_hold_each_seed_with_the_interval_within_it(planted, name, seeds):
    figure = block(seen(planted / name), "emergence", Figure, "emergence")
    wanted = {"model": "Decoder", "view": "representation", "null": "haar", "layer": "2"}
    (series,) = [s for s in figure.series if s.tags == wanted | FIT]
    at = next(p for p in series.points if p.x == 200)
    rows = at_200(planted / name, "decoder", layer=2)
    assert len(at.seeds) == seeds
    assert at.seeds == tuple((row["value"], row["low"], row["high"], row["seed"]) for row in rows)
    assert (at.low is None) == (seeds == 2)
    assert "within that seed, over sequences or documents" in figure.caption
    assert len(plain(at)[-1]) == seeds  # and the page has them


@pytest.mark.parametrize(("name", "seeds"), [("two", 2), ("seeds", 3)])
def test_cells_give_both_of_two_seeds_and_name_intervals_within_seeds(planted, name, seeds):
    table = block(seen(planted / name), "numbers", Table, "numbers-representation")
    line = next(r for r in table.rows if (r[0].text, r[1].text) == ("Decoder", "early"))
    cell = dict(zip(table.columns, line, strict=True))["over random directions"]
    where = {"role": "decoder", "view": "representation", "measure": "enrichment", "null": "haar"}
    rows = values(planted / name, step_in=EARLY, **where, **USUAL).to_pylist()
    medians = []
    for seed in range(seeds):
        mine = sorted((r for r in rows if r["seed"] == seed), key=lambda r: r["value"])
        medians.append(mine[(len(mine) - 1) // 2])
    ends = [f"[{number(r['low'])}, {number(r['high'])}]" for r in medians]
    lines = cell.small.split("\n")
    if seeds == 2:
        assert cell.text == ", ".join(number(r["value"]) for r in medians)
        assert lines[0] == f"within seeds {', '.join(ends)}"
        assert "Both seeds' values are given" in table.caption
    else:
        middle = ends[medians.index(sorted(medians, key=lambda r: r["value"])[1])]
        assert cell.text == number(statistics.geometric_mean(r["value"] for r in medians))
        assert lines[0].startswith("[")
        assert lines[1] == f"within a seed {middle}"
        assert "named as within a seed" in table.caption


def test_one_seed_has_the_intervals_of_its_rows(planted, good):
    figure = block(good, "emergence", Figure, "emergence")
    assert "95 % intervals of the rows, over sequences" in figure.caption
    series = next(s for s in figure.series if s.tags["layer"] == "1" and s.tags["null"] == "targets")
    row = values(
        planted / "good", step_in=[80], role="decoder", layer=1, view="representation", null="targets", **USUAL
    )
    at = next(p for p in series.points if p.x == 80)
    assert at == Point(80, *(row[c][0].as_py() for c in ("value", "low", "high", "n", "q")))


def test_other_ranks_stay_in_their_ablation(good):
    for series in block(good, "emergence", Figure, "emergence").series:
        assert len(series.points) <= len(STEPS)
    ranks = block(good, "ablations", Figure, "ranks")
    assert {p.x for s in ranks.series for p in s.points} == {4, 8, 16, 32, 64}
    floor = next(s for s in ranks.series if s.null)
    assert [p.y for p in floor.points] == [p.x / WIDTH for p in floor.points]


FIT = {"proxy": "pca", "timing": "rolling", "subset": "all tokens"}


def verdict_of(report):
    return next(section.blocks for section in report.sections if section.id == "verdict")


def test_every_figure_names_its_null_its_errors_and_itself(good):
    figures = good.figures()
    assert len(figures) == 12
    for figure in figures:
        assert len(figure.caption) > 100
        assert len(figure.alt) > 20
        if isinstance(figure, LadderFigure):
            continue
        assert figure.references or any(s.null for s in figure.series), figure.id
        words = ("seed", "interval")
        assert any(word in figure.caption for word in words), figure.id


def test_sections_come_in_the_order_of_the_issue(good):
    order = "claims verdict numbers emergence views profiles phases drift concepts ablations provenance"
    assert [s.id for s in good.sections] == order.split()


def test_bell_and_phases_follow_their_rule(good):
    bells = block(good, "profiles", Table, "bells")
    found = {(row[0].text, row[1].text): row for row in bells.rows}
    assert found["TwoNN dimension", "Decoder"][3].text == "bell"
    assert found["TwoNN dimension", "Decoder"][5].text == "2"
    assert found["average cosine", "Encoder"][3].text == "rising"
    assert found["IsoScore*", "Decoder"][3].text == "valley"
    said = {b.head: b.text for b in next(s for s in good.sections if s.id == "phases").blocks if isinstance(b, Text)}
    assert said["Decoder:"].startswith("two phases: it first rises, then falls")
    assert "at step 200" in said["Decoder:"]
    assert said["Encoder:"].startswith("two phases are not shown: it falls")


def dimension_run(path, values, n):
    run = create_run(path, steps=100)
    for step in (0, 50, 100):
        common = {"step": step, "view": "representation", "tensor": "activations", "subset": "all", "measure": "two_nn"}
        rows = [
            common | {"layer": i, "value": v + 0.01 * step, "low": v - 0.2, "high": v + 0.2 + 0.02 * step, "n": k}
            for i, (v, k) in enumerate(zip(values, n, strict=True))
        ]
        run.write("w", rows)
    run.close("finished")
    return read([str(path)])


def test_dimension_is_compared_at_equal_n_only(tmp_path):
    context = dimension_run(tmp_path / "run", [50.0, 3.0, 6.0, 3.0], [900, 6000, 6000, 6000])
    assert "layer 0 has 900 distinct points" in unequal(context.subjects[0])
    report = view(context)
    assert block(report, "profiles", Table, "bells").rows[0][3].text == "bell"
    figure = block(report, "phases", Figure, "dimension")
    median = next(s for s in figure.series if s.tags["layer"] == "median")
    assert [p.y for p in median.points] == [3.0, 3.5, 4.0]
    assert figure.y.log  # 50 beside 3


def test_a_dimension_below_one_is_not_taken_for_geometry(tmp_path):
    context = dimension_run(tmp_path / "run", [0.5, 3.0, 6.0], [6000] * 3)
    assert "TwoNN is below 1 at layer 0, step 0 (lowest 0.5)" in below_one(context.subjects[0])
    assert unequal(context.subjects[0]) is None


def test_the_turn_below_one_is_explained_with_the_uncentred_proxy(good):
    turn = headed(next(s for s in good.sections if s.id == "views").blocks, "A turn below 1.")
    assert "Encoder" in turn.text
    assert "3 observations between steps 80 and 160" in turn.text
    assert "which agrees with that" in turn.text


def test_runs_are_compared_by_the_fraction_of_training(planted):
    context = read([str(planted / "good"), str(planted / "bad")])
    assert [s.label for s in context.subjects] == ["good · Decoder", "good · Encoder", "bad · Decoder", "bad · Encoder"]
    figure = block(view(context), "emergence", Figure, "emergence")
    assert figure.x.label == "fraction of training"
    assert max(p.x for s in figure.series for p in s.points) == 1


def test_one_run_named_twice_has_two_labels(planted):
    labels = [s.label for s in read([str(planted / "good")] * 2).sources]
    assert len(set(labels)) == 2


def test_a_run_in_progress_says_so(planted):
    context = read([str(planted / "half")])
    (note,) = status(context)
    assert "still in progress" in note.text
    assert "up to step 80 of 400" in note.text
    late = headed(verdict_of(view(context)), "Decoder, late:")
    assert "no observations in this window (steps 280 to 400)" in late.text


def test_an_empty_run_has_sentences_instead_of_plots(tmp_path):
    create_run(tmp_path / "empty").close("finished")
    report = view(read([str(tmp_path / "empty")]))
    assert report.figures() == []
    assert all(section.blocks for section in report.sections)


def test_a_plain_scope_run_without_role_or_intervals_is_reported(tmp_path):
    run = create_run(tmp_path / "plain", kind="scope")
    common = {"step": 0, "layer": 1, "view": "representation", "tensor": "gradients", "subset": "all", "proxy": "svd"}
    common |= {"rank": 4, "timing": "rolling"}
    note = {"step": 0, "measure": "enrichment", "null": "targets", "value": math.nan, "note": "no labels in the batch"}
    run.write("scope", [common | {"measure": "enrichment", "null": "haar", "value": 2.0, "low": None}, note])
    run.close("finished")
    report = view(read([str(tmp_path / "plain")]))
    said = verdict_of(report)
    assert the(Text, said[0]).head == "Nothing to judge."  # step 0 alone
    before = next(b.text for b in said if isinstance(b, Text) and (b.head or "").endswith("before training:"))
    assert "Over `haar`, the rows cannot tell in 1 of 1 layer" in before
    ladder = block(report, "verdict", LadderFigure)
    targets = next(n for n in ladder.tracks[0].nodes if n.null == "targets")
    assert "no labels in the batch" in targets.why


def test_hostile_text_is_made_visible_on_the_way_in(planted):
    source = read([str(planted / "good")]).sources[0]
    notes = {row["token"] for row in source.rows if row["measure"] == "concept"}
    assert HOSTILE in notes  # plain characters stay; the page escapes them
    assert "⟨U+202E⟩evil⟨U+202C⟩" in notes
    assert "nul⟨U+0000⟩byte" in notes
    assert max(map(len, notes)) < 300
    assert source.manifest["versions"]["evil"] == "⟨U+202E⟩gnp.exe"


def test_layers_of_the_emergence_are_all_there(good):
    figure = block(good, "emergence", Figure, "emergence")
    assert next(c for c in figure.toggle if c.key == "layer").values == [str(i) for i in range(LAYERS)]


@pytest.mark.parametrize(
    ("units", "words"),
    [
        ({"a": "document", "b": "document"}, "documents"),
        ("sequence", "sequences"),
        ({"a": "document", "b": "sequence"}, "sequences or documents"),
        (None, "sequences or documents"),
    ],
)
def test_captions_name_the_units_that_the_manifest_has(units, words, tmp_path):
    create_run(tmp_path / "run", kind="scope", steps=10, **({} if units is None else {"units": units})).close(
        "finished"
    )
    context = read([str(tmp_path / "run")])
    assert context.units == words
    assert f"of the rows, over {words};" in errors(context)


def test_bands_that_are_drawn_are_not_denied(good):
    caption = block(good, "profiles", Figure, "isotropy").caption
    drawn = any(p.low is not None for s in block(good, "profiles", Figure, "isotropy").series for p in s.points)
    assert ("have no intervals" in caption) is not drawn
