"""Tiny models of transformers with random weights, read by regard: inputs, outputs, gradients and files of both."""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor, nn
from transformers.models.modernbert import modeling_modernbert
from transformers.models.swin import modeling_swin

import regard
from regard.nn.attention.positions import SinusoidalPosition
from regard.types import Batch
from regard.weights.tables import read_checkpoint
from tiny import noise, noisy

transformers.utils.logging.disable_progress_bar()
transformers.utils.logging.set_verbosity_error()

CONSTANTS = ("embed_positions.weight", "num_batches_tracked")
"""Suffixes of the names of tensors that are not trained."""


def torch_name(name: str, cross: bool) -> str:
    """Name of a parameter of a block in `nn.TransformerEncoderLayer`, or with `cross` in `nn.TransformerDecoderLayer`."""
    part, kind = name.rsplit(".", 1)
    table = {
        "attend.inner.qkv": "self_attn.in_proj_", "attend.inner.out": "self_attn.out_proj.", "attend.norm": "norm1.",
        "cross.inner.q": "multihead_attn.in_proj_", "cross.inner.kv": "multihead_attn.in_proj_",
        "cross.inner.out": "multihead_attn.out_proj.", "cross.norm": "norm2.", "feed.inner.up": "linear1.",
        "feed.inner.down": "linear2.", "feed.norm": "norm3." if cross else "norm2.",
    }  # fmt: skip
    return table[part] + kind


