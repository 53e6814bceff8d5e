"""Settings: presets, then a TOML file, then flags; what does not fit is said in one line."""

import typing

import pytest

from anisoscope.cli import app
from anisoscope.cli.pair import PairCommand
from anisoscope.errors import AnisoscopeError
from anisoscope.study.pair.pair_settings import PRESETS, PairOptions, PairSettings, settings_of
from anisoscope.study.setting_fields import CommandOptions, given_in, made_of, part_of


def test_flags_go_before_the_file_and_the_file_before_the_preset(tmp_path):
    file = tmp_path / "mine.toml"
    file.write_text("steps = 77\nwidth = 64\nproxies = ['svd']\n", encoding="utf-8")
    options = PairCommand(preset="small", config=file, width=32, rank=8)
    found = settings_of(options.preset, given_in(part_of(options, PairOptions)))
    assert (found.steps, found.width, found.layers, found.proxies) == (77, 32, PRESETS["small"]["layers"], ("svd",))
    assert settings_of("tiny", {}) == PairSettings()


def test_the_default_job_is_the_one_that_is_promised():
    found = PairSettings()
    assert (found.layers, found.width, found.vocabulary, found.batch, found.length) == (4, 128, 4096, 16, 128)
    assert (found.steps, found.rank, found.proxies) == (400, 32, ("pca", "svd", "semi_nmf"))
    assert found.targets
    assert found.models == "twin"
    assert all(PairSettings(**changed) for changed in PRESETS.values())
    assert PairSettings(width=64, rank=16).other_ranks == (4, 8)


@pytest.mark.parametrize(
    ("preset", "flags", "message"),
    [
        ("huge", {}, "preset must be one of"),
        ("tiny", {"width": 130}, "width must be a multiple of heads"),
        ("tiny", {"rank": 100}, "rank must be at most half of the width"),
        ("tiny", {"probe": 100}, "probe must be 0 or at least 4096"),
        ("tiny", {"steps": 0}, "--steps must be at least 1"),
        ("tiny", {"models": "gpt5"}, "--models must be 'twin', 'neox-bert'"),
        ("tiny", {"proxies": ("pcaa",)}, "--proxies: proxies must be among pca"),
    ],
)
def test_what_does_not_fit_is_said(preset, flags, message):
    with pytest.raises(ValueError, match=message):
        settings_of(preset, flags)


def test_a_typo_in_the_file_is_an_error_and_not_ignored(tmp_path):
    file = tmp_path / "mine.toml"
    file.write_text("stepz = 77\n", encoding="utf-8")
    with pytest.raises(ValueError, match="--stepz is not a setting"):
        made_of(PairCommand, {"config": file})
    file.write_text("steps = = 77\n", encoding="utf-8")
    with pytest.raises(ValueError, match="valid TOML"):
        made_of(PairCommand, {"config": file})
    with pytest.raises(AnisoscopeError, match="cannot read"):
        made_of(PairCommand, {"config": tmp_path / "none.toml"})
    file.write_text("config = 'other.toml'\n", encoding="utf-8")
    with pytest.raises(ValueError, match="must not name another"):
        made_of(PairCommand, {"config": file})


def test_every_command_takes_its_options_from_one_model_that_reads_toml():
    commands = [name for name in app if not name.startswith("-")]
    assert len(commands) >= 11
    for name in commands:
        function = app[name].default_command
        hints = typing.get_type_hints(function)
        models = [kind for kind in hints.values() if isinstance(kind, type) and issubclass(kind, CommandOptions)]
        assert len(models) == 1, name
        operands = [kind for word, kind in hints.items() if word != "return" and kind not in models]
        plain = all(kind in (str, str | None) for kind in operands)
        assert plain, f"{name} declares an option outside its model, or an operand that is no plain text"
