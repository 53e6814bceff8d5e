"""Models of the hub from a cache that is laid out as the hub lays it; the network itself is not here."""

from fnmatch import fnmatch
from types import SimpleNamespace

import huggingface_hub
import huggingface_hub.constants
import huggingface_hub.errors
import pytest

from anisoscope.errors import AnisoscopeError, BrokenRuleError
from anisoscope.models.model_hub import cached, forget, is_here, refs, require_revisions, snapshot, subfolders
from anisoscope.study.checkpoints.histories import labels_of, origins_of
from models.snapshots import cache_model, offline, tiny


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """Two revisions of one model, and no network."""
    folder = tmp_path / "models--owner--tiny"
    for number, revision in enumerate(("step0", "step512")):
        commit = f"{number + 1:040x}"
        files = folder / "snapshots" / commit
        files.mkdir(parents=True)
        (files / "model.safetensors").write_bytes(revision.encode())
        (folder / "refs").mkdir(exist_ok=True)
        (folder / "refs" / revision).write_text(commit)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
    return tmp_path


def test_a_cached_revision_needs_no_network(cache):
    path = snapshot("owner/tiny", "step512", cache=cache)
    assert (path / "model.safetensors").read_text() == "step512"


def test_without_a_network_the_cache_is_told(cache):
    with pytest.raises(AnisoscopeError, match=r"owner/tiny@step1 cannot be downloaded .* cached are step0, step512"):
        snapshot("owner/tiny", "step1", cache=cache)
    with pytest.raises(AnisoscopeError, match="nothing of it is cached"):
        snapshot("owner/other", cache=cache)
    assert refs("owner/tiny", cache=cache) == cached("owner/tiny", cache=cache) == ["step0", "step512"]


@pytest.mark.parametrize(
    ("error", "message"),
    [
        ("RevisionNotFoundError", "the nearest are step512"),
        ("RepositoryNotFoundError", "must exist on the hub"),
        ("GatedRepoError", "accept its terms"),
    ],
)
def test_refusals_of_the_hub_are_told_in_words(cache, monkeypatch, error, message):
    def refuse(*args, **options):
        response = SimpleNamespace(headers={}, request=None)
        raise getattr(huggingface_hub.errors, error)("refused", response=response)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", refuse)
    with pytest.raises((ValueError, AnisoscopeError), match=message):
        snapshot("owner/tiny", "step521", cache=cache)


def test_a_name_that_is_none_is_told(cache):
    with pytest.raises(ValueError, match="OWNER/NAME"):
        snapshot("a/b/c", cache=cache)


def test_a_network_that_does_not_answer_is_no_traceback(cache, monkeypatch):
    """huggingface_hub lets the errors of its own client through, which are no OSError."""
    client = pytest.importorskip("httpx2")

    def nobody(self, name):
        raise client.ConnectError("Name or service not known")

    monkeypatch.setattr(huggingface_hub.HfApi, "list_repo_refs", nobody)
    assert refs("owner/tiny", cache=cache) == ["step0", "step512"]


def test_a_revision_is_forgotten_and_what_others_share_stays(tmp_path, monkeypatch):
    offline(monkeypatch, tmp_path)
    first, second = tiny("gpt2"), tiny("gpt2", seed=1)
    for revision, model in (("step0", first), ("step1", second), ("main", second)):
        cache_model(tmp_path, "owner/tiny", model, revision=revision)
    assert is_here("owner/tiny", "step0", cache=tmp_path)
    assert not is_here("owner/tiny", "step2", cache=tmp_path)
    assert not is_here("owner/other", "step0", cache=tmp_path)
    before = sum(file.stat().st_size for file in (tmp_path / "models--owner--tiny" / "blobs").iterdir())
    forget("owner/tiny", "step0", cache=tmp_path)
    after = sum(file.stat().st_size for file in (tmp_path / "models--owner--tiny" / "blobs").iterdir())
    assert not is_here("owner/tiny", "step0", cache=tmp_path)
    assert is_here("owner/tiny", "main", cache=tmp_path)
    assert 0 < after < before
    forget("owner/tiny", "step7", cache=tmp_path)


def test_a_revision_that_does_not_exist_is_told_with_the_nearest(cache):
    require_revisions("owner/tiny", ["step0", "step512", "0123456789abcdef"], cache=cache)
    with pytest.raises(BrokenRuleError, match=r"got step511; the nearest are step512"):
        require_revisions("owner/tiny", ["step0", "step511"], cache=cache)


FILES = (
    "config.json",
    "model.safetensors",
    "checkpoints/step-10/model.safetensors",
    "checkpoints/step-10/config.json",
    "checkpoints/step-9/pytorch_model.bin",
    "checkpoints/notes/readme.txt",
    "eval/results.json",
)


