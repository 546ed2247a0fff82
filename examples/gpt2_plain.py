"""GPT-2 in one file: everything that happens between a text and the next word, in plain torch.

    python examples/gpt2_plain.py FOLDER "Once upon a time"

FOLDER holds config.json, model.safetensors and tokenizer.json, as they are published or as `regard train` writes them.
`regard` computes the same numbers (a test compares them) from parts that other systems share; here they stand in a row.
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

# B rows, L positions, D width, H heads, d = D / H, V tokens


class Attention(nn.Module):
    """Every position asks all positions before it and takes from each as much as its answer fits the question."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        B, L, D = x.shape
        q, k, v = self.qkv(x).view(B, L, 3, self.heads, D // self.heads).permute(2, 0, 3, 1, 4)  # each (B, H, L, d)
        scores = q @ k.transpose(-2, -1) / (D // self.heads) ** 0.5
        future = torch.ones(L, L, dtype=torch.bool, device=x.device).triu(1)
        weights = scores.masked_fill(future, -torch.inf).softmax(-1)  # (B, H, L, L): nobody sees what comes later
        return self.out((weights @ v).transpose(1, 2).reshape(B, L, D))


class Feed(nn.Module):
    """Then every position thinks for itself."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(width, hidden), nn.Linear(hidden, width)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.gelu(self.up(x), approximate="tanh"))


class Block(nn.Module):
    """Both add to the states what they found; what is there is never replaced."""

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
        """(B, L) -> (B, L, V): after each position, how likely every token is to be the next (before the softmax)."""
        x = self.tokens(ids) + self.places(torch.arange(ids.shape[1], device=ids.device))
        for block in self.blocks:
            x = block(x)
        return self.norm(x) @ self.tokens.weight.T  # the table that is read at the beginning is asked at the end


OURS = {
    "wte.": "tokens.", "wpe.": "places.", "ln_f.": "norm.", "h.": "blocks.", "ln_1.": "norm.", "ln_2.": "norm_too.",
    "attn.c_attn.": "attend.qkv.", "attn.c_proj.": "attend.out.", "mlp.c_fc.": "feed.up.", "mlp.c_proj.": "feed.down.",
}  # fmt: skip
"""Published names, and the same here."""


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
            continue  # the table once more, and masks, which old files bring along
        matrix = ".c_" in name and tensor.ndim == 2
        for theirs, ours in OURS.items():
            name = name.replace(theirs, ours)
        weights[name] = tensor.T if matrix else tensor  # stored (in, out)
    model.load_state_dict(weights, assign=True)  # in the precision of the file
    return model.eval()


@torch.inference_mode()
def generate(model: GPT2, ids: list[int], count: int, temperature: float = 0.8, top_k: int = 40) -> Iterator[int]:
    """Token by token, each drawn from the likeliest (temperature 0: the very likeliest); all is read again each time."""
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
