"""Writes docs/models.md, the sites of every language model of the installed transformers: ``make models``.

Every class is built from the defaults of its configuration, with four layers where it can be, on the meta device: sites
are found without weights.
"""

import os
import sys
import warnings
from collections import Counter
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")

import torch
import transformers
from transformers.models.auto import configuration_auto, modeling_auto

from anisoscope.capture.sites import find_sites

HERE = Path(__file__).parent
LAYERS = 4
_MAPPINGS = {
    "causal": modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
    "masked": modeling_auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES,
    "seq2seq": modeling_auto.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES,
}
_DEPTHS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers", "encoder_layers", "decoder_layers")
_DEPTHS += ("num_decoder_layers", "num_encoder_layers", "layers", "num_blocks")
_BY_LAYER = (
    "layer_types",
    "mlp_layer_types",
    "layers_block_type",
    "block_types",
    "attention_layers",
    "mlp_only_layers",
    "moe_layers",
    "hybrid_layer_ids",
    "no_rope_layers",
    "layer_block_types",
)
_OPTIONS = {  # what some configurations leave open
    "DeepseekV2Config": {"num_experts_per_tok": 2},
    "Dots1Config": {"n_routed_experts": 8, "n_shared_experts": 1, "num_experts_per_tok": 2},
    "EsmConfig": {"vocab_size": 33, "pad_token_id": 1},
    "GraniteMoeHybridConfig": {"layer_types": ["mamba", "attention", "mamba", "attention"], "num_hidden_layers": 4},
    "HunYuanDenseV1Config": {"head_dim": 64},
    "HunYuanMoEV1Config": {"head_dim": 64},
    "Lfm2MoeConfig": {"layer_types": ["conv", "full_attention", "conv", "full_attention"], "num_hidden_layers": 4},
    "MinistralConfig": {"head_dim": 64},
    "NemotronConfig": {"num_key_value_heads": 48},
    "ReformerModelWithLMHead": {"is_decoder": True},
    "xLSTMConfig": {"num_hidden_layers": 4, "num_blocks": 4},
    "Gemma4AssistantConfig": {"hidden_size_per_layer_input": 0},
}

INTRODUCTION = """# Models

What a [scope](scope.md) watches in every causal, masked and sequence-to-sequence language model of transformers
{version}: {known} of {all} pairs of a class and a configuration, each built from the defaults of its configuration
(with four layers where it can be) on the meta device. Made by `make models`; a test builds them all again and
compares (`make slow`), another one a sample of kinds (`make test`). For any model, also one that is not here,
`anisoscope doctor MODEL` and `scope.sites` say what was chosen and why.

**Blocks** are the modules that the residual stream passes in one forward pass of a few made-up tokens. That pass is
made by a *shadow* of the model, at construction: a copy of its modules with none of its numbers (every parameter is
a single zero seen in its shape, and products with it are not computed), on the host. The model itself is not run,
and its weights, buffers, modes, hooks, random generators and attributes stay as they are. A chain of calls carries
the stream if nothing gets round any of them; attention and MLP of a block do not, for the skip connections go round
them. A model whose shadow does not run (a forward that takes more than ids, a library of its own that wants a GPU)
is watched at its list of modules with the most parameters, and `scope.sites.how` says so.

**Views**: `representation` has a site a block, `weight` the first map of its MLP. Without an MLP it is the first
map that reads the residual stream, and a note names it. Experts see routed tokens, so a block with experts has no
site in the weight view, with a note; how their router shares out tokens is in rows `router_load`. An
encoder-decoder has `encoder-representation` and `encoder-weight` beside the views of its decoder. Where a block has
another number of positions than the text has tokens (pooling, windows that are padded up, prompts, latents) it is
left out in that step, and a row says so. Blocks that hold several streams a token are left out of the
representation view.

Vision and audio encoders (ViT, wav2vec 2.0) are watched too; they are not in this table."""


def classes():
    """Pairs of a class and a configuration, with what kind of model they are: every one that the library names."""
    found = {}
    for kind, mapping in _MAPPINGS.items():
        for model_type, names in mapping.items():
            config = configuration_auto.CONFIG_MAPPING_NAMES.get(model_type)  # pyright: ignore[reportPrivateImportUsage]
            for name in (names,) if isinstance(names, str) else names:
                if config is not None:
                    found.setdefault((name, config), kind)
    return dict(sorted(found.items()))


