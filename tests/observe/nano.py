"""A GPT as people write it for themselves: its forward takes ``targets`` by place and returns logits and loss."""

import math

import torch
from torch import nn

VOCABULARY = 65


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.mix = nn.Linear(width, width)
        self.mlp = nn.ModuleDict({"c_fc": nn.Linear(width, 4 * width), "c_proj": nn.Linear(4 * width, width)})

    def forward(self, x):
        x = x + torch.tril(torch.ones(x.shape[1], x.shape[1])) @ self.mix(self.ln_1(x)) / x.shape[1]
        return x + self.mlp["c_proj"](nn.functional.gelu(self.mlp["c_fc"](self.ln_2(x))))


class NanoGPT(nn.Module):
    def __init__(self, width=16, layers=2):
        super().__init__()
        torch.manual_seed(0)
        self.wte = nn.Embedding(VOCABULARY, width)
        self.h = nn.ModuleList(Block(width) for _ in range(layers))
        self.head = nn.Linear(width, VOCABULARY, bias=False)
        self.wte.weight = self.head.weight

    def forward(self, idx, targets=None):
        x = self.wte(idx)
        for block in self.h:
            x = block(x)
        logits = self.head(x)
        if targets is None:
            return logits, None
        return logits, nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=-1)


def text(step, sequences=20, length=12):
    generator = torch.Generator().manual_seed(100 + step)
    data = torch.randint(0, VOCABULARY, (sequences, length + 1), generator=generator)
    return data[:, :-1], data[:, 1:]


def train(model, scope, steps, *, micro=1, sequences=20, optimizer=None):
    """Steps of a plain loop; returns the losses."""
    optimizer = optimizer or torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for step in steps:
        last = math.nan
        with scope.step():
            for part in range(micro):
                _, loss = model(*text(step * micro + part, sequences))
                loss.backward()
                last = float(loss.detach())
        optimizer.step()
        optimizer.zero_grad()
        losses.append(last)
    return losses
