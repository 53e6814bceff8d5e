"""What `make` installs is pinned and hashed: locked/ has the versions of constraints.txt, and torch alone no hash."""

import re
from pathlib import Path

import pytest

HERE = Path(__file__).parents[1]
PINNED = re.compile(r"^([A-Za-z0-9_.-]+)==([^\s;\\]+)", re.MULTILINE)
CUDA = ("nvidia-", "cuda-", "triton", "torch")


def normal(name):
    return re.sub(r"[-_.]+", "-", name).lower()


def pins(file):
    return {normal(name): version for name, version in PINNED.findall((HERE / file).read_text())}


@pytest.mark.parametrize("name", ["run", "test", "models"])
def test_every_release_has_hashes_and_the_version_of_the_constraints(name):
    text, pinned = (HERE / "locked" / f"{name}.txt").read_text(), pins("constraints.txt")
    releases = re.split(r"\n(?=\S)", re.sub(r"^#.*\n", "", text, flags=re.MULTILINE).strip())
    assert releases
    for release in releases:
        found = PINNED.match(release)
        assert found, release[:80]
        assert re.search(r"--hash=sha256:[0-9a-f]{64}\b", release), found[1]
        assert pinned.get(normal(found[1]), found[2]) == found[2]
    markers = {normal(PINNED.match(release)[1]): ";" in release.splitlines()[0] for release in releases}
    loose = [name for name in markers if name not in pinned and not markers[name]]
    assert loose == []  # what is no constraint is for other platforms


def test_no_release_depends_on_the_python_but_in_a_browser():
    """`make check-lock` asks pip for files of other Pythons, and pip judges markers by the one that it runs in."""
    markers = [
        line for file in (HERE / "locked").glob("*.txt") for line in file.read_text().splitlines() if ";" in line
    ]
    assert markers
    assert [line for line in markers if "python" in line and "sys_platform == 'emscripten'" not in line] == []


def test_every_constraint_is_locked_but_torch():
    locked = pins("locked/run.txt") | pins("locked/test.txt") | pins("locked/models.txt")
    assert set(pins("constraints.txt")) - set(locked) == {"torch"}
    assert not [name for name in locked if name.startswith(CUDA) and name != "torchmetrics"]


def test_make_installs_without_hashes_only_torch_the_package_itself_and_peers():
    recipes = [line for line in (HERE / "Makefile").read_text().splitlines() if line.startswith("\t")]
    unhashed = [line for line in recipes if "$(PIP)" in line or ("pip" in line and "--hash" not in line)]
    allowed = ("$(PIP) torch", "-e .", "peers", "PEERS", "--quiet uv==")
    assert [line for line in unhashed if not any(part in line for part in allowed)] == []
