"""What a translator looked at: every attention that its body has, or what its words depended on where it has none."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from regard.draw.act_steps import ActSteps
from regard.draw.attention_maps import AttentionMap
from regard.errors import RegardError
from regard.explain.explanation import Explanation
from regard.explain.recorded_pass import record_forward, stack_passes
from regard.explain.saliency import input_gradient_map
from regard.nn.attention.attention import Attention
from regard.nn.recording import named_attentions
from regard.tasks.protocol import ModelProtocol
from regard.types import Batch

TITLES = {
    "cross": "What each word of the translation looked at in the source",
    "encoder": "What the words of the source looked at among themselves",
    "decoder": "What each word of the translation looked at in what was said before",
    "depends": "No attention here: how far each word depended on the source",
}
NO_ATTENTION_NOTE = (
    "none: this system sees the source only as one state of fixed size. Shown is how much the probability of each word would "
    "change with each word of the source (the length of the gradient, rows sum to 1)."
)


def explain_translation(model: ModelProtocol, source: str, target: str | None = None) -> Explanation:
    """Translate (unless `target` is given), then read source and translation once more with all attentions watched.

    A row of the cross map is the moment at which that word is said: the decoder has read all before it."""
    if not source.strip():
        raise RegardError("there is nothing to explain: the input is empty.")
    text, config = model.require_tokenizer(), model.config
    answer = model.predict(source, num_return_sequences=1) if target is None else None
    answered = target if answer is None else str(answer.value)
    # the tokens that were said, which need not be those that the text would be split into
    said = text.encode([str(answered)])[0] if answer is None else list(answer.extra["ids"])
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
        maps.append(AttentionMap(kind, _title(kind, model), *labels[kind], weights))
    facts = {"probability of each token": _format_probabilities(queries, sure)}
    if not maps:
        weights = input_gradient_map(model, batch, says)[None, None]
        maps.append(AttentionMap("depends", _title("depends", model), queries, keys, weights, is_gradient=True))
        facts = {"attention": NO_ATTENTION_NOTE, **facts}
    if hasattr(model.body, "act_steps"):
        facts = {"layers": "the steps of one block, whose weights are the same at each", **facts}
    thoughts = _act_steps(model, batch, keys, queries)
    return Explanation(title=f"{source} → {answered}", maps=tuple(maps), facts=facts, act_steps=thoughts)


def _title(kind: str, model: ModelProtocol) -> str:
    """What is translated is a source, what is answered a question."""
    title = TITLES[kind]
    return (
        title.replace("translation", "answer").replace("source", "question")
        if model.task.name == "algorithmic"
        else title
    )


def _act_steps(
    model: ModelProtocol, batch: Batch, keys: tuple[str, ...], queries: tuple[str, ...]
) -> tuple[ActSteps, ...]:
    """How many steps each token took, of systems whose tokens stop by themselves."""
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
        ActSteps(f"Steps for the tokens of the {names[0]}", keys, _to_ints(states.act_steps), most),
        ActSteps(f"Steps before those of the {names[1]}", queries, _to_ints(states.aux_losses["target_ponder"]), most),
    )


def _to_ints(steps: Tensor) -> tuple[int, ...]:
    return tuple(steps[0].tolist())


def attention_kinds(model: ModelProtocol) -> dict[str, str]:
    """What each attention of a translator connects: translation and source (`cross`), or one of them with itself."""
    return {name: _attention_kind(name, module) for name, module in named_attentions(model.body).items()}


def _attention_kind(name: str, module: nn.Module) -> str:
    if not isinstance(module, Attention) or module.is_cross:  # ancestors look at the source alone
        return "cross"
    return "encoder" if name.startswith("encoder.") else "decoder"


def _format_probabilities(pieces: tuple[str, ...], chances: list[float]) -> str:
    return " | ".join(f"{piece} {chance:.2f}" for piece, chance in zip(pieces, chances, strict=True))
