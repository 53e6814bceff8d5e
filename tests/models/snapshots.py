"""Tiny stand-ins of known architectures, laid out as the hub lays its cache; made here: no weights, no network."""

import hashlib
import json
import os
import random
import string
import tempfile
from pathlib import Path
from typing import Any

import pytest
import torch

LAYERS, WIDTH = 2, 16
SPECIALS = ("<pad>", "<mask>", "<end>", "<unk>")
LETTERS = " " + string.ascii_letters + ".,;:!?'"
VOCABULARY = len(SPECIALS) + len(LETTERS)
ENCODERS = ("bert", "roberta", "albert", "modernbert", "eurobert")
_SIZES = {"hidden_size": WIDTH, "num_hidden_layers": LAYERS, "num_attention_heads": 2}
_GPT2_SIZES = {"n_embd": WIDTH, "n_layer": LAYERS, "n_head": 2, "n_positions": 66}
_OPTIONS = {
    "albert": {**_SIZES, "intermediate_size": 32, "embedding_size": 8},
    "bert": {**_SIZES, "intermediate_size": 32},
    "eurobert": {**_SIZES, "intermediate_size": 40, "num_key_value_heads": 1},
    "falcon": {**_SIZES, "new_decoder_architecture": False, "multi_query": True, "alibi": False},
    "gpt2": _GPT2_SIZES,
    "gpt_neox": {**_SIZES, "intermediate_size": 32},
    "gptj": {**_GPT2_SIZES, "rotary_dim": 4},
    "llama": {**_SIZES, "intermediate_size": 40, "num_key_value_heads": 1},
    "modernbert": {**_SIZES, "intermediate_size": 24, "cls_token_id": 1, "sep_token_id": 2},
    "olmo": {**_SIZES, "intermediate_size": 40},
    "opt": {**_SIZES, "ffn_dim": 32, "word_embed_proj_dim": WIDTH},
    "roberta": {**_SIZES, "intermediate_size": 32},
}


def tiny(model_type, *, seed=0, head=True, **extra) -> Any:
    """A model of two layers with random weights; ``head=False`` for the bare model, without its language head."""
    import transformers

    if model_type not in transformers.CONFIG_MAPPING:
        pytest.skip(f"transformers {transformers.__version__} has no {model_type}")
    options = _OPTIONS[model_type] | {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2} | extra
    if model_type not in ("gpt2", "gptj"):
        options.setdefault("max_position_embeddings", 66)
    config = transformers.CONFIG_MAPPING[model_type](**{"vocab_size": VOCABULARY, **options})
    language = transformers.AutoModelForMaskedLM if model_type in ENCODERS else transformers.AutoModelForCausalLM
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = (language if head else transformers.AutoModel).from_config(config).eval()
        with torch.no_grad():
            for part in model.parameters():  # norms and biases too, which are all the same at birth
                part.add_(0.02 * torch.randn_like(part))
    return model


def save(model, folder, *, tokeniser=True, pickle=False, **configuration):
    """Save as transformers does; ``pickle`` as it did before safetensors; ``configuration`` overwrites config.json."""
    folder = Path(folder)
    model.save_pretrained(folder)
    if pickle:
        (folder / "model.safetensors").unlink()
        torch.save(model.state_dict(), folder / "pytorch_model.bin")
    if configuration:
        told = json.loads((folder / "config.json").read_text()) | configuration
        (folder / "config.json").write_text(
            json.dumps({key: value for key, value in told.items() if value is not None})
        )
    if tokeniser:
        save_tokeniser(folder)
    return folder


def save_tokeniser(folder):
    """A tokeniser of single letters, and which of its tokens pads, masks, ends and is unknown."""
    import tokenizers

    ids = {token: number for number, token in enumerate((*SPECIALS, *LETTERS))}
    backend = tokenizers.Tokenizer(tokenizers.models.WordLevel(ids, unk_token="<unk>"))
    backend.pre_tokenizer = tokenizers.pre_tokenizers.Split(tokenizers.Regex(r"[\s\S]"), "isolated")
    backend.decoder = tokenizers.decoders.Fuse()
    backend.add_special_tokens(list(SPECIALS))
    backend.save(str(Path(folder) / "tokenizer.json"))
    roles = dict(zip(("pad_token", "mask_token", "eos_token", "unk_token"), SPECIALS, strict=True))
    (Path(folder) / "tokenizer_config.json").write_text(json.dumps(roles))


