"""Explanation of a translation: all attention maps, or input saliency for models without attention."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from regard.draw.token_data import ActSteps, AttentionMap
from regard.errors import RegardError
from regard.explain.explanation import Explanation
from regard.explain.recorded_pass import record_forward, stack_passes
from regard.explain.saliency import input_gradient_map
from regard.nn.attention.attention import Attention
from regard.nn.recording import named_attentions
from regard.tasks.protocol import ModelProtocol
from regard.types import Batch

TITLES = {
    "cross": "Cross-attention (target → source)",
    "encoder": "Encoder self-attention",
    "decoder": "Decoder self-attention (causal)",
    "depends": "Source saliency (gradient norm)",
}
DESCRIPTIONS = {
    "cross": "Rows: output tokens. Columns: source tokens.",
    "encoder": "Rows: queries. Columns: keys.",
    "decoder": "Rows: queries. Columns: keys.",
    "depends": "This model has no attention; rows sum to 1.",
}
NO_ATTENTION_NOTE = (
    "none: this model encodes the source as one vector of fixed size. Shown instead: norm of the gradient of each output "
    "log-probability with respect to each input embedding; rows sum to 1."
)


def explain_translation(model: ModelProtocol, source: str, target: str | None = None) -> Explanation:
    """Translate (unless `target` is given), then run the model on source and translation with attention recording.

    A row of the cross-attention map is the decoder step that predicts the token of the row."""
    if not source.strip():
        raise RegardError("Nothing to explain: the input is empty.")
    text, config = model.require_tokenizer(), model.config
    answer = model.predict(source, num_return_sequences=1) if target is None else None
    answered = target if answer is None else str(answer.value)
    # the generated tokens may differ from the tokenization of the generated text
    said = text.encode([str(answered)])[0] if answer is None else list(answer.extra["token_ids"])
    x = torch.tensor(model.task.source_ids(text, [source], config), device=model.device)
    read = torch.tensor([[config.bos_id, *said]], device=model.device)
    batch, says = Batch(x, decoder_inputs=read), [*said, config.eos_id]
    seen, logs = record_forward(model, batch)
    sure = logs[torch.arange(len(says)), torch.tensor(says)].exp().tolist()
    keys, queries = tuple(text.display_tokens(x[0].tolist())), tuple(text.display_tokens(says))
    read_pieces = tuple(text.display_tokens(read[0].tolist()))
    labels = {"cross": (queries, keys), "encoder": (keys, keys), "decoder": (read_pieces, read_pieces)}
    kinds = attention_kinds(model)
    maps = []
    for kind in (kind for kind in labels if kind in kinds.values()):
        weights = stack_passes(seen, [name for name in kinds if kinds[name] == kind], len(labels[kind][0]))
        title, description = _title(TITLES[kind], model), _title(DESCRIPTIONS[kind], model)
        maps.append(AttentionMap(kind, title, *labels[kind], weights, description=description))
    facts = {"probability of each token": _format_probabilities(queries, sure)}
    if not maps:
        weights = input_gradient_map(model, batch, says)[None, None]
        title, description = _title(TITLES["depends"], model), DESCRIPTIONS["depends"]
        maps.append(AttentionMap("depends", title, queries, keys, weights, is_gradient=True, description=description))
        facts = {"attention": NO_ATTENTION_NOTE, **facts}
    if hasattr(model.body, "act_steps"):
        facts = {"layers": "steps of one block with shared weights", **facts}
    thoughts = _act_steps(model, batch, keys, queries)
    return Explanation(title=f"{source} → {answered}", maps=tuple(maps), facts=facts, act_steps=thoughts)


def _title(text: str, model: ModelProtocol) -> str:
    """The text with the names of source and target, or of question and answer for algorithmic tasks."""
    if model.task.name != "algorithmic":
        return text
    return text.replace("target", "answer").replace("source", "question").replace("Source", "Question")


def _act_steps(
    model: ModelProtocol, batch: Batch, keys: tuple[str, ...], queries: tuple[str, ...]
) -> tuple[ActSteps, ...]:
    """Number of steps per token, for models with adaptive computation time."""
    if not getattr(model.config, "act", False):
        return ()
    training = model.training
    model.eval()
    with torch.no_grad():
        states = model.body(batch)
    model.train(training)
    most, names = (
        model.config.max_steps,
        ("question", "answer") if model.task.name == "algorithmic" else ("source", "translation"),
    )
    return (
        ActSteps(f"Ponder steps per token (ACT): {names[0]}", keys, _to_ints(states.act_steps), most),
        ActSteps(
            f"Ponder steps per token (ACT): before each token of the {names[1]}",
            queries,
            _to_ints(states.aux_losses["target_ponder"]),
            most,
        ),
    )


def _to_ints(steps: Tensor) -> tuple[int, ...]:
    return tuple(steps[0].tolist())


def attention_kinds(model: ModelProtocol) -> dict[str, str]:
    """Kind of each attention: `cross` (translation to source), `encoder` or `decoder` (self-attention)."""
    return {name: _attention_kind(name, module) for name, module in named_attentions(model.body).items()}


def _attention_kind(name: str, module: nn.Module) -> str:
    if not isinstance(module, Attention) or module.is_cross:  # RNNsearch attends only to the source
        return "cross"
    return "encoder" if name.startswith("encoder.") else "decoder"


def _format_probabilities(pieces: tuple[str, ...], chances: list[float]) -> str:
    return " | ".join(f"{piece} {chance:.2f}" for piece, chance in zip(pieces, chances, strict=True))
