"""Language models written by hand, each with something that a search for blocks could trip over."""

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

WIDTH, VOCABULARY, DEPTH = 16, 40, 3


class Attention(nn.Module):
    def __init__(self, width=WIDTH):
        super().__init__()
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x):
        q, k, v = self.qkv(x)[:, :, None].chunk(3, -1)
        q, k, v = (part.transpose(1, 2) for part in (q, k, v))
        return self.proj(nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.attn = Attention()
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x):
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))


class Fused(nn.Module):
    """Attention and MLP side by side, out of one map and back into one."""

    def __init__(self):
        super().__init__()
        self.norm, self.into = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 3 * WIDTH + 4 * WIDTH)
        self.out = nn.Linear(WIDTH + 4 * WIDTH, WIDTH)

    def forward(self, x):
        q, k, v, h = self.into(self.norm(x)).split([WIDTH, WIDTH, WIDTH, 4 * WIDTH], -1)
        a = nn.functional.scaled_dot_product_attention(q[:, None], k[:, None], v[:, None], is_causal=True)[:, 0]
        return x + self.out(torch.cat([a, nn.functional.gelu(h)], -1))


class Adapted(nn.Module):
    """A linear map with a low-rank adapter beside it; what it wraps is frozen."""

    def __init__(self, base, rank=2):
        super().__init__()
        self.base, self.down = base.requires_grad_(False), nn.Linear(base.in_features, rank, bias=False)
        self.up = nn.Linear(rank, base.out_features, bias=False)

    def forward(self, x):
        return self.base(x) + self.up(self.down(x))


class Expert(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x):
        return self.down(nn.functional.silu(self.up(x)))


class Router(nn.Module):
    def __init__(self, experts):
        super().__init__()
        self.gate = nn.Linear(WIDTH, experts, bias=False)

    def forward(self, x):
        weights, chosen = self.gate(x).softmax(-1).topk(2, -1)
        return weights, chosen


class Routed(nn.Module):
    """A block whose MLP is a list of experts, two of which each token goes to."""

    def __init__(self, experts=4):
        super().__init__()
        self.norm, self.norm_2, self.attn = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH), Attention()
        self.router = Router(experts)
        self.experts = nn.ModuleList(Expert() for _ in range(experts))

    def forward(self, x):
        x = x + self.attn(self.norm(x))
        flat = self.norm_2(x).flatten(0, 1)
        weights, chosen = self.router(flat)
        out = torch.zeros_like(flat)
        for number, expert in enumerate(self.experts):
            token, place = torch.where(chosen == number)
            if len(token):
                out = out.index_add(0, token, expert(flat[token]) * weights[token, place, None])
        return x + out.view_as(x)


class Host(nn.Module):
    """Embedding, blocks, norm and head; the variants differ in how they hold and run their blocks."""

    def __init__(self, block=Block):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(50, WIDTH)
        self.hold([block() for _ in range(DEPTH)])
        self.ln_f, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCABULARY, bias=False)

    def hold(self, blocks):
        self.h = nn.ModuleList(blocks)

    def run(self, x):
        for block in self.h:
            x = block(x)
        return x

    def forward(self, idx, targets=None):
        x = self.wte(idx) + self.wpe(torch.arange(idx.shape[1], device=idx.device))
        logits = self.head(self.ln_f(self.run(x)))
        if targets is None:
            return logits, None
        return logits, nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=-100)


class InDict(Host):
    def hold(self, blocks):
        self.transformer = nn.ModuleDict({f"block {i}": block for i, block in enumerate(blocks)})

    def run(self, x):
        for block in self.transformer.values():
            x = block(x)
        return x


class AsAttributes(Host):
    def hold(self, blocks):
        self.first, self.second, self.third = blocks

    def run(self, x):
        return self.third(self.second(self.first(x)))


class InSequence(Host):
    def hold(self, blocks):
        self.trunk = nn.Sequential(*blocks)

    def run(self, x):
        return self.trunk(x)


class TwoLists(Host):
    """Blocks of the first half in one list, of the second in another; each of the second is given one of the first."""

    def hold(self, blocks):
        self.down, self.up = nn.ModuleList(blocks[:2]), nn.ModuleList([*blocks[2:], Block()])

    def run(self, x):
        kept = []
        for block in self.down:
            x = block(x)
            kept.append(x)
        for block in self.up:
            x = block(x + 0.1 * kept.pop())
        return x


class WithBeginning(Host):
    """What enters the first block is added to what enters each."""

    def run(self, x):
        begun = x
        for block in self.h:
            x = block(x + 0.5 * begun)
        return x


class Checkpointed(Host):
    def run(self, x):
        for block in self.h:
            x = checkpoint(block, x, use_reentrant=True)
        return x


class Dropping(Host):
    """In training, every third block on average is left out."""

    def run(self, x):
        for block in self.h:
            if not self.training or torch.rand(()) > 0.33:
                x = block(x)
        return x


class Touchy(Host):
    """Counts its calls, draws from generators of its own, keeps running means and a cache."""

    def __init__(self):
        super().__init__()
        self.calls, self.seen, self.cache = 0, [], {}
        self.generator = torch.Generator().manual_seed(5)
        self.norm = nn.BatchNorm1d(WIDTH)
        self.register_buffer("steps", torch.zeros((), dtype=torch.int64))
        self.scratch = torch.zeros(WIDTH)

    def run(self, x):
        self.calls += 1
        self.seen.append(x.shape)
        self.cache["last"] = x
        self.steps += 1
        self.scratch.add_(1)
        x = x * (torch.rand(WIDTH, generator=self.generator) > 0.1)
        return super().run(self.norm(nn.functional.dropout(x, 0.1, self.training).flatten(0, 1)).view_as(x))


class OfBatches(Host):
    """Takes a dictionary, which nobody can make up."""

    def forward(self, batch):  # pyright: ignore[reportIncompatibleMethodOverride]
        return super().forward(batch["tokens"], batch["tokens"])


def mixed():
    """Blocks of three classes in turn."""
    kinds = iter((Block, Fused, Routed))
    return Host(lambda: next(kinds)())


def adapted():
    """Every map of every MLP behind an adapter; all else is frozen."""
    model = Host().requires_grad_(False)
    for block in model.h:
        mlp = block.get_submodule("mlp")
        assert isinstance(mlp, nn.Sequential)
        mlp[0], mlp[2] = Adapted(mlp[0]), Adapted(mlp[2])
    return model


STRANGERS = {
    "list": Host,
    "fused": lambda: Host(Fused),
    "routed": lambda: Host(Routed),
    "mixed": mixed,
    "dict": InDict,
    "attributes": AsAttributes,
    "sequence": InSequence,
    "two lists": TwoLists,
    "beginning": WithBeginning,
    "checkpointed": Checkpointed,
    "dropping": Dropping,
    "touchy": Touchy,
    "batches": OfBatches,
    "adapted": adapted,
}


def stranger(name, seed=0):
    torch.manual_seed(seed)
    return STRANGERS[name]()
