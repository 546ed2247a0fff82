"""Greedy generation with GPT-2 of 124 million parameters through the public `predict`, compared with peers in the same run.

    python benchmarks/gpt2_generation.py [case ...] [--repeat 5] [--rounds 3]

CUDA: bfloat16, 128 prompt tokens and 256 generated tokens, batch 1 and 64; `transformers` with its compiled static cache.
CPU: 64 prompt and 64 generated tokens, batch 1: regard in bfloat16 and float32, `transformers`, CTranslate2 in float32.
Random weights; all libraries generate the full number of tokens. Each throughput is printed with its memory-bandwidth limit:
the bytes of weights and KV cache that a step must read, at the speed of a copy.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import harness
import torch
from clock import Clock, bandwidth
from tokenizers import Tokenizer, models, pre_tokenizers
from turns import Action, arguments, in_turns, measure

import regard
from regard.processors.tokenizer.tokenizer import END_OF_TEXT, TextTokenizer


@dataclass(frozen=True)
class Size:
    """Preset with configuration overrides, prompt tokens, generated tokens, and batch sizes."""

    model: str
    given: int
    said: int
    batches: tuple[int, ...]
    changes: dict[str, int] = field(default_factory=dict)

    @property
    def config(self) -> Any:
        return regard.build(self.model, device="meta", **self.changes).config


SIZES = {
    "cuda": Size("gpt2-small", 128, 256, (1, 64)),
    "cpu": Size("gpt2-small", 64, 64, (1,)),
    "smoke": Size(
        "gpt2-mini", 4, 4, (1, 2), {"width": 16, "depth": 1, "heads": 2, "ffn_dim": 32, "vocab_size": 64, "eos_id": 63}
    ),
}
"""Sizes by mode (`harness.mode`)."""


def ours(dtype: torch.dtype, size: Size) -> Action:
    torch.manual_seed(0)
    vocabulary = size.config.vocab_size
    model = regard.build(size.model, **size.changes)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.05)
        model.body.tokens.table.weight[model.config.eos_id] = 0.0  # end-of-text is never the argmax: full length
    names = {**{f"t{i}": i for i in range(vocabulary - 1)}, END_OF_TEXT: vocabulary - 1}
    backend = Tokenizer(models.WordLevel(names, unk_token="t0"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    model.tokenizer = TextTokenizer(backend)
    model = model.to(harness.device(), dtype).eval()

    def answer(batch: int, given: int = size.given, said: int = size.said) -> int:
        texts = [" ".join(f"t{(i * 37 + b) % (vocabulary - 1)}" for i in range(given)) for b in range(batch)]
        answers = model.predict(texts, max_new_tokens=said, do_sample=False)
        return sum(len(answer.extra["token_ids"]) for answer in answers)

    assert answer(2) == 2 * size.said
    return answer


def peer_model(size: Size) -> Any:
    """GPT-2 of `transformers` in that size with random weights."""
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    own = size.config
    config = GPT2Config(
        vocab_size=own.vocab_size, n_positions=own.max_length, n_embd=own.width, n_layer=own.depth, n_head=own.heads,
        n_inner=own.ffn_dim, bos_token_id=own.eos_id, eos_token_id=own.eos_id, attn_implementation="sdpa",
    )  # fmt: skip
    return GPT2LMHeadModel(config)


def peer(size: Size, **more: Any) -> Action:
    device, vocabulary = harness.device(), size.config.vocab_size
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    model = peer_model(size).to(device, dtype).eval()

    def generate(batch: int) -> int:
        x = torch.randint(0, vocabulary, (batch, size.given), device=device)
        model.generate(input_ids=x, attention_mask=torch.ones_like(x), max_new_tokens=size.said, min_new_tokens=size.said,
                       do_sample=False, pad_token_id=vocabulary - 1, eos_token_id=None, **more)  # fmt: skip
        return batch * size.said

    return generate


def ctranslate2(size: Size) -> Action:
    import ctranslate2 as ct2
    from ctranslate2.specs import common_spec, transformer_spec

    own = size.config
    weights = {name: tensor.detach().numpy() for name, tensor in peer_model(size).state_dict().items()}
    kind = transformer_spec.TransformerDecoderModelSpec
    spec = kind.from_config(own.depth, own.heads, pre_norm=True, activation=common_spec.Activation.GELUTanh)

    def linear(into: Any, name: str) -> None:
        into.weight, into.bias = weights[f"{name}.weight"].T.copy(), weights[f"{name}.bias"]

    def norm(into: Any, name: str) -> None:
        into.gamma, into.beta = weights[f"{name}.weight"], weights[f"{name}.bias"]

    part = spec.decoder
    part.scale_embeddings = False
    part.embeddings.weight = weights["transformer.wte.weight"]
    part.position_encodings.encodings = weights["transformer.wpe.weight"]
    norm(part.layer_norm, "transformer.ln_f")
    part.projection.weight = weights["lm_head.weight"]
    for number, layer in enumerate(part.layer):
        name = f"transformer.h.{number}"
        norm(layer.self_attention.layer_norm, f"{name}.ln_1")
        linear(layer.self_attention.linear[0], f"{name}.attn.c_attn")
        linear(layer.self_attention.linear[1], f"{name}.attn.c_proj")
        norm(layer.ffn.layer_norm, f"{name}.ln_2")
        linear(layer.ffn.linear_0, f"{name}.mlp.c_fc")
        linear(layer.ffn.linear_1, f"{name}.mlp.c_proj")
    spec.register_vocabulary([f"t{i}" for i in range(own.vocab_size)])
    spec.config.bos_token = spec.config.eos_token = spec.config.unk_token = f"t{own.vocab_size - 1}"
    spec.validate()
    spec.optimize(quantization="float32")
    with tempfile.TemporaryDirectory() as folder:
        spec.save(folder)
        generator = ct2.Generator(folder, compute_type="float32", intra_threads=torch.get_num_threads())

    def generate(batch: int) -> int:
        texts = [[f"t{(i * 37 + b) % (own.vocab_size - 1)}" for i in range(size.given)] for b in range(batch)]
        found = generator.generate_batch(
            texts, max_length=size.said, min_length=size.said, beam_size=1, include_prompt_in_result=False, end_token=[]
        )
        return sum(len(result.sequences[0]) for result in found)

    return generate


def limit(batch: int, bytes_each: int, speed: float, size: Size) -> float:
    """Tokens per second if a step only read the weights and the KV cache of the prompt and half of the generated tokens."""
    model = regard.build(size.model, device="meta", **size.changes)
    parameters = sum(p.numel() for p in model.parameters())
    past = batch * model.config.depth * 2 * model.config.width * (size.given + size.said / 2)
    return batch * speed / (bytes_each * (parameters + past))


def main(argv: Sequence[str] | None = None) -> None:
    asked, size, cuda = arguments(__doc__, argv), SIZES[harness.mode()], harness.device() == "cuda"
    cases: dict[str, Any] = {"regard": lambda: ours(torch.bfloat16, size)}
    if not cuda:
        harness.limit_threads(2)
        cases |= {"regard float32": lambda: ours(torch.float32, size)}
    if asked.alone or harness.installed("transformers"):
        cases |= {"transformers static": lambda: peer(size, cache_implementation="static")} if cuda else {}
        cases["transformers"] = lambda: peer(size)
    if not cuda and (asked.alone or harness.installed("ctranslate2")):
        cases["ctranslate2"] = lambda: ctranslate2(size)

    def alone(name: str) -> dict[str, Any]:
        return measure(cases[name](), size.batches, asked.repeat)

    if asked.alone:
        print(json.dumps(alone(asked.cases[0])))
        return
    speed = bandwidth(Clock(harness.device(), 5))
    print(torch.__version__, harness.device_name(), f"copy {speed / 1e9:,.0f} GB/s")
    for found in in_turns(__file__, asked.cases or list(cases), asked.rounds, asked.repeat, alone):
        bytes_each = 2 if cuda or found.name == "regard" else 4
        print(f"{found}; limit by bandwidth {limit(found.batch, bytes_each, speed, size):,.0f}", flush=True)


def smoke(folder: Path) -> None:
    main(["--repeat", "1", "--rounds", "1"])
    harness.left_out("transformers static")


if __name__ == "__main__":
    harness.run(main, smoke)
