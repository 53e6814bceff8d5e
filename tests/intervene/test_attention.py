"""Another attention in a finished model: against masks given by hand and tokens passed alone."""

import pytest
import torch

from anisoscope.capture.sites import find_sites
from anisoscope.errors import AnisoscopeError
from anisoscope.intervene.attention import attention_changed
from anisoscope.models.catalogue import CATALOGUE
from models.snapshots import VOCABULARY, tiny

ROTARY = ("llama", "gpt_neox", "falcon", "gptj", "olmo")  # a position counts only against another


def tokens(n=3, length=9):
    return torch.randint(4, VOCABULARY, (n, length), generator=torch.Generator().manual_seed(1))


def logits(model, ids, mask=None):
    with torch.no_grad():
        return model(input_ids=ids, attention_mask=torch.ones_like(ids) if mask is None else mask).logits


def changed(model, attention, *given):
    with attention_changed(model, find_sites(model), attention):
        return logits(model, *given)


@pytest.mark.parametrize("kind", sorted({entry.model_type for entry in CATALOGUE}))
def test_every_architecture_of_the_literature_obeys_and_is_as_before_afterwards(kind):
    model = tiny(kind).eval()
    before = logits(model, tokens())
    for attention in ("causal", "bidirectional", "none"):
        found = changed(model, attention, tokens())
        assert torch.isfinite(found).all()
        own = "bidirectional" if "bert" in kind else "causal"
        assert torch.allclose(found, before, atol=1e-5) == (attention == own)
    assert torch.equal(changed(model, "usual", tokens()), before)
    assert torch.equal(logits(model, tokens()), before)


@pytest.mark.parametrize("kind", ROTARY)
def test_switched_off_a_token_is_what_it_is_alone(kind):
    model, ids = tiny(kind).eval(), tokens()
    alone = torch.cat([logits(model, ids[:, k : k + 1]) for k in range(ids.shape[1])], 1)
    assert torch.allclose(changed(model, "none", ids), alone, atol=1e-5)


@pytest.mark.parametrize(
    ("kind", "attention"), [("llama", "bidirectional"), ("gpt2", "bidirectional"), ("bert", "causal")]
)
def test_masks_are_those_that_a_user_would_give(kind, attention):
    """transformers takes a mask of four axes as it is; padding stays unseen either way."""
    model, ids = tiny(kind).eval(), tokens()
    mask = torch.ones_like(ids)
    mask[0, 6:] = 0
    seen = mask.bool()[:, None, None, :].expand(-1, 1, 9, -1)
    seen = (seen.tril() if attention == "causal" else seen) | torch.eye(9, dtype=torch.bool)
    by_hand = logits(model, ids, torch.zeros(seen.shape).masked_fill(~seen, torch.finfo(torch.float32).min))
    found = changed(model, attention, ids, mask)
    assert torch.allclose(found[mask.bool()], by_hand[mask.bool()], atol=1e-5)
    if kind == "llama":  # whatever stands in the padding
        other = ids.clone()
        other[0, 6:] = 5
        assert torch.equal(changed(model, attention, other, mask)[0, :6], found[0, :6])


def test_what_cannot_be_changed_is_refused():
    with pytest.raises(AnisoscopeError, match="holds positions too"):
        changed(tiny("falcon", alibi=True).eval(), "none", tokens())
    model = tiny("llama").eval()
    layer = model.model.layers[0]

    class Deaf(torch.nn.Module):
        def forward(self, hidden_states, **kwargs):
            return layer(hidden_states, **kwargs)

    sites = find_sites(model)
    for site in sites.blocks:
        if site.module is layer:
            object.__setattr__(site, "module", Deaf())
    with pytest.raises(AnisoscopeError, match="takes no attention_mask"), attention_changed(model, sites, "none"):
        pass
    stubborn = tiny("llama").eval()
    known = find_sites(stubborn)
    for block in stubborn.model.layers:
        block.self_attn.register_forward_pre_hook(
            lambda module, args, kwargs: (args, kwargs | {"attention_mask": None}), with_kwargs=True
        )
    with pytest.raises(AnisoscopeError, match="does not obey none"), attention_changed(stubborn, known, "none"):
        pass
    assert not any(block._forward_pre_hooks for block in stubborn.model.layers)
