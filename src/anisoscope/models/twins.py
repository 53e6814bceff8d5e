"""A decoder and an encoder from scratch: strict twins, or a pair of known architectures in matched sizes.

Letters: B sequences, T positions, V vocabulary.

Strict twins are one architecture (GPT-NeoX blocks, attention and MLP one after the other as in most models) with the
same weights at the start. They differ in two things: the
decoder's attention is causal and it learns the next token; the encoder's is not and it learns masked tokens.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, cast

import torch
from torch import Tensor, nn

from anisoscope.errors import AnisoscopeError, broken
from anisoscope.models.mask_objectives import USUAL, require_cell

try:
    from transformers import (
        AutoConfig,
        AutoModelForCausalLM,
        AutoModelForMaskedLM,
        BertConfig,
        BertForMaskedLM,
        GPTNeoXConfig,
        GPTNeoXForCausalLM,
        ModernBertConfig,
        ModernBertForMaskedLM,
    )
    from transformers.modeling_outputs import MaskedLMOutput
    from transformers.models.gpt_neox.modeling_gpt_neox import GPTNeoXModel, GPTNeoXPreTrainedModel
except ImportError as error:
    raise AnisoscopeError(
        'models need transformers: pip install "anisoscope[models]", or "anisoscope[train]" to train them'
    ) from error

Role = Literal["decoder", "encoder"]
Pairing = Literal["twin", "neox-bert", "neox-modernbert"]
ROLES: tuple[Role, ...] = ("decoder", "encoder")
IGNORED = -100


@dataclass(frozen=True, slots=True)
class ModelShape:
    """The sizes that both models of a pair share."""

    layers: int
    width: int
    heads: int
    vocabulary: int
    length: int
    pad_id: int = 0
    dropout: float = 0.0

    def __post_init__(self) -> None:
        if self.width % self.heads:
            raise broken(
                "width must be a multiple of heads", f"{self.width} and {self.heads}", "change --width or --heads"
            )


class TwinConfig(GPTNeoXConfig):
    """The configuration of a twin; ``causal`` says which of the two it is.

    Of a twin that is neither, ``causal`` says that it is asked for the next token, and ``attention`` what it sees.
    """

    model_type = "anisoscope_twin"


class Twin(GPTNeoXPreTrainedModel):
    """GPT-NeoX blocks whose attention is causal or not, as ``config.causal`` says.

    A causal twin is asked for the next token (labels are shifted inside, as transformers' decoders do); the other for
    the labels where they are. The loss is the mean over labelled positions; ``IGNORED`` is no label. With
    ``config.attention`` the mask is chosen apart from the objective.
    """

    config_class = TwinConfig

    def __init__(self, config: TwinConfig) -> None:
        super().__init__(config)
        self.causal = bool(getattr(config, "causal", True))
        self.attention = str(getattr(config, "attention", None) or ("causal" if self.causal else "bidirectional"))
        self.shifted = self.causal
        self.gpt_neox = GPTNeoXModel(config)
        self.output = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.post_init()

    def get_output_embeddings(self) -> nn.Module:
        """The map to the vocabulary, not tied to the embedding."""
        return self.output

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor | None = None, labels: Tensor | None = None
    ) -> MaskedLMOutput:
        """Logits, and the loss where labels are given."""
        mask_BT = torch.ones_like(input_ids) if attention_mask is None else attention_mask
        seen_BTT = mask_BT.bool()[:, None, None, :].expand(-1, 1, input_ids.shape[1], -1)
        prefix_BT = self.prefix(mask_BT)
        if self.attention == "prefix":
            seen_BTT = seen_BTT & (seen_BTT.tril() | prefix_BT[:, None, None, :])
        elif self.attention == "causal":
            seen_BTT = seen_BTT.tril()
        elif self.attention == "none":
            seen_BTT = torch.zeros_like(seen_BTT)
        # A padded row of queries that sees nothing would be NaN: it sees itself, and counts for nothing.
        seen_BTT = seen_BTT | torch.eye(input_ids.shape[1], dtype=torch.bool, device=input_ids.device)
        hidden = self.gpt_neox(input_ids=input_ids, attention_mask=seen_BTT, use_cache=False).last_hidden_state
        logits_BTV = self.output(hidden)
        loss: Any = None
        if labels is not None:
            asked, given = self.asked(logits_BTV, labels, prefix_BT)
            loss = nn.functional.cross_entropy(
                asked.flatten(0, 1).float(), given.flatten().long(), ignore_index=IGNORED
            )
        return MaskedLMOutput(loss=loss, logits=cast(Any, logits_BTV))

    def prefix(self, mask_BT: Tensor) -> Tensor:
        """Which positions every other one sees: the first half of the tokens of each sequence, or none at all."""
        if self.attention != "prefix":
            return torch.zeros_like(mask_BT, dtype=torch.bool)
        return mask_BT.bool() & (2 * mask_BT.long().cumsum(1) <= mask_BT.long().sum(1, keepdim=True))

    def asked(self, logits_BTV: Tensor, labels_BT: Tensor, prefix_BT: Tensor) -> tuple[Tensor, Tensor]:
        """Logits and the labels they are asked for; a token that others see before it comes is not asked for."""
        given_BT = labels_BT.masked_fill(prefix_BT, IGNORED)
        return (logits_BTV[:, :-1], given_BT[:, 1:]) if self.shifted else (logits_BTV, given_BT)


# So that a twin that was saved is loaded like any other model.
AutoConfig.register(TwinConfig.model_type, TwinConfig, exist_ok=True)
AutoModelForCausalLM.register(TwinConfig, Twin, exist_ok=True)
AutoModelForMaskedLM.register(TwinConfig, Twin, exist_ok=True)


def build(
    pairing: Pairing,
    role: Role,
    shape: ModelShape,
    *,
    seed: int,
    attention: str | None = None,
    objective: str | None = None,
) -> Any:
    """One model of a pair with random weights; embedding and output are not tied.

    ``attention`` and ``objective`` make a twin that is neither of the pair; its weights are those of the pair's.
    """
    usual = USUAL[role]
    cell = attention or usual[0], objective or usual[1]
    require_cell(*cell)
    if pairing != "twin" and cell != usual:
        raise broken("mask and objective can be chosen for twins", pairing, "use twin")
    torch.manual_seed(seed)
    if pairing == "twin" or role == "decoder":
        given: dict[str, Any] = {
            "hidden_size": shape.width,
            "num_hidden_layers": shape.layers,
            "num_attention_heads": shape.heads,
            "intermediate_size": 4 * shape.width,
            "vocab_size": shape.vocabulary,
            "max_position_embeddings": shape.length,
            "hidden_dropout": shape.dropout,
            "attention_dropout": shape.dropout,
            "tie_word_embeddings": False,
            "use_cache": False,
            "use_parallel_residual": pairing != "twin",
            "bos_token_id": None,
            "eos_token_id": None,
            "pad_token_id": shape.pad_id,
            "attn_implementation": "sdpa",
        }
        if pairing != "twin":
            return GPTNeoXForCausalLM(GPTNeoXConfig(**given))
        config = TwinConfig(**given)
        config.causal = role == "decoder"
        if cell != usual:
            config.causal, config.attention = cell[1] == "next-token", cell[0]
        return Twin(config)
    common: dict[str, Any] = {
        "hidden_size": shape.width,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "intermediate_size": 4 * shape.width if pairing == "neox-bert" else 8 * shape.width // 3,
        "vocab_size": shape.vocabulary,
        "max_position_embeddings": shape.length,
        "pad_token_id": shape.pad_id,
        "tie_word_embeddings": False,
        "attn_implementation": "sdpa",
    }
    if pairing == "neox-bert":
        drop: dict[str, Any] = {"hidden_dropout_prob": shape.dropout, "attention_probs_dropout_prob": shape.dropout}
        return BertForMaskedLM(BertConfig(**common, **drop, type_vocab_size=1))
    drop = {"embedding_dropout": shape.dropout, "mlp_dropout": shape.dropout, "attention_dropout": shape.dropout}
    ids: dict[str, Any] = dict.fromkeys(("bos_token_id", "eos_token_id", "cls_token_id", "sep_token_id"))
    return ModernBertForMaskedLM(ModernBertConfig(**common, **drop, **ids))
