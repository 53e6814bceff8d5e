"""Projections of attention in the weight view: which are found, and that their gradients are those of autograd."""

import pytest
import torch
from torch import nn

from anisoscope.capture.sites import choose_sites, find_sites
from anisoscope.capture.taps import Taps
from anisoscope.errors import BrokenRuleError
from anisoscope.observe.collector import Collector
from anisoscope.observe.statistics import Observation
from models.snapshots import batch, tiny

# Where each kind keeps what tokens pass, of its first block; a key-value head less, wider heads, fused projections.
PROJECTIONS = {
    "llama": ["q_proj", "k_proj", "v_proj", "o_proj"],
    "gpt2": ["c_attn", "c_proj"],
    "gpt_neox": ["query_key_value", "dense"],
    "falcon": ["query_key_value", "dense"],
    "modernbert": ["Wqkv", "Wo"],
    "bert": ["query", "key", "value", "dense"],
    "opt": ["k_proj", "v_proj", "q_proj", "out_proj"],
}
EXTRA = {"llama": {"attention_bias": True, "head_dim": 12}}


def built(kind):
    return tiny(kind, **EXTRA.get(kind, {})).train()


def first(sites):
    return [site for site in sites.weights if site.layer == 1]


@pytest.mark.parametrize("kind", PROJECTIONS)
def test_every_projection_is_found_beside_the_mlp(kind):
    model = built(kind)
    usual = find_sites(model)
    both = find_sites(model, maps=("mlp", "attention"))
    assert [site.name for site in first(find_sites(model, maps=("attention",)))] == [s.name for s in first(both)][1:]
    assert first(both)[0].name == first(usual)[0].name
    assert sorted(site.name.split(".")[-1] for site in first(both)[1:]) == sorted(PROJECTIONS[kind])
    assert len(both.weights) == len(usual.weights) * (1 + len(PROJECTIONS[kind]))
    assert [site.name for site in both.blocks] == [site.name for site in usual.blocks]


@pytest.mark.parametrize("kind", ["llama", "gpt2", "gpt_neox", "bert"])
def test_their_gradient_is_that_of_the_weight(kind):
    model = built(kind)
    sites = find_sites(model, maps=("attention",))
    listener = Collector(("weight",), seed=0)
    many = [batch("masked" if kind == "bert" else "causal", seed=seed) for seed in range(4)]
    given = {name: torch.cat([one[name] for one in many]) for name in many[0]}
    with Taps(model, sites, listener):
        model(**given).loss.backward()
    observed = Observation(0, listener.statistics)
    for site in sites.weights:
        found = torch.stack([observed.sum("weight", site.key, "gradients", fold) for fold in (0, 1)]).sum(0)
        grad = site.module.weight.grad
        grad = grad.T if type(site.module).__name__ == "Conv1D" else grad  # GPT-2 keeps its weights the other way
        assert torch.allclose(found.float(), grad, rtol=1e-4, atol=1e-7), site.name


def test_attention_to_the_other_stack_is_left_out():
    import transformers

    config = transformers.T5Config(vocab_size=64, d_model=16, d_kv=8, d_ff=32, num_layers=2, num_heads=2)
    sites = find_sites(transformers.T5ForConditionalGeneration(config), maps=("attention",))
    assert {site.name.split(".")[-1] for site in sites.weights} == {"q", "k", "v", "o"}
    assert not [site.name for site in sites.weights if "EncDec" in site.name]
    assert {site.view for site in sites.weights} == {"weight", "encoder-weight"}


class Words(nn.Module):
    """An encoder of torch, whose attention reads its weights past the modules that hold them."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(20, 16)
        layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(16, 20)

    def forward(self, input_ids):
        return self.head(self.encoder(self.table(input_ids)))


def test_attention_that_no_module_shows_is_said():
    sites = find_sites(Words(), maps=("mlp", "attention"))
    assert [site.name for site in sites.weights] == ["encoder.layers.0.linear1", "encoder.layers.1.linear1"]
    assert any("no map of attention that tokens pass in encoder.layers.0" in note for note in sites.notes)


def test_unknown_maps_and_maps_beside_names_are_refused():
    model = built("gpt2")
    with pytest.raises(BrokenRuleError, match="did you mean 'attention'"):
        choose_sites(model, None, ("atention",))
    with pytest.raises(BrokenRuleError, match="must go without sites="):
        choose_sites(model, ["transformer.h.0"], ("attention",))
    with pytest.raises(BrokenRuleError, match="maps must be among mlp attention"):
        choose_sites(model, None, ())