class Hub:
    """As much of the hub as listing and fetching ask of it: branches, a file list, a download into a folder."""

    def __init__(self, root, branches=("main",)):
        self.root, self.branches, self.asked = root, branches, []

    def list_repo_refs(self, name):
        return SimpleNamespace(branches=[SimpleNamespace(name=one) for one in self.branches], tags=[])

    def list_repo_files(self, name, *, revision=None):
        return list(FILES)

    def snapshot_download(self, name, *, revision=None, allow_patterns, ignore_patterns=(), cache_dir=None):
        self.asked.append((revision, tuple(allow_patterns)))
        fetched = [file for file in FILES if any(fnmatch(file, pattern) for pattern in allow_patterns)]
        fetched = [file for file in fetched if not any(fnmatch(file, pattern) for pattern in ignore_patterns)]
        for file in fetched:
            (self.root / file).parent.mkdir(parents=True, exist_ok=True)
            (self.root / file).write_text(file)
        return str(self.root)


@pytest.fixture
def online(tmp_path, monkeypatch):
    hub = Hub(tmp_path / "download")
    monkeypatch.setattr(huggingface_hub, "HfApi", lambda: hub)
    monkeypatch.setattr(huggingface_hub, "snapshot_download", hub.snapshot_download)
    return hub


def test_checkpoints_in_folders_of_one_branch_are_listed_online(online):
    assert subfolders("owner/tiny") == ["checkpoints/step-10", "checkpoints/step-9"]
    assert labels_of("owner/tiny", "auto") == ([":checkpoints/step-9", ":checkpoints/step-10", "main"], [])


def test_branches_that_tell_steps_come_before_folders(online):
    online.branches = ("main", "step-1", "step-2")
    assert labels_of("owner/tiny", "auto")[0] == ["step-1", "step-2", "main"]


def test_of_a_folder_only_its_files_are_fetched(online):
    path = snapshot("owner/tiny", "main:checkpoints/step-10")
    assert path == online.root / "checkpoints" / "step-10"
    assert sorted(file.name for file in path.iterdir()) == ["config.json", "model.safetensors"]
    assert not (online.root / "model.safetensors").exists()
    assert online.asked[0][0] == "main"
    snapshot("owner/tiny", ":checkpoints/step-10")
    assert online.asked[1][0] is None


def test_of_the_model_itself_no_checkpoints_in_folders_are_fetched(online):
    path = snapshot("owner/tiny", "main", allow_pickle=True)
    assert sorted(file.name for file in path.rglob("model.safetensors")) == ["model.safetensors"]
    assert not list(path.rglob("*.bin"))


def test_a_folder_that_is_not_there_is_told_with_the_nearest(online):
    with pytest.raises(BrokenRuleError, match=r"got checkpoints/step-11; there are checkpoints/step-10"):
        snapshot("owner/tiny", "main:checkpoints/step-11")
    for wrong in ("main:../secret", "main:/etc", "main:a//b"):
        with pytest.raises(BrokenRuleError, match="REVISION:FOLDER"):
            snapshot("owner/tiny", wrong)


def test_origins_of_a_model_whose_checkpoints_lie_in_folders(online):
    origins, _ = origins_of(["owner/tiny"], "main:checkpoints/step-10,main:checkpoints/step-9")
    assert [origin.label for origin in origins] == ["main:checkpoints/step-9", "main:checkpoints/step-10"]
    assert origins[1].here().name == "step-10"
    with pytest.raises(BrokenRuleError, match="a revision of owner/tiny must exist"):
        origins_of(["owner/tiny"], "man:checkpoints/step-10,main:checkpoints/step-9")


def test_a_cached_folder_is_known_and_forgotten_alone(tmp_path, monkeypatch):
    offline(monkeypatch, tmp_path)
    root = cache_model(tmp_path, "owner/tiny", tiny("gpt2"))
    blobs = root.parent.parent / "blobs"
    before = set(blobs.iterdir())
    for step in (1, 2):
        (root / f"step-{step}").mkdir()
        (blobs / f"own-{step}").write_text("its own")
        (root / f"step-{step}" / "model.safetensors").symlink_to(blobs / f"own-{step}")
        (root / f"step-{step}" / "config.json").symlink_to((root / "config.json").resolve())
    assert subfolders("owner/tiny", cache=tmp_path) == ["step-1", "step-2"]
    assert is_here("owner/tiny", "main:step-1", cache=tmp_path)
    assert not is_here("owner/tiny", "main:step-3", cache=tmp_path)
    forget("owner/tiny", "main:step-1", cache=tmp_path)
    assert not is_here("owner/tiny", "main:step-1", cache=tmp_path)
    assert is_here("owner/tiny", "main:step-2", cache=tmp_path)
    assert set(blobs.iterdir()) == before | {blobs / "own-2"}
    assert (root / "config.json").is_file()
