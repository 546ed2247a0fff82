"""Explanation of generated text: attention maps of translations, and likelihood of each token of a language model."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from regard.draw.text import label
from regard.draw.token_data import ActSteps, AttentionMap, TextLikelihood, TokenLikelihood
from regard.errors import RegardError
from regard.explain import Explanation
from regard.nn.attention.attention import Attention
from regard.nn.recording import named_attentions, record_attention
from regard.processors.tokenizer.token_text import WHITESPACE_SYMBOLS, TokenFormat
from regard.processors.tokenizer.tokenizer import TextTokenizer
from regard.tasks.base import Model, require_tokenizer
from regard.threads import SharedContext
from regard.types import AttentionRecords, Batch, DecoderInputs


def record_forward(model: Model, batch: Batch) -> tuple[AttentionRecords, Tensor]:
    """Attention weights of one forward pass, and log-probabilities (L, V) of the next token at each position."""
    with torch.no_grad(), record_attention(model.body) as records:
        logs = token_log_probs(model, batch)[0]
    return records, logs.cpu()


def token_log_probs(model: Model, batch: Batch) -> Tensor:
    """Log-probabilities (B, L, V) of the next token at each position, in float32 or float64."""
    logits = model.body.to_logits(model.body(batch).sequence)
    return (logits if logits.dtype == torch.float64 else logits.float()).log_softmax(-1)


def stack_layers(records: AttentionRecords, names: Sequence[str], num_queries: int) -> NDArray[np.float32]:
    """Attention (layers, heads, Q, K) of batch row 0, with Q = `num_queries`. A module applied to some queries at a time gives
    one layer; a module applied repeatedly to all queries gives one layer per application."""
    layers: list[NDArray[np.float32]] = []
    for name in names:
        weights = records.weights(name)[0].float().cpu().numpy()
        layers += np.split(weights, max(weights.shape[1] // num_queries, 1), axis=1)
    return np.stack(layers)


_without_cudnn = SharedContext(partial(torch.backends.cudnn.flags, enabled=False))
"""cuDNN does not support the backward pass of RNNs in eval mode."""


def input_gradient_map(model: Model, batch: Batch, target_ids: Sequence[int]) -> NDArray[np.float32]:
    """Saliency (output tokens, input tokens) of one sequence: norm of the gradient of the log-probability of each target token
    with respect to each embedding of `batch.inputs`; rows sum to 1."""
    embedded: list[Tensor] = []

    class CatchEmbeddings(TorchFunctionMode):
        """State of the thread, in contrast to hooks of modules."""

        def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            out = function(*args, **(kwargs or {}))
            if function is not F.embedding or args[0] is not batch.inputs:  # decoder inputs may share the embedding
                return out
            embedded.append(out.detach().requires_grad_())
            return embedded[-1]

    with torch.enable_grad(), _without_cudnn():
        with CatchEmbeddings():
            logs = token_log_probs(model, batch)[0]
        rows = [
            torch.autograd.grad(logs[at, token], embedded, retain_graph=True) for at, token in enumerate(target_ids)
        ]
    sizes = torch.stack([sum((part[0].norm(dim=-1) for part in row), torch.zeros(())) for row in rows])
    return (sizes / sizes.sum(-1, keepdim=True).clamp(min=1e-30)).float().cpu().numpy()


MAPS = {
    "cross": ("Cross-attention (target → source)", "Rows: output tokens. Columns: source tokens."),
    "encoder": ("Encoder self-attention", "Rows: queries. Columns: keys."),
    "decoder": ("Decoder self-attention (causal)", "Rows: queries. Columns: keys."),
    "depends": ("Source saliency (gradient norm)", "This model has no attention; rows sum to 1."),
}
"""Title and description of each map."""
NO_ATTENTION_NOTE = (
    "none: this model encodes the source as one vector of fixed size. Shown instead: norm of the gradient of each output "
    "log-probability with respect to each input embedding; rows sum to 1."
)


def explain_translation(model: Model, source: str, target: str | None, at: None) -> Explanation:
    """Translate (unless `target` is given), then run the model on source and translation with attention recording."""
    if not source.strip():
        raise RegardError("Nothing to explain: the input is empty.")
    text, config = require_tokenizer(model), model.config
    if target is None:  # the generated tokens may differ from the tokenization of the generated text
        answer = model.predict(source, num_return_sequences=1)
        translation, ids = str(answer.value), list(answer.extra["token_ids"])
    else:
        translation, ids = target, text.encode([target], target=True)[0]
    x = torch.tensor([[*text.encode([source.strip()])[0], config.eos_id]], device=model.device)
    inputs, outputs = [config.bos_id, *ids], [*ids, config.eos_id]
    batch = Batch(x, decoder=DecoderInputs(torch.tensor([inputs], device=model.device)))
    records, logs = record_forward(model, batch)
    probabilities = logs[torch.arange(len(outputs)), torch.tensor(outputs)].exp().tolist()
    keys, queries, read = (tuple(text.display_tokens(row)) for row in (x[0].tolist(), outputs, inputs))
    labels = {"cross": (queries, keys), "encoder": (keys, keys), "decoder": (read, read)}
    kinds = {}
    for name, module in named_attentions(model.body).items():
        is_self = isinstance(module, Attention) and not module.is_cross  # RNNsearch attends only to the source
        kinds[name] = "cross" if not is_self else "encoder" if name.startswith("encoder.") else "decoder"
    maps = []
    for kind in (kind for kind in labels if kind in kinds.values()):
        weights = stack_layers(records, [name for name in kinds if kinds[name] == kind], len(labels[kind][0]))
        title, description = (_title(text, model) for text in MAPS[kind])
        maps.append(AttentionMap(kind, title, *labels[kind], weights, description=description))
    pieces = [f"{piece} {probability:.2f}" for piece, probability in zip(queries, probabilities, strict=True)]
    facts = {"probability of each token": " | ".join(pieces)}
    if not maps:
        weights = input_gradient_map(model, batch, outputs)[None, None]
        title, description = (_title(text, model) for text in MAPS["depends"])
        maps.append(AttentionMap("depends", title, queries, keys, weights, is_gradient=True, description=description))
        facts = {"attention": NO_ATTENTION_NOTE, **facts}
    if model.body.shares_layers:
        facts = {"layers": "steps of one block with shared weights", **facts}
    steps = []
    if config.traits.act:
        with torch.no_grad():
            states = model.body(batch)
        names = ("question", "answer") if model.task.name == "algorithmic" else ("source", "translation")
        counts = states.act_steps[0].tolist(), states.aux_losses["target_ponder"][0].tolist()
        titles = names[0], f"before each token of the {names[1]}"
        for name, tokens, own in zip(titles, (keys, queries), counts, strict=True):
            steps.append(ActSteps(f"Ponder steps per token (ACT): {name}", tokens, tuple(own), config.max_steps))
    return Explanation(f"{source} → {translation}", tuple(maps), facts, act_steps=tuple(steps))


def _title(text: str, model: Model) -> str:
    """The text with the names of source and target, or of question and answer for algorithmic tasks."""
    if model.task.name != "algorithmic":
        return text
    return text.replace("target", "answer").replace("source", "question").replace("Source", "Question")


MAX_MAP_TOKENS = 96  # Limit of tokens per map, so that labels stay readable.

TOP_K = 5  # Alternatives listed per token.


def explain_lm(model: Model, source: str, target: str | None, at: None) -> Explanation:
    """Explain the likelihood of a text, or of `target` after the prompt `source`."""
    text, config = require_tokenizer(model), model.config
    prompt, continuation = text.encode([source, target or ""])
    ids = [*prompt, *continuation]
    if not ids:
        raise RegardError("Nothing to explain: the text is empty.")
    if len(ids) > config.max_length:
        raise RegardError(
            f"The text has {len(ids):,} tokens, but the context of the model has {config.max_length:,}. Pass a shorter text."
        )
    # if the context is full, the last token is predicted but is not an input
    read = [config.eos_id, *ids][: config.max_length]
    records, logs = record_forward(model, Batch(torch.tensor([read], device=model.device)))
    # no row for the end token, which attends only to itself; tokens without a row are summed into one column
    first = max(len(read) - MAX_MAP_TOKENS, 1)
    own = logs[: len(ids)].gather(1, torch.tensor(ids)[:, None])  # row t of the log-probabilities predicts token t
    ranks, best = (logs[: len(ids)] > own).sum(1) + 1, logs.topk(min(TOP_K, logs.shape[-1]))
    tokens = []
    for place, piece in enumerate(display_pieces(text, [config.eos_id, *ids])[1:]):
        last = config.eos_id if place == 0 else ids[place - 1]
        names = [display_pieces(text, [last, other])[1] for other in best.indices[place].tolist()]
        top_k = tuple(zip(names, best.values[place].exp().tolist(), strict=True))
        tokens.append(TokenLikelihood(piece, float(own[place]), int(ranks[place]), top_k))
    likelihood = TextLikelihood(
        tokens=tuple(tokens),
        vocab_size=logs.shape[-1],
        num_bytes=len((target if continuation and target else source).encode("utf-8", "replace")),
        prompt_length=len(prompt) if continuation else 0,
        first_row=1 - first,
    )
    weights = stack_layers(records, records.names(), len(read))[:, :, first:]
    weights = np.concatenate([weights[..., :first].sum(-1, keepdims=True), weights[..., first:]], axis=-1)
    pieces, title = display_pieces(text, read), "Causal self-attention"
    before, rows = f"{first:,} before" if first > 1 else pieces[0], tuple(pieces[first:])
    title += f" (last {len(rows)} tokens)" if first > 1 else ""
    maps = (AttentionMap("text", title, rows, (before, *rows), weights, first > 1),)
    return Explanation(join_titles(*(part for part in (source, target) if part)), maps, likelihood.facts(), likelihood)


def display_pieces(text: TextTokenizer, ids: Sequence[int]) -> list[str]:
    """Tokens with a visible leading space, also if spaces are not part of the tokens."""
    pieces, blank = text.display_tokens(ids), WHITESPACE_SYMBOLS[" "]
    if text.token_format in (TokenFormat.BYTES, TokenFormat.CHARACTERS):
        return pieces
    shown = []
    for at, piece in enumerate(pieces):
        opens = at == 0 or ids[at - 1] in text.special_ids or ids[at] in text.special_ids
        shown.append(piece[1:] if piece.startswith("·") else piece if opens else blank + piece)
    return shown


def join_titles(*texts: str) -> str:
    return " ▸ ".join(label(" ".join(text.split()) or text, 72) for text in texts)