def shallow(config, depth=0):
    """The configuration with few layers, and those of its parts."""
    for name, value in list(vars(config).items()):
        if hasattr(value, "model_type") and hasattr(value, "to_dict") and depth < 3:
            shallow(value, depth + 1)
        if name in _BY_LAYER and isinstance(value, list | tuple) and len(value) > LAYERS:
            setattr(config, name, type(value)(value[:LAYERS]))
    for name in _DEPTHS:
        value = getattr(config, name, None)
        if isinstance(value, int) and not isinstance(value, bool) and value > LAYERS:
            setattr(config, name, LAYERS)
    return config


def build(name, config):
    """The model on the meta device; raises what its library raises where its defaults make none."""
    made, options = getattr(transformers, config), _OPTIONS.get(config, {}) | _OPTIONS.get(name, {})
    attempts = [lambda: shallow(made(**options)), lambda: made(**options), lambda: made(**options).get_text_config()]
    attempts.append(lambda: made(**options).decoder)
    trouble: Exception | None = None
    for attempt in attempts:
        try:
            with torch.device("meta"), torch.random.fork_rng(devices=[]):
                model = getattr(transformers, name)(attempt())
        except Exception as error:
            trouble = trouble or error
        else:
            if hasattr(model, "set_default_language") and getattr(model.config, "languages", None):
                model.set_default_language(next(iter(model.config.languages)))
            return model
    assert trouble is not None, "some attempt was made"
    raise trouble


def line(name, config, sites):
    """One row of the table."""
    views = Counter(s.view for s in sites.weights)
    views |= Counter(s.view for s in sites.blocks if s.name not in sites.left_out)
    if sites.embedding is not None:
        views["embedding"] = 1
    if sites.routers:
        views["routers"] = len(sites.routers)
    chains = {}
    for site in sites.blocks:
        chains.setdefault(site.encoder, []).append(site.name)
    ends = [dict.fromkeys((names[0], names[-1])) for names in chains.values()]
    blocks = "; ".join(" … ".join(f"`{name}`" for name in pair) for pair in ends)
    shown = ", ".join(f"{view} {count}" for view, count in sorted(views.items()))
    weight = f"`{sites.weights[0].name}`" if sites.weights else "none"
    how = () if sites.how.startswith("traced") else (sites.how,)
    return [f"{name} ({config})", blocks, weight, shown, "; ".join((*how, *sites.notes)).replace("|", "/")]


def described(name, config):
    """The row of a class, or why there is none."""
    try:
        model = build(name, config)
    except Exception as error:
        said = (str(error).strip().splitlines() or [""])[0].strip()[:120].replace("|", "/")
        return [f"{name} ({config})", "", "", "", f"{type(error).__name__}: {said}"]
    return line(name, config, find_sites(model))


def row(cells):
    return "| " + " | ".join(cells) + " |"


def page(rows):
    known = [cells for cells in rows if cells[1]]
    unbuilt = [cells for cells in rows if not cells[1]]
    heads = ["class (configuration)", "blocks, first and last", "first map, weight view", "sites by view", "notes"]
    counts = INTRODUCTION.format(version=transformers.__version__, known=len(known), all=len(rows))
    parts = [counts, "\n".join(map(row, [heads, ["---"] * len(heads), *known]))]
    parts += ["## Not built", "Their defaults make no model; what they say is in the second column."]
    lines = [["class (configuration)", "why"], ["---"] * 2, *([cells[0], cells[4]] for cells in unbuilt)]
    parts.append("\n".join(map(row, lines)))
    return "\n\n".join(parts) + "\n"


def main():
    rows = []
    every = classes()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for number, (name, config) in enumerate(every, 1):
            if sys.stderr.isatty():
                print(f"\r{number} of {len(every)} {name:60}", end="", file=sys.stderr, flush=True)
            rows.append(described(name, config))
    (HERE / "models.md").write_text(page(rows), encoding="utf-8")
    print(f"\n{HERE / 'models.md'}", file=sys.stderr)


if __name__ == "__main__":
    main()
