"""Kinds of models, tiny and trained with a scope and without: the same bits, and rows of what they have."""

import pytest
import torch
import transformers as t

from anisoscope import Scope
from anisoscope.capture.taps import Listener, Taps
from capture.strangers import VOCABULARY
from capture.test_strangers import assert_same_bits, ids

pytestmark = pytest.mark.filterwarnings("ignore")
TEXT = {"vocab_size": VOCABULARY, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
TEXT |= {
    "intermediate_size": 32,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "max_position_embeddings": 64,
}
GROUPED = TEXT | {"num_key_value_heads": 1}
IDS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}


def t5():
    sizes = {"vocab_size": VOCABULARY, "d_model": 16, "d_kv": 8, "d_ff": 32, "num_layers": 2, "num_heads": 2}
    return t.T5ForConditionalGeneration(t.T5Config(**(sizes | {"decoder_start_token_id": 0})))


def bart():
    sizes = {"vocab_size": VOCABULARY, "d_model": 16, "encoder_layers": 2, "decoder_layers": 3}
    sizes |= {"encoder_ffn_dim": 32, "decoder_ffn_dim": 32, "max_position_embeddings": 64}
    heads = {"encoder_attention_heads": 2, "decoder_attention_heads": 2}
    return t.BartForConditionalGeneration(t.BartConfig(**sizes, **heads, encoder_layerdrop=0.3, decoder_layerdrop=0.3))


def opt():
    sizes = {"ffn_dim": 32, "word_embed_proj_dim": 16, "layerdrop": 0.4, "num_hidden_layers": 3}
    return t.OPTForCausalLM(t.OPTConfig(**(TEXT | sizes)))


def jamba():
    sizes = {"num_hidden_layers": 4, "attn_layer_period": 2, "attn_layer_offset": 1, "expert_layer_period": 2}
    sizes |= {"expert_layer_offset": 1, "num_experts": 4, "mamba_d_state": 4, "mamba_dt_rank": 4}
    return t.JambaForCausalLM(t.JambaConfig(**(GROUPED | sizes), use_mamba_kernels=False))


def mamba2():
    sizes = {"num_heads": 4, "head_dim": 8, "state_size": 8, "n_groups": 1, "chunk_size": 16}
    return t.Mamba2ForCausalLM(
        t.Mamba2Config(vocab_size=VOCABULARY, hidden_size=16, num_hidden_layers=2, **sizes, **IDS)
    )


def xlm():
    return t.XLMWithLMHeadModel(t.XLMConfig(vocab_size=VOCABULARY, emb_dim=16, n_layers=2, n_heads=2))


def gpt_oss():
    sizes = {"num_local_experts": 4, "num_experts_per_tok": 2, "head_dim": 8}
    return t.GptOssForCausalLM(t.GptOssConfig(**(GROUPED | sizes)))


def funnel():
    sizes = {"block_sizes": [1, 1], "num_decoder_layers": 1, "d_model": 16, "n_head": 2, "d_head": 8, "d_inner": 32}
    return t.FunnelForMaskedLM(t.FunnelConfig(vocab_size=VOCABULARY, **sizes))


def albert():
    return t.AlbertForMaskedLM(t.AlbertConfig(**TEXT, embedding_size=8))


def bert_and_bert():
    one = t.BertConfig(**TEXT)
    two = t.BertConfig(**TEXT, is_decoder=True, add_cross_attention=True)
    config = t.EncoderDecoderConfig.from_encoder_decoder_configs(one, two)
    config.decoder_start_token_id, config.pad_token_id = 1, 0
    return t.EncoderDecoderModel(config)


def text(step):
    return {"input_ids": ids(step), "labels": ids(step)}


def pairs(step):
    """Sources that are padded on the right, and answers whose padding no label asks for."""
    source, answer = ids(step, 9), ids(100 + step, 7)
    mask = torch.ones_like(source)
    mask[:4, 6:] = 0
    answer[:3, 5:] = -100
    return {"input_ids": source.masked_fill(mask == 0, 0), "attention_mask": mask, "labels": answer}


BOTH = {"representation", "weight", "embedding", "encoder-representation", "encoder-weight"}
KINDS = {
    "t5": (t5, pairs, BOTH),
    "bart": (bart, pairs, BOTH),
    "bert and bert": (bert_and_bert, pairs, BOTH),
    "opt": (opt, text, {"representation", "weight", "embedding"}),
    "jamba": (jamba, text, {"representation", "weight", "embedding"}),
    "mamba2": (mamba2, text, {"representation", "weight", "embedding"}),
    "xlm": (xlm, text, {"representation", "weight", "embedding"}),
    "gpt-oss": (gpt_oss, text, {"representation", "embedding"}),
    "funnel": (funnel, text, {"representation", "weight", "embedding"}),
    "albert": (albert, text, {"representation", "weight", "embedding"}),
}
QUICK = ("t5", "gpt-oss")