def cache_model(cache, repository, model, *, revision="main", **options):
    """Put a model into a cache as a download of the hub would: blobs by hash, a ref, a snapshot of links."""
    root = Path(cache) / f"models--{repository.replace('/', '--')}"
    commit = hashlib.sha1(f"{repository}@{revision}".encode()).hexdigest()
    snapshot = root / "snapshots" / commit
    snapshot.mkdir(parents=True, exist_ok=True)
    (root / "blobs").mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        for file in sorted(save(model, folder, **options).iterdir()):
            content = file.read_bytes()
            large = file.suffix in (".safetensors", ".bin")  # kept apart by git-lfs, and named by another hash
            name = hashlib.sha256(content) if large else hashlib.sha1(b"blob %d\0" % len(content) + content)
            (root / "blobs" / name.hexdigest()).write_bytes(content)
            (snapshot / file.name).unlink(missing_ok=True)
            (snapshot / file.name).symlink_to(os.path.join("..", "..", "blobs", name.hexdigest()))
    ref = root / "refs" / revision
    ref.parent.mkdir(parents=True, exist_ok=True)
    ref.write_text(commit)
    return snapshot


def offline(monkeypatch, cache=None):
    """No network for the hub's library, and its cache in ``cache`` if one is given."""
    import huggingface_hub.constants

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    if cache is not None:
        monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(cache))


def batch(objective="causal", *, seed=0):
    """Tokens with labels; of a masked model some are hidden, and asked for."""
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(len(SPECIALS), VOCABULARY, (2, 12), generator=generator)
    labels, mask = ids.clone(), torch.ones_like(ids)
    if objective == "masked":
        hidden = torch.rand(ids.shape, generator=generator) < 0.3
        hidden[0, 0] = True
        ids, labels = ids.masked_fill(hidden, 1), labels.masked_fill(~hidden, -100)
    return {"input_ids": ids, "attention_mask": mask, "labels": labels}


def write_gguf(model, file):
    """A Llama as llama.cpp's converter writes it, in float32, with a tokeniser of letters and one pair of them."""
    import gguf

    config, weights = model.config, model.state_dict()
    writer = gguf.GGUFWriter(str(file), "llama")
    writer.add_name("small")
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_dimension_count(config.hidden_size // config.num_attention_heads)
    writer.add_vocab_size(config.vocab_size)
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list([*SPECIALS, "Ġ", *LETTERS[1:-1], "ab"])
    writer.add_token_types([gguf.TokenType.CONTROL] * len(SPECIALS) + [gguf.TokenType.NORMAL] * len(LETTERS))
    writer.add_token_merges(["a b"])
    writer.add_bos_token_id(2)
    writer.add_eos_token_id(2)
    writer.add_pad_token_id(0)
    writer.add_unk_token_id(3)
    names = {"embed_tokens": "token_embd", "norm": "output_norm", "input_layernorm": "attn_norm"}
    names |= {"post_attention_layernorm": "ffn_norm", "o_proj": "attn_output"}
    names |= {f"{part}_proj": f"attn_{part}" for part in "qkv"}
    names |= {f"{part}_proj": f"ffn_{part}" for part in ("gate", "up", "down")}
    for name, tensor in weights.items():
        parts = name.removeprefix("model.").split(".")
        if name == "lm_head.weight":
            called = "output.weight"
        elif parts[0] == "layers":
            called = f"blk.{parts[1]}.{names[parts[-2]]}.weight"
        else:
            called = f"{names[parts[0]]}.weight"
        heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}.get(parts[-2])
        if heads:  # llama.cpp rotates neighbours, transformers halves
            tensor = tensor.view(heads, 2, -1, tensor.shape[1]).transpose(1, 2).reshape(tensor.shape)
        if called != "output.weight" or not config.tie_word_embeddings:
            writer.add_tensor(called, tensor.contiguous().numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return Path(file)


def letters(folder, documents=60, size=600):
    """Text files that the tokeniser of single letters reads, as a glob."""
    drawn = random.Random(0)
    for number in range(documents):
        (folder / f"{number}.txt").write_text("".join(drawn.choices(LETTERS, k=size)))
    return f"{folder}/*.txt"