def torch_layer_weights(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Weights (or gradients) of a block with the names of torch, which stacks q, k and v of cross-attention too."""
    parts: dict[str, list[Tensor]] = {}
    for name, tensor in weights.items():
        parts.setdefault(torch_name(name, any(key.startswith("cross.") for key in weights)), []).append(tensor)
    return {name: torch.cat(stacked) for name, stacked in parts.items()}


def torch_stack_weights(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Weights (or gradients) of a stack of blocks with the names of torch."""
    blocks: dict[str, dict[str, Tensor]] = {}
    found = {name: tensor for name, tensor in weights.items() if not name.startswith("blocks.")}
    for name in weights.keys() - found.keys():
        _, number, inner = name.split(".", 2)
        blocks.setdefault(number, {})[inner] = weights[name]
    for number, block in blocks.items():
        ordered = {name: block[name] for name in sorted(block, key=lambda name: ("inner.kv" in name, name))}
        found |= {f"layers.{number}.{name}": tensor for name, tensor in torch_layer_weights(ordered).items()}
    return found


def torch_call(theirs: nn.Module, ours: nn.Module) -> Callable[..., Tensor]:
    """The module of torch, called with the parameters of our stack or block."""
    weights = dict(ours.named_parameters())
    rename = torch_stack_weights if hasattr(ours, "blocks") else torch_layer_weights
    return lambda *args, **more: torch.func.functional_call(theirs, rename(weights), args, more)


TIMM = [
    ("vit.embeddings.cls_token", "cls_token"), ("vit.embeddings.position_embeddings", "pos_embed"),
    ("vit.embeddings.patch_embeddings.projection", "patch_embed.proj"), ("vit.layernorm.", "norm."),
    ("vit.encoder.layer.", "blocks."), ("attention.attention.query", "attn.qkv"), ("attention.output.dense", "attn.proj"),
    ("intermediate.dense", "mlp.fc1"), ("output.dense", "mlp.fc2"), ("layernorm_before", "norm1"),
    ("layernorm_after", "norm2"), ("classifier", "head"),
]  # fmt: skip
"""Parts of the names of ViT in Hugging Face format and in timm."""


def relabeled(tensors: Mapping[str, Tensor], table: Iterable[tuple[str, str]]) -> dict[str, Tensor]:
    """Tensors under the names of another library, which joins q, k and v; `table`: parts of names here and there."""
    found = {}
    for name, tensor in tensors.items():
        if ".query." in name:
            tensor = torch.cat([tensors[name.replace("query", part)] for part in ("query", "key", "value")])
        elif ".key." in name or ".value." in name:
            continue
        for old, new in table:
            name = name.replace(old, new)
        found[name] = tensor
    return found


def randomized(peer: Any, scale: float = 0.6) -> Any:
    """The model in float64 and eval mode, with noise as parameters, and positions in float64."""
    peer = noisy(peer, scale)
    with torch.no_grad():
        for name, buffer in peer.named_buffers():
            if "tracked" in name:
                buffer.fill_(7)
        for name, table in peer.named_parameters():
            if name.endswith("embed_positions.weight"):  # rounded to float32 in transformers
                table.copy_(SinusoidalPosition(table.shape[1], "halves")(torch.arange(len(table))))
    return peer


def _double_angles(module: Any, x: Tensor, positions: Tensor, layer_type: str) -> tuple[Tensor, Tensor]:
    """Cosines and sines of ModernBERT in float64; transformers computes them in float32."""
    width = module.config.hidden_size // module.config.num_attention_heads
    base = module.config.rope_parameters[layer_type]["rope_theta"]
    angles = positions[..., None].double() * base ** (-torch.arange(0, width, 2).double() / width)
    return torch.cat([angles, angles], -1).cos().to(x.dtype), torch.cat([angles, angles], -1).sin().to(x.dtype)


def _double_rotary(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, unsqueeze_dim: int = 1) -> tuple[Tensor, Tensor]:
    """Rotated queries and keys in their own precision; transformers rotates in float32."""
    turn = modeling_modernbert.rotate_half
    cos, sin = cos.unsqueeze(unsqueeze_dim), sin.unsqueeze(unsqueeze_dim)
    return q * cos + turn(q) * sin, k * cos + turn(k) * sin


modeling_modernbert.ModernBertRotaryEmbedding.forward = _double_angles
modeling_modernbert.apply_rotary_pos_emb = _double_rotary


_swin_attention = modeling_swin.SwinAttention.forward


def _swin_attention_of_window(self: Any, x: Tensor, *args: Any, **kwargs: Any) -> Any:
    self.relative_position_bias.side = math.isqrt(x.shape[1])
    return _swin_attention(self, x, *args, **kwargs)


def _swin_bias(table: Any) -> Tensor:
    """Windows smaller than the bias table read its center: transformers raises a shape error there."""
    reach, side = table.window_size[0], table.side
    row, column = torch.arange(side).repeat_interleave(side), torch.arange(side).repeat(side)
    down, across = (at[:, None] - at + reach - 1 for at in (row, column))
    return table.relative_position_bias_table[down * (2 * reach - 1) + across].permute(2, 0, 1)[None]


modeling_swin.SwinAttention.forward = _swin_attention_of_window
modeling_swin.SwinRelativePositionBias.forward = _swin_bias


def make_peer(config: str, model: str, scale: float = 0.6, **sizes: Any) -> Any:
    return randomized(getattr(transformers, model)(getattr(transformers, config)(**sizes)), scale)


def peer_of(model: str, scale: float = 0.6, **changes: Any) -> Any:
    """Tiny model of a class of transformers."""
    family = next(name for name in SIZES if model.startswith(name))
    return make_peer(f"{family}Config", model, scale, **{**SIZES[family], **changes})


def load_peer(peer: Any, folder: Path, **more: Any) -> regard.Model:
    """The same model in regard, by way of a checkpoint of transformers."""
    peer.save_pretrained(folder)
    return regard.load(folder, **more)


def weighted_sum(values: Iterable[Tensor]) -> Tensor:
    terms = [(noise(*value.shape, seed=number + 8) * value).sum() for number, value in enumerate(values)]
    return torch.stack(terms).sum()


def _gradients_as_weights(module: Any) -> Any:
    """A copy of the model with its gradients as weights, 0 for parameters without a gradient."""
    held = copy.deepcopy(module)
    with torch.no_grad():
        for (_, tensor), own in zip(held.named_parameters(), module.parameters(), strict=True):
            tensor.copy_(torch.zeros_like(tensor) if own.grad is None else own.grad)
        for (_, tensor), own in zip(held.named_buffers(), module.buffers(), strict=True):
            if own.requires_grad:
                tensor.detach_().copy_(own.grad)
    return held


def assert_gradients(
    model: regard.Model,
    peer: Any,
    ours: Tensor,
    right: Tensor,
    folder: Path,
    tolerance: float = 1e-10,
    slack: float = 1e-3,
) -> None:
    """Compare the gradients of all parameters, saved as checkpoints: both libraries use the names of the format.

    A gradient that is 0 in theory, of a key bias for example, differs by rounding: a fraction of the largest gradient."""
    model.zero_grad()
    peer.zero_grad()
    ours.backward()
    right.backward()
    _gradients_as_weights(peer).save_pretrained(folder / "peer")
    regard.save(_gradients_as_weights(model), folder / "own", layout="huggingface")
    prefix = f"{peer.base_model_prefix}."
    own, expected = (
        {name.removeprefix(prefix): tensor for name, tensor in read_checkpoint(folder / side).items()}
        for side in ("own", "peer")
    )
    if "tokens_embed.weight" in own.keys() - expected.keys():  # tied, and saved under its other name
        expected["tokens_embed.weight"] = expected.pop("lm_head.weight")
    names = {name for name in own if not name.endswith(CONSTANTS)}
    extra = {name for name in expected if name not in own and expected[name].any() and not name.endswith(CONSTANTS)}
    assert names <= set(expected) and not extra and sum(bool(expected[name].any()) for name in names) > 10
    largest = max(float(expected[name].abs().max()) for name in names)
    for name in names:
        gap, size = float((own[name] - expected[name]).abs().max()), float(expected[name].abs().max())
        assert gap <= tolerance * (size + slack * largest), f"{name}: {gap:.3g} of {size:.3g}"


def assert_same_weights(again: Any, peer: Any) -> None:
    own, right = again.state_dict(), peer.state_dict()
    assert set(own) == set(right)
    for name, tensor in right.items():
        same = own[name].dtype == tensor.dtype and torch.equal(own[name], tensor)
        assert same or name.endswith(CONSTANTS), name


SYNONYMS = {"gelu_new": "gelu_pytorch_tanh", "swish": "silu"}
UNSET = {"_name_or_path", "transformers_version", "architectures", "backbone_config"}
"""Keys of config.json that may differ after loading and saving."""


def assert_saved_alike(model: regard.Model, peer: Any, folder: Path) -> None:
    """Save the model in Hugging Face format; transformers reads the same weights and configuration, and nothing else."""
    regard.save(model, folder, layout="huggingface")
    again, report = type(peer).from_pretrained(folder, dtype=peer.dtype, output_loading_info=True)
    assert not any(report[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys")), report
    assert_same_weights(again, peer)
    written = json.loads((folder / "config.json").read_text())
    assert written["architectures"] == [type(peer).__name__] or model.has_new_head
    found, expected = (
        {key: SYNONYMS.get(str(value), value) for key, value in json.loads(one.config.to_json_string(False)).items()}
        for one in (again, peer)
    )
    unset = UNSET if model.spec.options.labels else {*UNSET, "id2label", "label2id"}
    for key in expected.keys() - unset:
        assert expected[key] is None or found[key] == expected[key], key


# -- text


LENGTHS = torch.tensor([19, 4, 13])
REAL = torch.arange(19) < LENGTHS[:, None]


def text_inputs() -> tuple[Tensor, Tensor, Tensor]:
    """Ids (3, 19) with padding, token types, and global tokens."""
    draw = torch.Generator().manual_seed(3)
    x = torch.where(REAL, torch.randint(5, 37, (3, 19), generator=draw), 1)
    types = torch.randint(0, 2, (3, 19), generator=draw)
    marked = torch.zeros(3, 19, dtype=torch.bool)
    marked[:, 0] = marked[0, 7] = marked[2, 12] = True
    return x, types, marked


@dataclass(frozen=True)
class Case:
    """A class of transformers with its sizes; `task` is the task that regard chooses."""

    model: str
    task: str
    changes: dict[str, Any] = field(default_factory=dict)
    tolerance: float = 1e-11
    logit_bias: bool = False
    sides: tuple[int, int] | None = None
    """Height and width of the images; None: those of the config."""

    @property
    def family(self) -> str:
        return next(name for name in SIZES if self.model.startswith(name))

    def peer(self) -> Any:
        peer = peer_of(self.model, **self.changes)
        if self.logit_bias:
            peer.final_logits_bias.copy_(noise(1, 23, seed=9)).requires_grad_()
        return peer

    def outputs(self, model: regard.Model, peer: Any) -> tuple[list[Tensor], list[Tensor]]:
        return INPUTS[self.family](self, model, peer)


def text_outputs(case: Case, model: regard.Model, peer: Any) -> tuple[list[Tensor], list[Tensor]]:
    x, types, marked = text_inputs()
    mask, more, own = REAL, dict[str, Any](), dict[str, Any]()
    if case.family == "Longformer":
        if case.task == "classify":  # the first token is global by default
            marked = torch.zeros_like(marked)
            marked[:, 0] = True
        more, own = {"global_attention_mask": marked.long()}, {"global_tokens": marked}
    elif case.family in ("Bert", "RoFormer") or case.changes.get("type_vocab_size"):
        more, own = {"token_type_ids": types}, {"token_types": types}
    if case.task == "choose":
        x, mask = (part[None].repeat(2, 1, 1) for part in (x, mask))
        more, own = ({key: value[None].repeat(2, 1, 1) for key, value in given.items()} for given in (more, own))
    more["attention_mask"] = mask.long()
    if case.model.endswith("DoubleHeadsModel"):  # decoders need no mask for padding at the end
        more = {"mc_token_ids": mask.sum(-1) - 1}
    right = peer(x, **more)
    if "last_hidden_state" in right:
        found = model.states(x, mask=mask, **own)
        pooled = right.get("pooler_output")
        pairs = [(found.sequence[mask], right.last_hidden_state[mask])]
        pairs += [] if pooled is None else [(found.pooled, pooled)]  # type: ignore[list-item]
        return [mine for mine, _ in pairs], [theirs for _, theirs in pairs]
    ours = model.logits(x, mask=mask, **own)
    if case.task == "qa":
        return [ours[mask]], [torch.stack([right.start_logits, right.end_logits], -1)[mask]]
    logits = right.get("prediction_logits", right.get("mc_logits", right.get("logits")))
    if case.task in ("classify", "choose"):
        return [ours], [logits]
    if "seq_relationship_logits" in right:
        follows = model.head.follows(model.states(x, mask=mask, **own).pooled)
        return [ours[mask], follows], [logits[mask], right.seq_relationship_logits]
    return [ours[mask]], [logits[mask]]


def pair_outputs(case: Case, model: regard.Model, peer: Any) -> tuple[list[Tensor], list[Tensor]]:
    x, target = text_inputs()[0] % 21, text_inputs()[0][:, :7].flip(1) % 21
    right = peer(input_ids=x, attention_mask=REAL.long(), decoder_input_ids=target).logits
    return [model.logits(x, target, mask=LENGTHS)], [right]


def pixel_outputs(case: Case, model: regard.Model, peer: Any) -> tuple[list[Tensor], list[Tensor]]:
    """Predictions of a model with a head, else last states, pooled output and all feature maps."""
    side = SIZES[case.family].get("image_size", 40)
    x = noise(2, model.config.in_channels, *(case.sides or (side, side)), seed=3)
    more: dict[str, Any] = {"interpolate_pos_encoding": True} if case.family == "ViT" else {}
    if not case.model.endswith("Model"):
        right = peer(x, **more)
        return [model.logits(x)], [right.predicted_depth if case.task == "depth" else right.logits]
    more |= {"output_hidden_states_before_downsampling": True} if case.family == "Swin" else {}
    right = peer(x, output_hidden_states=True, **more)
    maps = right.get("reshaped_hidden_states", right.hidden_states)[1:]
    found = model.body(Batch(x), taps=range(len(maps)))
    last = right.last_hidden_state if right.last_hidden_state.ndim == 3 else right.last_hidden_state.flatten(2).mT
    pooled = last[:, 0] if case.family == "ViT" else right.pooler_output.flatten(1)
    return [found.sequence, found.pooled, *found.hidden_states], [last, pooled, *maps]  # type: ignore[list-item]


def color_rows(length: int = 16, colors: int = 11) -> Tensor:
    """Color indices (4, length); each row begins with the start token."""
    x = torch.randint(colors, (4, length), generator=torch.Generator().manual_seed(2))
    x[:, 0] = colors
    return x


def color_outputs(case: Case, model: regard.Model, peer: Any) -> tuple[list[Tensor], list[Tensor]]:
    return [model.logits(color_rows())], [peer(input_ids=color_rows()).logits]


ALIKE = {"hidden_size": 12, "num_hidden_layers": 3, "num_attention_heads": 3, "intermediate_size": 20}
TOKENS = {"cls_token_id": 2, "sep_token_id": 3, "mask_token_id": 4, "attn_implementation": "eager"}
SPECIAL = {"pad_token_id": 1, "bos_token_id": 0, "sep_token_id": 2, "eos_token_id": 2, "mask_token_id": 4}
GPT = {
    "n_embd": 12, "n_layer": 3, "n_head": 3, "vocab_size": 37, "n_positions": 19, "bos_token_id": 36,
    "eos_token_id": 36,
}  # fmt: skip
BIT = {
    "model_type": "bit", "layer_type": "bottleneck", "global_padding": "same", "embedding_dynamic_padding": True,
    "depths": [1, 2, 1], "embedding_size": 8, "hidden_sizes": [32, 64, 128], "num_groups": 4, "num_channels": 2,
    "out_features": ["stage1", "stage2", "stage3"],
}  # fmt: skip
HYBRID_DPT: dict[str, Any] = {
    "is_hybrid": True, "backbone_config": BIT, "backbone_featmap_shape": [1, 128, 4, 4], "neck_hidden_sizes": [32, 64, 7, 6],
}  # fmt: skip
DEBERTA: dict[str, Any] = {
    "relative_attention": True, "position_buckets": 6, "max_relative_positions": 12, "pos_att_type": ["p2c", "c2p"],
    "position_biased_input": False, "norm_rel_ebd": "layer_norm", "share_att_key": True,
}  # fmt: skip
SIZES: dict[str, dict[str, Any]] = {
    "ModernBert": {
        **ALIKE, **TOKENS, "num_hidden_layers": 4, "vocab_size": 37, "max_position_embeddings": 24, "local_attention": 8,
        "pad_token_id": 1, "bos_token_id": 2, "eos_token_id": 3, "attn_implementation": "sdpa",
    },
    # 3 channels per head and 3 terms: the square root of 9, which transformers rounds to float32, is exact
    "DebertaV2": {**ALIKE, **TOKENS, **DEBERTA, "num_attention_heads": 4, "vocab_size": 37, "max_position_embeddings": 24},
    "Bert": {**ALIKE, **TOKENS, "vocab_size": 37, "max_position_embeddings": 19, "type_vocab_size": 2},
    "RoFormer": {**ALIKE, **TOKENS, "vocab_size": 37, "max_position_embeddings": 20, "type_vocab_size": 2, "embedding_size": 8},
    "Longformer": {
        **ALIKE, **SPECIAL, "vocab_size": 37, "max_position_embeddings": 42, "type_vocab_size": 1,
        "attention_window": [4, 8, 4], "layer_norm_eps": 1e-5,
    },
    "OpenAIGPT": GPT,
    "GPT2": {**GPT, "n_inner": 20},
    "Marian": {
        "d_model": 12, "encoder_layers": 2, "decoder_layers": 3, "encoder_attention_heads": 3, "decoder_attention_heads": 3,
        "encoder_ffn_dim": 20, "decoder_ffn_dim": 20, "vocab_size": 23, "max_position_embeddings": 40, "pad_token_id": 0,
        "decoder_start_token_id": 1, "eos_token_id": 2, "bos_token_id": None, "forced_eos_token_id": None,
        "activation_function": "relu", "scale_embedding": True,
    },
    "ViT": {**ALIKE, "image_size": 12, "patch_size": 4, "num_channels": 2, "num_labels": 5},
    "ResNet": {
        "num_channels": 2, "embedding_size": 6, "hidden_sizes": [12, 20, 16, 24], "depths": [2, 1, 3, 1], "num_labels": 5,
    },
    "Bit": {
        "num_channels": 2, "embedding_size": 8, "hidden_sizes": [16, 40, 64, 72], "depths": [2, 1, 3, 2], "num_groups": 4,
        "num_labels": 5,
    },
    "Swin": {
        "image_size": 48, "patch_size": 2, "num_channels": 3, "embed_dim": 8, "depths": [2, 3, 2, 2],
        "num_heads": [2, 1, 4, 8], "window_size": 3, "mlp_ratio": 1.5, "drop_path_rate": 0.25, "num_labels": 5,
    },
    "DPT": {
        **ALIKE, "num_hidden_layers": 5, "image_size": 64, "num_channels": 2, "backbone_out_indices": [0, 1, 3, 4],
        "neck_hidden_sizes": [3, 5, 7, 6], "fusion_hidden_size": 10, "num_labels": 5, "semantic_classifier_dropout": 0.0,
    },
    "ImageGPT": {
        "n_embd": 12, "n_layer": 3, "n_head": 3, "n_inner": 20, "vocab_size": 12, "n_positions": 16,
        "id2label": dict(enumerate("abcde")), "label2id": {name: number for number, name in enumerate("abcde")},
    },
}  # fmt: skip
INPUTS: dict[str, Any] = {
    **dict.fromkeys(("Bert", "ModernBert", "DebertaV2", "RoFormer", "Longformer", "OpenAIGPT", "GPT2"), text_outputs),
    **dict.fromkeys(("ViT", "ResNet", "Bit", "Swin", "DPT"), pixel_outputs),
    "Marian": pair_outputs, "ImageGPT": color_outputs,
}  # fmt: skip
