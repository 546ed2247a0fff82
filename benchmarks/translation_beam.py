"""Beam search (4 beams) through the public `predict`, compared with `transformers` and, on the CPU, CTranslate2.

    python benchmarks/translation_beam.py [case ...] [--repeat 5]

CUDA: Transformer-base (6 + 6 layers x 512, vocabulary size 37,000), bfloat16, 32 source, 48 generated tokens, batch 1 and 64.
CPU: small Transformer (3 + 3 layers x 256, vocabulary size 8,000), float32, 24 source, 32 generated tokens, batch 1 and 32.
Random weights; all libraries generate the full number of tokens, because the end token never enters a beam.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import harness
import marian
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from turns import Action, arguments, in_turns, measure

import regard
from regard.processors.tokenizer.tokenizer import TextTokenizer

BEAMS = 4


@dataclass(frozen=True)
class Size:
    """Model size, source tokens, generated tokens, and batch sizes."""

    model: dict[str, int]
    source: int
    said: int
    batches: tuple[int, ...]

    def words(self, count: int, batch: int) -> list[list[str]]:
        return [[f"t{3 + (i * 37 + b) % (self.model['vocab_size'] - 4)}" for i in range(count)] for b in range(batch)]


SIZES = {
    "cuda": Size(marian.SIZES["cuda"], 32, 48, (1, 64)),
    "cpu": Size(marian.SIZES["cpu"], 24, 32, (1, 32)),
    "smoke": Size(marian.SIZES["smoke"], 4, 6, (1, 2)),
}
"""Sizes by mode (`harness.mode`)."""


def dtype() -> torch.dtype:
    return torch.bfloat16 if harness.device() == "cuda" else torch.float32


def ours(size: Size) -> Action:
    torch.manual_seed(0)
    model = regard.build("transformer-base", decoder_depth=size.model["depth"], **size.model)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.05)
        model.body.tokens.table.weight[model.config.eos_id] = (
            0.0  # never in a beam, so that every output has full length
        )
    backend = Tokenizer(models.WordLevel({f"t{i}": i for i in range(size.model["vocab_size"])}, unk_token="t0"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    model.tokenizer = TextTokenizer(backend)
    model = model.to(harness.device(), dtype()).eval()

    def answer(batch: int) -> int:
        texts = [" ".join(words) for words in size.words(size.source - 1, batch)]
        answers = model.predict(texts, num_beams=BEAMS, max_extra_tokens=size.said - size.source, length_penalty=0.0)
        return sum(len(answer.extra["token_ids"]) for answer in answers)

    assert answer(2) == 2 * size.said
    return answer


def peer(size: Size) -> Action:
    model = marian.peer_model(size.model).eval().to(harness.device(), dtype())

    def generate(batch: int) -> int:
        x = torch.randint(2, size.model["vocab_size"], (batch, size.source), device=model.device)
        model.generate(input_ids=x, attention_mask=torch.ones_like(x), num_beams=BEAMS, max_new_tokens=size.said,
                       min_new_tokens=size.said, do_sample=False)  # fmt: skip
        return batch * size.said

    return generate


def ctranslate2(size: Size, kind: str = "float32") -> Action:
    import ctranslate2 as ct2
    import numpy as np
    from ctranslate2.specs import common_spec, transformer_spec

    weights = {name: tensor.detach().numpy() for name, tensor in marian.peer_model(size.model).state_dict().items()}
    depth, heads, vocabulary = (size.model[name] for name in ("depth", "heads", "vocab_size"))
    spec = transformer_spec.TransformerSpec.from_config(
        (depth, depth), heads, pre_norm=False, activation=common_spec.Activation.RELU
    )

    def linear(into: Any, *names: str) -> None:
        into.weight = np.concatenate([weights[f"{name}.weight"] for name in names])
        into.bias = np.concatenate([weights[f"{name}.bias"] for name in names])

    def norm(into: Any, name: str) -> None:
        into.gamma, into.beta = weights[f"{name}.weight"], weights[f"{name}.bias"]

    for side in ("encoder", "decoder"):
        part = getattr(spec, side)
        part.scale_embeddings = False
        table = part.embeddings[0] if isinstance(part.embeddings, list) else part.embeddings
        table.weight = weights["model.shared.weight"]
        part.position_encodings.encodings = weights[f"model.{side}.embed_positions.weight"]
        for number, layer in enumerate(part.layer):
            name = f"model.{side}.layers.{number}"
            own = f"{name}.self_attn"
            linear(layer.self_attention.linear[0], *(f"{own}.{x}_proj" for x in "qkv"))
            linear(layer.self_attention.linear[1], f"{own}.out_proj")
            norm(layer.self_attention.layer_norm, f"{own}_layer_norm")
            if side == "decoder":
                cross = f"{name}.encoder_attn"
                linear(layer.attention.linear[0], f"{cross}.q_proj")
                linear(layer.attention.linear[1], f"{cross}.k_proj", f"{cross}.v_proj")
                linear(layer.attention.linear[2], f"{cross}.out_proj")
                norm(layer.attention.layer_norm, f"{cross}_layer_norm")
            linear(layer.ffn.linear_0, f"{name}.fc1")
            linear(layer.ffn.linear_1, f"{name}.fc2")
            norm(layer.ffn.layer_norm, f"{name}.final_layer_norm")
    spec.decoder.projection.weight = weights["lm_head.weight"]
    words = ["<pad>", "</s>", "<unk>", *(f"t{i}" for i in range(3, vocabulary))]
    spec.register_source_vocabulary(words)
    spec.register_target_vocabulary(words)
    spec.config.bos_token, spec.config.eos_token, spec.config.unk_token = "<pad>", "</s>", "<unk>"
    spec.config.decoder_start_token = "<pad>"
    spec.validate()
    spec.optimize(quantization=kind)
    with tempfile.TemporaryDirectory() as folder:
        spec.save(folder)
        translator = ct2.Translator(folder, compute_type=kind, intra_threads=torch.get_num_threads())

    def translate(batch: int) -> int:
        found = translator.translate_batch(
            size.words(size.source, batch), beam_size=BEAMS, max_decoding_length=size.said, min_decoding_length=size.said,
            max_batch_size=0, end_token=[f"t{vocabulary - 1}"],
        )  # fmt: skip
        return sum(len(result.hypotheses[0]) for result in found)

    return translate


def main(argv: Sequence[str] | None = None) -> None:
    asked, size = arguments(__doc__, argv), SIZES[harness.mode()]
    cases: dict[str, Any] = {"regard": lambda: ours(size)}
    if harness.device() == "cpu":
        harness.limit_threads(2)
    if asked.alone or harness.installed("transformers"):
        cases["transformers"] = lambda: peer(size)
    if harness.device() == "cpu" and (asked.alone or harness.installed("ctranslate2")):
        cases["ctranslate2"] = lambda: ctranslate2(size)

    def alone(name: str) -> dict[str, Any]:
        return measure(cases[name](), size.batches, asked.repeat)

    if asked.alone:
        print(json.dumps(alone(asked.cases[0])))
        return
    print(torch.__version__, harness.device_name())
    for found in in_turns(__file__, asked.cases or list(cases), asked.rounds, asked.repeat, alone):
        print(found, flush=True)


def smoke(folder: Path) -> None:
    main(["--repeat", "1", "--rounds", "1"])


if __name__ == "__main__":
    harness.run(main, smoke)
