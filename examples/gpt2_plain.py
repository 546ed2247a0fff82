"""GPT-2 in one file: all computations from a text to the next token, in plain PyTorch.

    python examples/gpt2_plain.py FOLDER "Once upon a time"

FOLDER contains config.json, model.safetensors and tokenizer.json, as published or as written by `regard train`. `regard`
computes the same numbers (verified by a test) from modules shared with other systems.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer
from torch import Tensor, nn
from torch.nn import functional as F

# B rows, L positions, D hidden size, H heads, d = D / H, V vocabulary size


class Attention(nn.Module):
    """Causal self-attention: weighted averages of the values at the same and all earlier positions."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        B, L, D = x.shape
        q, k, v = self.qkv(x).view(B, L, 3, self.heads, D // self.heads).permute(2, 0, 3, 1, 4)  # each (B, H, L, d)
        scores = q @ k.transpose(-2, -1) / (D // self.heads) ** 0.5
        future = torch.ones(L, L, dtype=torch.bool, device=x.device).triu(1)
        weights = scores.masked_fill(future, -torch.inf).softmax(-1)  # (B, H, L, L): weight 0 for later positions
        return self.out((weights @ v).transpose(1, 2).reshape(B, L, D))


class Feed(nn.Module):
    """Feed-forward network, applied to each position separately."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(width, hidden), nn.Linear(hidden, width)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.gelu(self.up(x), approximate="tanh"))


class Block(nn.Module):
    """Pre-norm residual block: attention and feed-forward network add to the hidden states."""

    def __init__(self, width: int, heads: int, hidden: int, eps: float) -> None:
        super().__init__()
        self.norm, self.attend = nn.LayerNorm(width, eps), Attention(width, heads)
        self.norm_too, self.feed = nn.LayerNorm(width, eps), Feed(width, hidden)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attend(self.norm(x))
        return x + self.feed(self.norm_too(x))


class GPT2(nn.Module):
    def __init__(
        self, width: int, depth: int, heads: int, hidden: int, vocabulary: int, length: int, eps: float
    ) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(vocabulary, width), nn.Embedding(length, width)
        self.blocks = nn.ModuleList(Block(width, heads, hidden, eps) for _ in range(depth))
        self.norm = nn.LayerNorm(width, eps)

    def forward(self, ids: Tensor) -> Tensor:
        """Logits of the next token after each position: (B, L) -> (B, L, V)."""
        x = self.tokens(ids) + self.places(torch.arange(ids.shape[1], device=ids.device))
        for block in self.blocks:
            x = block(x)
        return self.norm(x) @ self.tokens.weight.T  # the output projection shares the embedding weights


OURS = {
    "wte.": "tokens.", "wpe.": "places.", "ln_f.": "norm.", "h.": "blocks.", "ln_1.": "norm.", "ln_2.": "norm_too.",
    "attn.c_attn.": "attend.qkv.", "attn.c_proj.": "attend.out.", "mlp.c_fc.": "feed.up.", "mlp.c_proj.": "feed.down.",
}  # fmt: skip
"""Parameter names of the checkpoint and of this file."""


def load(folder: Path) -> GPT2:
    said = json.loads((folder / "config.json").read_text())
    model = GPT2(
        said["n_embd"], said["n_layer"], said["n_head"], said.get("n_inner") or 4 * said["n_embd"], said["vocab_size"],
        said["n_positions"], said.get("layer_norm_epsilon", 1e-5),
    )  # fmt: skip
    weights = {}
    for name, tensor in load_file(folder / "model.safetensors").items():
        name = name.removeprefix("transformer.")
        if name == "lm_head.weight" or name.endswith((".attn.bias", ".attn.masked_bias")):
            continue  # tied embedding, and attention masks in old checkpoints
        matrix = ".c_" in name and tensor.ndim == 2
        for theirs, ours in OURS.items():
            name = name.replace(theirs, ours)
        weights[name] = tensor.T if matrix else tensor  # stored (in, out)
    model.load_state_dict(weights, assign=True)  # keeps the dtype of the checkpoint
    return model.eval()


@torch.inference_mode()
def generate(model: GPT2, ids: list[int], count: int, temperature: float = 0.8, top_k: int = 40) -> Iterator[int]:
    """Sample token by token with top-k and temperature (0: greedy). Without a KV cache, each step recomputes all positions."""
    for _ in range(count):
        logits = model(torch.tensor([ids[-model.places.num_embeddings :]]))[0, -1]
        if temperature == 0:
            chosen = logits.argmax()
        else:
            likely = (logits / temperature).topk(min(top_k, len(logits)))
            chosen = likely.indices[torch.multinomial(likely.values.softmax(-1), 1)[0]]
        ids = [*ids, int(chosen)]
        yield ids[-1]


if __name__ == "__main__":
    folder, text = Path(sys.argv[1]), sys.argv[2]
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    said = list(generate(load(folder), tokenizer.encode(text).ids, 100))
    print(text + tokenizer.decode(said))