@pytest.mark.parametrize("name", [n if n in QUICK else pytest.param(n, marks=pytest.mark.slow) for n in KINDS])
def test_kinds_train_to_the_same_bits(name):
    make, inputs, views = KINDS[name]
    rows = assert_same_bits(make, inputs)
    assert {row["view"] for row in rows if row["measure"] == "energy"} == views
    loads = [row for row in rows if row["measure"] == "router_load"]
    assert bool(loads) == (name in ("jamba", "gpt-oss"))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["vit", "wav2vec2"])
def test_vision_and_audio_encoders_are_watched(name):
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
    if name == "vit":
        make = lambda: t.ViTForImageClassification(t.ViTConfig(**sizes, image_size=16, patch_size=4))  # noqa: E731
        seen = {"pixel_values": (16, 3, 16, 16)}
        labels = torch.arange(16) % 2
    else:
        layers = {"conv_dim": (8, 8), "conv_stride": (5, 4), "conv_kernel": (10, 8), "num_feat_extract_layers": 2}
        config = t.Wav2Vec2Config(**sizes, **layers, vocab_size=12, layerdrop=0.3, num_conv_pos_embeddings=4)
        config.num_conv_pos_embedding_groups, config.mask_time_prob, config.apply_spec_augment = 2, 0.0, False
        make = lambda: t.Wav2Vec2ForCTC(config)  # noqa: E731
        seen = {"input_values": (16, 800)}
        labels = torch.randint(1, 12, (16, 4))

    def inputs(step):
        generator = torch.Generator().manual_seed(step)
        return {key: torch.randn(shape, generator=generator) for key, shape in seen.items()} | {"labels": labels}

    rows = assert_same_bits(make, inputs)
    assert {row["view"] for row in rows if row["measure"] == "energy"} == {"representation", "weight"}


class Everything(Listener):
    """What passes, by stack and layer."""

    def __init__(self):
        self.seen = {}

    def activation(self, at, x_BTD, batch):
        self.seen[batch.encoder, at.layer] = x_BTD.clone()
        self.batches = getattr(self, "batches", {}) | {batch.encoder: batch}

    def gradient(self, at, g_BTD, batch):
        self.seen[batch.encoder, at.layer, "gradient"] = g_BTD.clone()


def test_both_stacks_of_an_encoder_decoder_are_what_transformers_says():
    """Against `output_hidden_states` of the library, whose last state is after the norm."""
    torch.manual_seed(0)
    model, listener = t5().eval(), Everything()
    given = pairs(0)
    from anisoscope.capture.sites import find_sites

    with Taps(model, find_sites(model), listener) as taps:
        output = model(**given, output_hidden_states=True)
        output.loss.backward()
        taps.require_heard()
    for encoder, states in ((True, output.encoder_hidden_states), (False, output.decoder_hidden_states)):
        for layer in (0, 1):
            assert torch.equal(listener.seen[encoder, layer], states[layer])
            assert listener.seen[encoder, layer, "gradient"].abs().sum() > 0
        assert (encoder, 2) in listener.seen
    decoder, encoder = listener.batches[False], listener.batches[True]
    assert torch.equal(encoder.tokens, given["input_ids"])
    shifted = torch.cat([torch.zeros(16, 1, dtype=torch.int64), given["labels"][:, :-1].clamp_min(0)], 1)
    assert torch.equal(decoder.tokens, shifted)
    assert torch.equal(decoder.mask, given["labels"] != -100)


def test_folds_of_both_stacks_go_by_the_source(monkeypatch):
    """Pairs of one source are in one fold in both stacks, and one unit; the answers do not matter."""
    torch.manual_seed(0)
    model = t5()
    scope = Scope(model, steps=1, rank=4, resamples=19, strict=True)
    taken = []
    monkeypatch.setattr(scope, "_hand_over", taken.append)
    given = pairs(0)
    given["input_ids"][8:], given["attention_mask"][8:] = given["input_ids"][:8], given["attention_mask"][:8]
    with scope.step():
        model(**given).loss.backward()
    scope._settle()
    (seen,) = [one for one in taken if one is not None][:1]
    units = {}
    for name, kept in seen.statistics.items():
        if name.part == "kept" and name.tensor == "activations" and "representation" in name.view and name.layer == 1:
            units[name.view, name.fold] = set(kept.sample().sequences.tolist())
    for fold in (0, 1):
        assert units["representation", fold] == units["encoder-representation", fold]
    assert units["representation", 0].isdisjoint(units["representation", 1])
    assert len(units["representation", 0] | units["representation", 1]) == 8


def test_other_labels_leave_what_the_decoder_reads():
    """The `targets` null of a model that makes its decoder's ids from the labels."""
    torch.manual_seed(0)
    model = t5().eval()
    read = []
    model.decoder.register_forward_pre_hook(lambda _, args, kwargs: read.append(kwargs["input_ids"]), with_kwargs=True)
    scope = Scope(model, steps=1, rank=4, resamples=19, strict=True, targets=True)
    with scope.step():
        model(**pairs(0)).loss.backward()
    rows = scope.rows()
    scope.close()
    assert len(read) == 3
    assert all(torch.equal(one, read[0]) for one in read)
    judged = {row["view"] for row in rows if row["null"] == "targets" and row["measure"] == "enrichment"}
    assert judged == BOTH
