"""T-D against torch layers, GPT-3 against GPT-2 with banded masks and against the local attention of GPT-Neo."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from regard.model import Model, ModelSpec, assemble
from regard.systems import SYSTEMS, decoder, gpt3
from regard.tasks import TEXT_TASKS
from tiny import gradients, near, noise, noisy

transformers = pytest.importorskip("transformers")
transformers.utils.logging.disable_progress_bar()

SIZES: dict[str, Any] = {
    "width": 12, "depth": 4, "heads": 3, "ffn_dim": 20, "vocab_size": 23, "max_length": 16, "eos_id": 22,
}  # fmt: skip
X = torch.randint(23, (4, 11), generator=torch.Generator().manual_seed(2))


def model_of(name: str, config: Any) -> Model:
    made: Model = noisy(assemble(ModelSpec(SYSTEMS[name], config, TEXT_TASKS["lm"])))
    return made


def ours_and_theirs(model: Model, theirs: Any, right: Tensor, names: dict[str, str], turned: bool) -> None:
    """Compare logits and the gradient of every parameter; `names` maps our names to theirs."""
    out = model.logits(X)
    near(out, right)
    pull = noise(*out.shape, seed=8)
    mine, other = gradients(model.body, (out * pull).sum()), gradients(theirs, (right * pull).sum())
    assert set(mine) == set(names) == set(model.body.state_dict())
    for name, gradient in mine.items():
        wanted = other[names[name]]
        near(gradient, wanted.T if turned and wanted.ndim == 2 and ".blocks." in name else wanted, 2e-12)


# -- T-D


class Plain(nn.Module):
    """torch encoder with a causal mask and tied input and output embeddings."""

    def __init__(self, config: decoder.Config, table: Tensor, places: Tensor) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(
            config.width, config.heads, config.ffn_dim, 0.0, config.activation, batch_first=True, dtype=torch.float64
        )
        self.layers = nn.TransformerEncoder(layer, config.depth, enable_nested_tensor=False)
        self.table, self.places = nn.Parameter(table.detach().clone()), places

    def forward(self, x: Tensor) -> Tensor:
        length = x.shape[1]
        future = ~torch.ones(length, length).tril().bool()
        states = self.table[x] * self.table.shape[1] ** 0.5 + self.places[:length]
        return self.layers(states, mask=future) @ self.table.T


TORCHS = {
    "attend.inner.qkv.weight": "self_attn.in_proj_weight", "attend.inner.qkv.bias": "self_attn.in_proj_bias",
    "attend.inner.out.": "self_attn.out_proj.", "attend.norm.": "norm1.", "feed.inner.up.": "linear1.",
    "feed.inner.down.": "linear2.", "feed.norm.": "norm2.",
}  # fmt: skip


@pytest.mark.parametrize("activation", ["relu", "gelu"])
@pytest.mark.parametrize("positions", ["halves", "interleaved"])
def test_the_decoder_alone_is_torchs_encoder_under_a_causal_mask(positions: Any, activation: Any) -> None:
    model = model_of("decoder", decoder.Config(**SIZES, position_embedding=positions, activation=activation))
    table, at = model.body.tokens.table.weight, torch.arange(16)
    angles = at[:, None] / 10000 ** (torch.arange(6, dtype=torch.float64) / 6)
    waves = torch.stack([angles.sin(), angles.cos()], -1)
    places = waves.flatten(1) if positions == "interleaved" else waves.transpose(1, 2).flatten(1)
    theirs = Plain(model.config, table, places).eval()
    names = {"tokens.table.weight": "table"}
    for name in model.body.state_dict():
        if ".blocks." in name:
            _, _, number, rest = name.split(".", 3)
            found = [(ours, other) for ours, other in TORCHS.items() if rest.startswith(ours)]
            names[name] = f"layers.layers.{number}.{rest.replace(*found[0])}"
    state = theirs.state_dict()
    with torch.no_grad():
        for name, tensor in model.body.state_dict().items():
            state[names[name]].copy_(tensor)
    ours_and_theirs(model, theirs, theirs(X), names, turned=False)


# -- GPT-3


BLOCK = {
    "attend.norm": "ln_1", "attend.inner.qkv": "attn.c_attn", "attend.inner.out": "attn.c_proj", "feed.norm": "ln_2",
    "feed.inner.up": "mlp.c_fc", "feed.inner.down": "mlp.c_proj",
}  # fmt: skip
REST = {"tokens.table": "wte", "position.table": "wpe", "decoder.norm": "ln_f"}


def place(name: str) -> str:
    part, kind = name.rsplit(".", 1)
    if part in REST:
        return f"transformer.{REST[part]}.{kind}"
    _, _, number, rest = part.split(".", 3)
    return f"transformer.h.{number}.{BLOCK[rest]}.{kind}"


def band_of(width: int) -> Tensor:
    """Mask (11, 11), True for each token and the width - 1 tokens before it."""
    rows = [[0 <= q - k < width for k in range(11)] for q in range(11)]
    return torch.tensor(rows)


@pytest.mark.parametrize("band", [0, 1, 3, 11, 40])
def test_gpt3_is_gpt2_with_every_other_layer_banded(band: int) -> None:
    model = model_of("gpt3", gpt3.Config(**SIZES, local_window=band))
    config = transformers.GPT2Config(
        vocab_size=23, n_positions=16, n_embd=12, n_layer=4, n_head=3, n_inner=20, resid_pdrop=0.0, embd_pdrop=0.0,
        attn_pdrop=0.0, bos_token_id=22, eos_token_id=22, attn_implementation="eager",
    )  # fmt: skip
    theirs = transformers.GPT2LMHeadModel(config).double().eval()
    state = theirs.state_dict()
    names = {name: place(name) for name in model.body.state_dict()}
    with torch.no_grad():
        for name, tensor in model.body.state_dict().items():
            state[names[name]].copy_(tensor.T if tensor.ndim == 2 and ".blocks." in name else tensor)
    written = torch.zeros(1, 1, 11, 11, dtype=torch.float64).masked_fill(~band_of(band), -torch.inf)

    def narrow(_: nn.Module, args: Any, kwargs: Any) -> tuple[Any, Any]:
        assert kwargs["attention_mask"].shape[-2:] == (11, 11)
        return args, {**kwargs, "attention_mask": written}

    if band:
        for number in (1, 3):
            theirs.transformer.h[number].attn.register_forward_pre_hook(narrow, with_kwargs=True)
    ours_and_theirs(model, theirs, theirs(input_ids=X).logits, names, turned=True)


def test_bands_equal_the_local_attention_of_gpt_neo() -> None:
    """GPT-Neo has no biases of q, k and v, does not scale scores, and computes attention in 32 bits."""
    model = model_of("gpt3", gpt3.Config(**SIZES, local_window=3))
    theirs = transformers.GPTNeoForCausalLM(
        transformers.GPTNeoConfig(
            vocab_size=23, max_position_embeddings=16, hidden_size=12, num_layers=4, num_heads=3, intermediate_size=20,
            attention_types=[[["global", "local"], 2]], window_size=3, resid_dropout=0.0, embed_dropout=0.0,
            attention_dropout=0.0, bos_token_id=22, eos_token_id=22,
        )
    ).double().eval()  # fmt: skip
    state = theirs.state_dict()
    with torch.no_grad():
        for name, tensor in model.body.state_dict().items():
            to = place(name).replace(".attn.", ".attn.attention.").replace("attention.c_proj", "attention.out_proj")
            if name.endswith("qkv.bias"):
                tensor.zero_()
            elif name.endswith("qkv.weight"):
                for letter, part, scale in zip("qkv", tensor.chunk(3), (0.5, 1.0, 1.0), strict=True):
                    state[to.replace("c_attn", f"{letter}_proj")].copy_(part * scale)
            else:
                state[to].copy_(tensor)
        near(model.logits(X), theirs(input_ids=X).logits, 1e-5)


def test_the_table_of_the_paper_is_resolved_as_documented() -> None:
    sizes = {name: preset.config for name, preset in gpt3.PRESETS.items() if name != "gpt3-mini"}
    assert len(sizes) == 8 and all(config.ffn_dim == 4 * config.width for config in sizes.values())
    heads = {name: config.width // config.heads for name, config in sizes.items()}
    assert list(heads.values()) == [64, 64, 96, 128, 80, 128, 128, 128]
    assert (sizes["gpt3-xl"].heads, sizes["gpt3-13b"].width) == (16, 5120)
    with torch.device("meta"):
        bands = gpt3.build(sizes["gpt3-small"]).window_sizes
    assert bands == (0, 256) * 6
