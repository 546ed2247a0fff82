"""Watching attention costs nothing to those who don't: hooks are there only while somebody looks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from torch import nn

from regard import capabilities
from regard.nn.attention.attention import Attention, AttentionRecorder
from regard.nn.points.vector_attention import VectorAttention
from regard.nn.recurrent.score_attention import ScoreAttention
from regard.types import AttentionRecord, AttentionRecords


def named_attentions(model: nn.Module) -> dict[str, Attention | ScoreAttention | VectorAttention]:
    """The attentions of a model by the name of their place: `decoder.blocks.0.cross`."""
    return {
        name.replace("_orig_mod.", "").removeprefix("body.").removesuffix(".inner"): module
        for name, module in model.named_modules()
        if isinstance(module, Attention | ScoreAttention | VectorAttention)
    }


@contextmanager
def record_attention(
    model: nn.Module, layers: list[str] | None = None, gradients: bool = False,
    callback: Callable[[AttentionRecord], None] | None = None,
) -> Iterator[AttentionRecords]:  # fmt: skip
    """Collect the weights of the named attentions (None: all). The uncompiled module runs while this is open:
    a hook that is added after `torch.compile` would be ignored without a word.

    With `gradients` the weights stay in the graph, also of a model whose parameters are frozen. `each` is told of every look
    at once, and none is kept: of long rows all weights together would fill the memory."""
    seen = AttentionRecords()
    places = named_attentions(model)
    unknown = set(layers or ()) - set(places)
    if unknown:
        raise ValueError(f"Unknown attention layers {sorted(unknown)}. Available: {sorted(places)}.")
    handles = []
    try:
        for name in places if layers is None else layers:
            recorder = AttentionRecorder(name, seen, keep_graph=gradients, callback=callback)

            def pass_on(
                _: nn.Module, args: Any, kwargs: Any, recorder: AttentionRecorder = recorder
            ) -> tuple[Any, Any]:
                if gradients and not args[0].requires_grad:
                    args = (
                        args[0].detach().requires_grad_(),
                        *args[1:],
                    )  # nothing before is learnt: a graph begins here
                return args, {**kwargs, "record": replace(recorder, next_recorder=kwargs.get("record"))}

            handles.append(places[name].register_forward_pre_hook(pass_on, with_kwargs=True))
        with capabilities.force_eager():
            yield seen
    finally:
        for handle in handles:
            handle.remove()
