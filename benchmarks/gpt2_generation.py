"""Greedy generation with GPT-2 of 124 million parameters through the public `answer`, beside its peers in the same run.

    python benchmarks/gpt2_generation.py [case ...] [--repeat 5] [--rounds 3]

CUDA: bfloat16, 128 tokens given and 256 said, batch 1 and 64; `transformers` with its static cache compiled.
CPU: 64 given and 64 said, batch 1: regard in bfloat16 and float32, `transformers`, CTranslate2 in float32.
Random weights; every answer has the full number of tokens on all sides. Beside each figure the limit: the bytes of the
weights (and of keys and values) that a step must read, at the speed of a copy.
"""

from __future__ import annotations

import json
import tempfile
from typing import Any

import torch
from clock import Clock, bandwidth
from tokenizers import Tokenizer, models, pre_tokenizers
from turns import Action, arguments, in_turns, measure

import regard
from regard.inputs.text import END_OF_TEXT, Text

CUDA = torch.cuda.is_available()
DEVICE = "cuda" if CUDA else "cpu"
GIVEN, SAID, BATCHES = (128, 256, (1, 64)) if CUDA else (64, 64, (1,))
VOCABULARY, PARAMETERS, DEPTH, WIDTH = 50_257, 124_439_808, 12, 768


def ours(dtype: torch.dtype) -> Action:
    torch.manual_seed(0)
    model = regard.build("gpt2-small")
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.05)
        model.body.tokens.table.weight[model.config.end] = 0.0  # never the likeliest: every answer has full length
    names = {**{f"t{i}": i for i in range(VOCABULARY - 1)}, END_OF_TEXT: VOCABULARY - 1}
    backend = Tokenizer(models.WordLevel(names, unk_token="t0"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    model.text = Text(backend)
    model = model.to(DEVICE, dtype).eval()

    def answer(batch: int, given: int = GIVEN, said: int = SAID) -> int:
        texts = [" ".join(f"t{(i * 37 + b) % 50000}" for i in range(given)) for b in range(batch)]
        answers = model.answer(texts, length=said, sample=False)
        return sum(len(answer.extra["ids"]) for answer in answers)

    assert answer(2) == 2 * SAID
    return answer


def peer(**more: Any) -> Action:
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    dtype = torch.bfloat16 if CUDA else torch.float32
    model: Any = GPT2LMHeadModel(GPT2Config(attn_implementation="sdpa")).to(DEVICE, dtype).eval()

    def generate(batch: int) -> int:
        x = torch.randint(0, VOCABULARY, (batch, GIVEN), device=DEVICE)
        model.generate(input_ids=x, attention_mask=torch.ones_like(x), max_new_tokens=SAID, min_new_tokens=SAID,
                       do_sample=False, pad_token_id=VOCABULARY - 1, eos_token_id=None, **more)  # fmt: skip
        return batch * SAID

    return generate


def ctranslate2() -> Action:
    import ctranslate2 as ct2
    from ctranslate2.specs import common_spec, transformer_spec
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    weights = {name: tensor.detach().numpy() for name, tensor in GPT2LMHeadModel(GPT2Config()).state_dict().items()}
    kind = transformer_spec.TransformerDecoderModelSpec
    spec = kind.from_config(DEPTH, 12, pre_norm=True, activation=common_spec.Activation.GELUTanh)

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
    spec.register_vocabulary([f"t{i}" for i in range(VOCABULARY)])
    spec.config.bos_token = spec.config.eos_token = spec.config.unk_token = f"t{VOCABULARY - 1}"
    spec.validate()
    spec.optimize(quantization="float32")
    with tempfile.TemporaryDirectory() as folder:
        spec.save(folder)
        generator = ct2.Generator(folder, compute_type="float32", intra_threads=torch.get_num_threads())

    def generate(batch: int) -> int:
        texts = [[f"t{(i * 37 + b) % 50000}" for i in range(GIVEN)] for b in range(batch)]
        found = generator.generate_batch(
            texts, max_length=SAID, min_length=SAID, beam_size=1, include_prompt_in_result=False, end_token=[]
        )
        return sum(len(result.sequences[0]) for result in found)

    return generate


def limit(batch: int, size: int, speed: float) -> float:
    """Tokens a second if a step only read the weights and, on average, half of what is said and all that was given."""
    past = batch * DEPTH * 2 * WIDTH * (GIVEN + SAID / 2)
    return batch * speed / (size * (PARAMETERS + past))


def main() -> None:
    asked = arguments()
    cases: dict[str, Any] = {"regard": lambda: ours(torch.bfloat16)}
    if CUDA:
        cases |= {"transformers static": lambda: peer(cache_implementation="static"), "transformers": peer}
    else:
        torch.set_num_threads(2)
        cases |= {"regard float32": lambda: ours(torch.float32), "transformers": peer, "ctranslate2": ctranslate2}
    if asked.alone:
        print(json.dumps(measure(cases[asked.cases[0]](), BATCHES, asked.repeat)))
        return
    speed = bandwidth(Clock(DEVICE, 5))
    print(torch.__version__, torch.cuda.get_device_name() if CUDA else "cpu", f"copy {speed / 1e9:,.0f} GB/s")
    for found in in_turns(__file__, asked.cases or list(cases), asked.rounds, asked.repeat):
        size = 2 if CUDA or found.name == "regard" else 4
        print(f"{found}; bytes alone would allow {limit(found.batch, size, speed):,.0f}", flush=True)


if __name__ == "__main__":
    main()
