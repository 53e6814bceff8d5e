"""A model of which algebra says what a removal costs."""

import torch
from torch import nn

WIDTH, VOCABULARY = 12, 40


class Block(nn.Module):
    """Hands on what it gets: its map is zero, and it returns a tuple as many blocks do."""

    def __init__(self, width):
        super().__init__()
        self.map = nn.Linear(width, width, bias=False, dtype=torch.float64)
        nn.init.zeros_(self.map.weight)

    def forward(self, hidden, mask=None):
        return hidden + self.map(hidden), None


class Output:
    def __init__(self, logits, loss=None):
        self.logits, self.loss = logits, loss


class ReadsOneDirection(nn.Module):
    """The head sees the stream along one direction alone: logits are ``(u·h) w``."""

    def __init__(self, *, blocks=2, seed=0):
        super().__init__()
        torch.manual_seed(seed)
        self.embed = nn.Embedding(VOCABULARY, WIDTH, dtype=torch.float64)
        self.blocks = nn.ModuleList(Block(WIDTH) for _ in range(blocks))
        self.dropout = nn.Dropout(0.5)
        self.register_buffer("seen", torch.zeros((), dtype=torch.float64))
        self.direction = nn.functional.normalize(torch.randn(WIDTH, dtype=torch.float64), dim=0)
        self.readout = torch.randn(VOCABULARY, dtype=torch.float64)

    def forward(self, input_ids, attention_mask=None, labels=None):
        self.seen += 1
        hidden = self.dropout(self.embed(input_ids))
        for block in self.blocks:
            hidden, _ = block(hidden)
        return Output((hidden @ self.direction)[..., None] * self.readout)


def batches(sequences=24, length=10, chunk=9, seed=1):
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(VOCABULARY, (sequences, length), generator=generator)
    mask = torch.arange(length)[None] < torch.randint(4, length + 1, (sequences, 1), generator=generator)
    labels = torch.where(mask, ids, -100)
    parts = range(0, sequences, chunk)
    return [
        {"input_ids": ids[k : k + chunk], "attention_mask": mask[k : k + chunk].long(), "labels": labels[k : k + chunk]}
        for k in parts
    ]
