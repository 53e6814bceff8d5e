"""The sites of every language model of transformers, against what their configurations say; docs/models.md."""

import re
from pathlib import Path

import pytest
import transformers
from docs import models_table

from anisoscope.capture.maps import linear_shape
from anisoscope.capture.sites import find_sites

pytestmark = [
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.skipif(
        transformers.__version__ not in (models_table.HERE / "models.md").read_text(encoding="utf-8")[:400],
        reason="docs/models.md was made with another transformers",
    ),
]
PAGE = (Path(models_table.__file__).parent / "models.md").read_text(encoding="utf-8")
SAMPLE = (
    ("GPT2LMHeadModel", "GPT2Config"),
    ("AlbertForMaskedLM", "AlbertConfig"),  # one block, called several times
    ("T5ForConditionalGeneration", "T5Config"),
    ("FSMTForConditionalGeneration", "FSMTConfig"),  # positions first
    ("XLMWithLMHeadModel", "XLMConfig"),  # attention, MLP and norms in lists of their own
    ("JambaForCausalLM", "JambaConfig"),  # blocks of two classes, some with experts
    ("GptOssForCausalLM", "GptOssConfig"),
    ("Gemma3nForCausalLM", "Gemma3nTextConfig"),  # several streams
    ("FunnelForMaskedLM", "FunnelConfig"),  # pooled
    ("Qwen2AudioForConditionalGeneration", "Qwen2AudioConfig"),  # a language model behind an audio encoder
    ("ReformerModelWithLMHead", "ReformerConfig"),  # reversible
)
ODD = {  # chains that have another number of blocks than the configuration says, and why
    "AlbertForMaskedLM": 1,  # one block called again and again
    "BltForCausalLM": None,  # three models in one
    "FunnelForMaskedLM": None,  # counts blocks of layers
    "LongcatFlashForCausalLM": None,  # two layers a block
    "PerceiverForMaskedLM": None,  # blocks of self-attention are called again and again
    "SqueezeBertForMaskedLM": 1,  # its blocks are run past their call
    "HrmTextForCausalLM": None,  # two stacks that take turns
}


def told(config, both):
    """The number of blocks by the configuration, of the decoder and of the encoder."""
    if hasattr(config, "decoder") and hasattr(config, "encoder"):
        halves = config.decoder, getattr(config.encoder, "text_config", config.encoder)
        return tuple(half.num_hidden_layers for half in halves)
    text = config.get_text_config(decoder=True) if hasattr(config, "get_text_config") else config
    config = text if not both else config
    names = ("num_decoder_layers", "decoder_layers", "num_hidden_layers", "n_layer", "n_layers", "num_layers")
    decoder = next((n for name in names if isinstance(n := getattr(config, name, None), int)), None)
    names = ("encoder_layers", "num_encoder_layers", "num_layers", "num_hidden_layers")
    encoder = next((n for name in names if isinstance(n := getattr(config, name, None), int)), None)
    return decoder, encoder


def check(name, config):
    try:
        model = models_table.build(name, config)
    except Exception:
        pytest.skip(f"the defaults of {config} make no {name}")
    sites = find_sites(model)
    assert models_table.row(models_table.line(name, config, sites)) in PAGE.splitlines(), "run `make models`"
    names = {site.name for site in sites.blocks}
    assert len(names) == len(sites.blocks)
    assert not any(a != b and a.startswith(f"{b}.") for a in names for b in names), "a block inside a block"
    expected, of_encoder = told(model.config, sites.has_encoder)
    found = [site for site in sites.blocks if not site.encoder]
    if name not in ODD:
        assert len(found) == expected
        if sites.has_encoder:
            assert len(sites.blocks) - len(found) == of_encoder
    elif ODD.get(name) is not None:
        assert len(found) == ODD[name]
    both = bool(getattr(model.config, "is_encoder_decoder", False)) and hasattr(model, "get_encoder")
    assert sites.has_encoder == both, "an encoder-decoder has two chains, every other model has one"
    notes = " ".join((*sites.notes, sites.how))
    mapped = {(site.layer, site.encoder) for site in sites.weights}
    bare = [site for site in sites.blocks if (site.layer, site.encoder) not in mapped]
    assert not bare or "no weight view" in notes, "a block without a map and without a word"
    assert bool(sites.left_out) == ("no representation of" in notes)
    for site in sites.weights:
        assert linear_shape(site.module) is not None
        named = re.search(r"attn|attention|expert", site.name) is not None
        assert not named or "first map that reads" in notes, "not the map of an MLP, and no note"


@pytest.mark.parametrize(("name", "config"), SAMPLE, ids=[name for name, _ in SAMPLE])
def test_sites_of_a_sample_of_kinds(name, config):
    check(name, config)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "config"), models_table.classes(), ids=[f"{n}-{c}" for n, c in models_table.classes()]
)
def test_sites_of_every_class(name, config):
    check(name, config)


def test_the_page_names_every_class_once():
    listed = re.findall(r"^\| (\w+ \(\w+\)) \|", PAGE, re.M)
    listed.remove("class (configuration)")
    listed.remove("class (configuration)")
    assert sorted(listed) == sorted(f"{name} ({config})" for name, config in models_table.classes())
