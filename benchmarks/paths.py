"""Path lengths in a recorded autograd graph: shortest gradient paths, and the longest chain of matrix products.

An autograd node stands for a whole tensor with all its positions. If a loop splits a tensor into steps (`unbind`) and joins
the steps again (`stack`, `cat`), the search tracks the position: a step that reads position 7 leads to the value at position 7
only, not to all values of the same tensor.
"""

from __future__ import annotations

from collections import deque
from typing import Any

from torch import Tensor

PRODUCTS = {
    "AddmmBackward0": 1,
    "MmBackward0": 1,
    "BmmBackward0": 1,
    "BaddbmmBackward0": 1,
    "LinearBackward0": 1,
    "MvBackward0": 1,
}
FUSED = 2
"""Matrix products of a fused attention operator: scores, and the weighted average of the values."""

Node = Any


def _name(node: Node) -> str:
    return str(node.name()).removeprefix("torch::autograd::")


def products(node: Node) -> int:
    name = _name(node)
    return FUSED if name.startswith("ScaledDotProduct") else PRODUCTS.get(name, 0)


def shortest(value: Tensor, leaf: Tensor, length: int) -> int:
    """Operations between a value and one of the `length` vectors stacked into a sequence; -1 if there is no path."""
    first = (value.grad_fn, None)
    seen, queue = {first}, deque([(*first, 0)])
    while queue:
        node, place, steps = queue.popleft()
        if getattr(node, "variable", None) is leaf:
            return steps
        for step in _behind(node, place, length):
            if step not in seen:
                seen.add(step)
                queue.append((*step, steps + 1))
    return -1


def _behind(node: Node, place: int | None, length: int) -> list[tuple[Node, int | None]]:
    """Next nodes of the gradient, each with its position if the position is known."""
    name, parts = _name(node), node.next_functions
    if name.startswith("Flip") and place is not None:
        place = length - 1 - place
    if name.startswith(("Stack", "Cat")) and len(parts) == length and place is not None:
        parts, place = parts[place : place + 1], None
    found = []
    for after, output in parts:
        if after is not None:
            taken = _name(after).startswith("Unbind") and _slices(after) == length
            found.append((after, output if taken else place))
    return found


def _slices(node: Node) -> int:
    """Number of outputs of an `unbind` node."""
    return len(node._input_metadata)


def longest(value: Tensor) -> int:
    """Matrix products in the longest chain of dependent products, the part that more processors cannot shorten."""
    found: dict[Node, int] = {}
    stack = [value.grad_fn]
    while stack:
        node = stack[-1]
        behind = [after for after, _ in node.next_functions if after is not None]
        waiting = [after for after in behind if after not in found]
        if waiting and node not in found:
            stack += waiting
            continue
        stack.pop()
        found[node] = products(node) + max((found[after] for after in behind), default=0)
    return found[value.grad_fn]
