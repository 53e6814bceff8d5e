"""What a wheel says of itself: one version, and links that lead somewhere from wherever the README is read."""

import os
import re
import subprocess
import sys
import tarfile
import zipfile
from email import message_from_bytes, message_from_string
from pathlib import Path

import pytest

import anisoscope

ROOT = Path(__file__).parents[1]
URL = "https://example.org/someone/anisoscope"
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
BUILD = "import sys; from hatchling import build; print(getattr(build, 'build_' + sys.argv[1])(sys.argv[2]))"


def build(kind, folder, root=ROOT, **environment):
    clean = {name: value for name, value in os.environ.items() if not name.startswith("ANISOSCOPE_")}
    command = [sys.executable, "-c", BUILD, kind, str(folder)]
    done = subprocess.run(command, cwd=root, env=clean | environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return folder / done.stdout.split()[-1]


def metadata(wheel):
    with zipfile.ZipFile(wheel) as held:
        (name,) = [name for name in held.namelist() if name.endswith("dist-info/METADATA")]
        return message_from_bytes(held.read(name))


def text_of(found):
    return found.get_payload(decode=True).decode()


def urls(found):
    return dict(each.split(", ") for each in found.get_all("Project-URL"))


def links(text):
    return LINK.findall(re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL))


def test_with_an_address_every_link_of_the_readme_is_absolute_and_names_a_file_that_is_there(tmp_path):
    found = metadata(build("wheel", tmp_path, ANISOSCOPE_URL=URL + "/"))
    given, made = links((ROOT / "README.md").read_text(encoding="utf-8")), links(text_of(found))
    assert len(made) == len(given) > 30
    ref = f"v{anisoscope.__version__}"
    for before, after in zip(given, made, strict=True):
        if before.startswith("https://"):
            assert after == before
            continue
        path = ROOT / before
        view = "raw" if before.endswith(".png") else "tree" if path.is_dir() else "blob"
        assert path.exists()
        assert after == f"{URL}/{view}/{ref}/{before}"
    assert urls(found)["Source"] == URL
    assert urls(found)["Changelog"] == f"{URL}/blob/{ref}/CHANGELOG.md"
    assert urls(found)["Paper"] == "https://arxiv.org/abs/2604.08764"
    assert found["Version"] == anisoscope.__version__


def test_without_an_address_none_is_made_up_and_no_link_is_dead(tmp_path):
    found = metadata(build("wheel", tmp_path))
    assert urls(found) == {"Paper": "https://arxiv.org/abs/2604.08764"}
    assert all(link.startswith("https://") for link in links(text_of(found)))
    assert "`docs/pair.md`" in text_of(found)
    assert found["Description-Content-Type"] == "text/markdown"


def test_a_wheel_of_an_sdist_keeps_its_address_and_tag(tmp_path):
    made = build("sdist", tmp_path, ANISOSCOPE_URL=URL, ANISOSCOPE_REF="0123abc")
    with tarfile.open(made) as held:
        held.extractall(tmp_path, filter="data")
    (root,) = [path for path in tmp_path.iterdir() if path.is_dir()]
    assert urls(message_from_string((root / "PKG-INFO").read_text(encoding="utf-8")))["Source"] == URL
    found = metadata(build("wheel", tmp_path, root=root))
    assert f"{URL}/raw/0123abc/docs/report.png" in text_of(found)


def test_a_wheel_holds_templates_style_and_scripts_of_the_page(tmp_path):
    with zipfile.ZipFile(build("wheel", tmp_path)) as held:
        names = set(held.namelist())
    assets = {path.relative_to(ROOT / "src").as_posix() for path in (ROOT / "src/anisoscope/report/assets").iterdir()}
    assert "anisoscope/report/assets/page.html.j2" in assets
    assert assets <= names


def test_an_address_that_is_none_is_refused(tmp_path):
    with pytest.raises(AssertionError, match="ANISOSCOPE_URL must be the web page of a repository"):
        build("wheel", tmp_path, ANISOSCOPE_URL="anisoscope.git")


def test_the_version_stands_in_one_place():
    """The README names it in the file name of a wheel, which must be the right one."""
    files = [ROOT / name for name in ("pyproject.toml", "CITATION.cff", "docs/conf.py") if (ROOT / name).exists()]
    pattern = re.compile(rf"\b{re.escape(anisoscope.__version__)}\b|^version\s*[:=]", re.MULTILINE)
    assert [path.name for path in files if pattern.search(path.read_text(encoding="utf-8"))] == []
    wheels = re.findall(r"anisoscope-(\d[^-]*)-py3", (ROOT / "README.md").read_text(encoding="utf-8"))
    assert wheels == [anisoscope.__version__]
