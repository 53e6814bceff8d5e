"""Tiny random models of the families that the taps must fit, made here: no weights, no network."""

from typing import Any

import torch
from torch import nn

WIDTH, VOCABULARY, LAYERS = 16, 40, 3


class Plain(nn.Module):
    """A plain PyTorch encoder with a head, for people who use no transformers library."""

    def __init__(self, batch_first=True):
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, WIDTH)
        layer = nn.TransformerEncoderLayer(WIDTH, 2, 32, dropout=0.1, batch_first=batch_first)
        self.encoder = nn.TransformerEncoder(layer, LAYERS, enable_nested_tensor=False)
        self.head = nn.Linear(WIDTH, VOCABULARY)
        self.batch_first = batch_first

    def forward(self, input_ids, attention_mask=None, labels=None):
        hidden = self.embed(input_ids)
        hidden = self.encoder(hidden) if self.batch_first else self.encoder(hidden.transpose(0, 1)).transpose(0, 1)
        logits = self.head(hidden)
        loss = None
        if labels is not None:
            loss = nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=-100)
        return type("Output", (), {"loss": loss, "logits": logits})


def _transformers(name, **extra):
    import transformers as t

    sizes = {
        "gpt2": (t.GPT2Config, {"n_embd": WIDTH, "n_layer": LAYERS, "n_head": 2}),
        "gptj": (t.GPTJConfig, {"n_embd": WIDTH, "n_layer": LAYERS, "n_head": 2, "rotary_dim": 4}),
        "gpt_neox": (t.GPTNeoXConfig, {"intermediate_size": 32}),
        "opt": (t.OPTConfig, {"ffn_dim": 32, "word_embed_proj_dim": WIDTH}),
        "llama": (t.LlamaConfig, {"intermediate_size": 40, "num_key_value_heads": 1}),
        "falcon": (t.FalconConfig, {"new_decoder_architecture": False, "multi_query": True, "alibi": False}),
        "olmo2": (t.Olmo2Config, {"intermediate_size": 40}),
        "bert": (t.BertConfig, {"intermediate_size": 32}),
        "roberta": (t.RobertaConfig, {"intermediate_size": 32}),
        "albert": (t.AlbertConfig, {"intermediate_size": 32, "embedding_size": 8}),
        "modernbert": (t.ModernBertConfig, {"intermediate_size": 24, "reference_compile": False}),
        "eurobert": (getattr(t, "EuroBertConfig", None), {"intermediate_size": 40, "num_key_value_heads": 1}),
    }
    kind, options = sizes[name]
    if kind is None:
        return None
    common = {"hidden_size": WIDTH, "num_hidden_layers": LAYERS, "num_attention_heads": 2}
    if name in ("gpt2", "gptj"):
        common = {}
    ids = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
    if name == "modernbert":
        ids |= {"cls_token_id": 1, "sep_token_id": 2}
    config = kind(vocab_size=VOCABULARY, max_position_embeddings=64, **common, **options, **ids, **extra)
    config._attn_implementation = "eager"
    return (t.AutoModelForMaskedLM if name in ENCODERS else t.AutoModelForCausalLM).from_config(config)


ENCODERS = ("bert", "roberta", "albert", "modernbert", "eurobert")
FAMILIES = ("gpt2", "gptj", "gpt_neox", "opt", "llama", "falcon", "olmo2", *ENCODERS, "plain", "plain-positions-first")
EXPECTED_MAP = {
    "gpt2": "mlp.c_fc",
    "gptj": "mlp.fc_in",
    "gpt_neox": "mlp.dense_h_to_4h",
    "opt": "fc1",
    "llama": "mlp.gate_proj",
    "falcon": "mlp.dense_h_to_4h",
    "olmo2": "mlp.gate_proj",
    "bert": "intermediate.dense",
    "roberta": "intermediate.dense",
    "albert": "albert_layers.0.ffn",
    "modernbert": "mlp.Wi",
    "eurobert": "mlp.gate_proj",
    "plain": "linear1",
    "plain-positions-first": "linear1",
}


def build(name, seed=0) -> Any:  # of whichever class
    torch.manual_seed(seed)
    if name.startswith("plain"):
        return Plain(batch_first=name == "plain")
    return _transformers(name)


def batch(seed=0, sequences=4, length=9, padded=True):
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(3, VOCABULARY, (sequences, length), generator=generator)
    mask = torch.ones_like(ids)
    if padded:
        mask[1, 6:] = 0
        mask[2, 4:] = 0
    ids = torch.where(mask.bool(), ids, 0)
    return {"input_ids": ids, "attention_mask": mask, "labels": torch.where(mask.bool(), ids, -100)}
