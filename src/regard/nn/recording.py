"""Recording of attention weights by hooks that exist only while recording: no cost otherwise."""

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
    """Attention modules of a model by name, e.g. `decoder.blocks.0.cross`."""
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
    """Record the attention weights of the given layers (None: all). The model runs uncompiled inside the context,
    because `torch.compile` ignores hooks added after compilation.

    With `gradients`, weights stay in the autograd graph, even if all parameters are frozen. `callback` receives each
    record immediately and records are not stored, because the weights of long sequences may not fit in memory."""
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
                if gradients and not args[0].requires_grad:  # all earlier parameters are frozen: the graph starts here
                    args = (args[0].detach().requires_grad_(), *args[1:])
                return args, {**kwargs, "record": replace(recorder, next_recorder=kwargs.get("record"))}

            handles.append(places[name].register_forward_pre_hook(pass_on, with_kwargs=True))
        with capabilities.force_eager():
            yield seen
    finally:
        for handle in handles:
            handle.remove()
