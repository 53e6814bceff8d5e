"""Models of the hub from a cache that is laid out as the hub lays it; the network itself is not here."""

from types import SimpleNamespace

import huggingface_hub
import huggingface_hub.constants
import huggingface_hub.errors
import pytest

from anisoscope.errors import AnisoscopeError, BrokenRuleError
from anisoscope.models.hub import cached, forget, is_here, refs, require_revisions, snapshot
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
