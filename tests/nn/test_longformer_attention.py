"""Longformer attention against dense formulas; systems/test_longformer.py compares with `transformers`."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from oracle import near, noise, noisy, same_with_gradients
from regard.nn.attention.kv_cache import DynamicCache
from regard.nn.attention.longformer import LongformerAttention
from regard.nn.attention.masks import AttentionMask, Causal, GlobalTokens, PackedDocuments, Padding, SlidingWindow
from regard.nn.attention.positions import BoundPosition, PositionIds, Rotary, Shaw, T5Bias
from regard.nn.kernels import dispatch, local_attention
from regard.nn.kernels.linear import Linear
from regard.nn.recording import record_attention
from regard.types import Packing
from windows import CASES, OFFSETS, SOME, Columns, L, band_of, marked

WIDTH, H = 12, 3
NEAR = {name: case for name, case in CASES.items() if name != "dilated beyond the row"}


def written_out(
    module: LongformerAttention, x: Tensor, rule: AttentionMask, inside: BoundPosition | None = None
) -> Tensor:
    """Two dense attentions: global tokens take the second, padding gets 0. All queries and keys are rotated."""
    band, scale = band_of(rule), (WIDTH // H) ** -0.5

    def attend(q: Tensor, k: Tensor, v: Tensor, rule: AttentionMask | None) -> Tensor:
        if inside is not None:
            q, k, v = inside.position.rotate(q, k, v, inside.position_ids)
        mixed, _ = dispatch.eager_attention(q, k, v, dispatch.bool_mask(q, k, rule, None), scale)
        return mixed.transpose(1, 2).flatten(2)

    mixed = attend(*module.project(x), Columns(band))
    if band.global_tokens is not None:
        far = attend(*module.split_heads(module.far_q(x), 1), *module.split_heads(module.far_kv(x), 2), band.token_mask)
        mixed = torch.where(band.global_tokens.tokens[:, :, None], far, mixed)
    real = band.valid_tokens(L)
    return module.out(mixed if real is None else mixed * real[:, :, None])


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reduce the chunk size, so that short rows are chunked."""
    monkeypatch.setattr(local_attention, "chunk_size", lambda q: (5, 60))


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("name", NEAR)
@pytest.mark.parametrize("layout", [None, "interleaved", "halves"])
def test_global_tokens_attend_to_all_with_separate_matrices(name: str, layout: Any) -> None:
    """With and without rotary positions, which rotate queries and keys of both attentions."""
    rows, rule = NEAR[name]
    places = OFFSETS.positions(L) if "packed" in name else torch.arange(3, 3 + L).expand(rows, -1) * 2
    inside = None
    if layout is not None:
        rotary = Rotary(WIDTH // H, layout, rotate_values=layout == "halves")
        inside = BoundPosition(rotary, PositionIds(places, places))
    module, x = noisy(LongformerAttention(WIDTH, H)), noise(rows, L, WIDTH).requires_grad_()
    ours, right = module(x, mask=rule, position=inside), written_out(module, x, rule, inside)
    has_global = band_of(rule).global_positions() is not None
    used = [p for n, p in module.named_parameters() if has_global or not n.startswith("far")]
    same_with_gradients(ours, right, [x, *used])
    watched: list[Any] = []
    near(module(x, mask=rule, position=inside, record=lambda w, *_, **__: watched.append(w) or w), right)
    assert watched


def test_positions_that_need_a_table_of_all_by_all_are_refused_in_windows() -> None:
    module, x = LongformerAttention(WIDTH, H).double(), noise(1, L, WIDTH)
    for position in (T5Bias(H), Shaw(WIDTH // H)):
        with pytest.raises(ValueError, match="Rotary"):
            module(x, mask=SlidingWindow(2, 2), position=BoundPosition(position.double(), PositionIds()))


@pytest.mark.parametrize("count", [1, 2])
def test_few_global_tokens_need_no_keys_of_all_tokens(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    module, x = noisy(LongformerAttention(WIDTH, H)), noise(2, L, WIDTH).requires_grad_()
    rule = (SlidingWindow(2, 2) | GlobalTokens(marked([*range(count)], [5]))) & Padding(torch.tensor([20, L]))
    made = []
    monkeypatch.setattr(
        Linear, "forward", lambda self, x: made.append(self) or nn.functional.linear(x, self.weight, self.bias)
    )
    ours = module(x, mask=rule)
    assert module.far_q in made and module.far_kv not in made
    monkeypatch.setattr(LongformerAttention, "_prefers_folded_kv", lambda *_: False)
    right = module(x, mask=rule)
    assert module.far_kv in made
    same_with_gradients(ours, right, [x, *module.parameters()])


def test_a_matrix_with_a_hook_or_an_adapter_is_not_gone_around() -> None:
    module, x, heard = LongformerAttention(WIDTH, H).double(), noise(2, L, WIDTH), []
    rule = SlidingWindow(2, 2) | GlobalTokens(marked([0, 9], [3]))
    assert module._prefers_folded_kv(1) and not module._prefers_folded_kv(3), "cheaper for few global tokens"
    handle = module.far_kv.register_forward_hook(lambda *_: heard.append(1))
    right = module(x, mask=rule)
    assert heard
    handle.remove()
    module.far_kv = nn.Sequential(module.far_kv)  # type: ignore[assignment]
    near(module(x, mask=rule), right)


def test_short_documents_take_the_kernels_of_whole_documents(monkeypatch: pytest.MonkeyPatch) -> None:
    """A window as long as the longest document masks nothing."""
    module, x = noisy(LongformerAttention(WIDTH, H)), noise(1, L, WIDTH)
    short = Packing(OFFSETS.starts, 15)
    rule = (SlidingWindow(14, 14) | GlobalTokens(marked([0]))) & PackedDocuments(short, short)
    right = written_out(module, x, rule)
    monkeypatch.setattr("regard.nn.kernels.local_attention.local_attention", None)
    near(module(x, mask=rule), right)
    with pytest.raises(TypeError):
        module(x, mask=(SlidingWindow(13, 14) | GlobalTokens(marked([0]))) & PackedDocuments(short, short))


def test_dropout_of_weights_is_there_in_training_only() -> None:
    torch.manual_seed(0)
    module, x = noisy(LongformerAttention(WIDTH, H, dropout=0.3)), noise(2, L, WIDTH)
    rule = (SlidingWindow(4, 4) | GlobalTokens(SOME)) & Padding(torch.tensor([30, L]))
    right = written_out(module, x, rule)
    near(module.eval()(x, mask=rule), right)
    module.train()
    found = torch.stack([module(x, mask=rule) for _ in range(400)])
    assert (found.std(0)[0, :30] > 0.01).all(), "every row, including global tokens"
    assert ((found.mean(0) - right).abs() / (found.std(0) / 20 + 1e-9))[:, :30].mean() < 1.2


def test_global_tokens_whose_weights_are_all_dropped_give_zero(monkeypatch: pytest.MonkeyPatch) -> None:
    module, x = noisy(LongformerAttention(WIDTH, H, dropout=0.3)), noise(2, L, WIDTH)
    monkeypatch.setattr(torch.nn.functional, "dropout", lambda weights, *_, **__: 0 * weights)
    marks = marked([0, 9], [3])
    near(module(x, mask=SlidingWindow(2, 2) | GlobalTokens(marks))[marks], module.out.bias.expand(3, -1))


def test_other_masks_and_unsupported_arguments_are_refused() -> None:
    module, x = LongformerAttention(WIDTH, H), torch.randn(1, 5, WIDTH)
    for rule in (None, Causal(), Padding(torch.tensor([3]))):
        with pytest.raises(ValueError, match="window"):
            module(x, mask=rule)
    others: list[dict[str, Any]] = [{"context": x}, {"cache": DynamicCache()}, {"at": torch.arange(5)}]
    for given in others:
        with pytest.raises(ValueError, match="full sequences"):
            module(x, mask=SlidingWindow(1, 1), **given)


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("name", ["marked", "marked, lengths", "marked, heads apart", "marked, packed"])
def test_recorded_weights_of_global_tokens_give_their_outputs(name: str) -> None:
    """test_local_attention.py compares the weights of windows."""
    rows, rule = CASES[name]
    module, x = noisy(LongformerAttention(WIDTH, H)), noise(rows, L, WIDTH).requires_grad_()
    with record_attention(nn.ModuleDict({"attend": module}), gradients=True) as seen:
        out = module(x, mask=rule)
    windows, far = seen.records
    assert windows.key_index is not None and far.key_index is None and far.query_index is not None
    mixed = (far.weights @ module.split_heads(module.far_kv(x), 2)[1]).transpose(1, 2).flatten(2)
    band, taken = band_of(rule), far.query_index >= 0
    marks, real = band.global_tokens.tokens, band.valid_tokens(L)  # type: ignore[union-attr]
    for row in range(rows):
        places = far.query_index[row][taken[row]]
        assert places.tolist() == marks[row].nonzero()[:, 0].tolist()
        assert not windows.weights[row][:, places].any(), "each row is in one record only"
        valid = 1 if real is None else real[row, places, None]
        near(module.out(valid * mixed[row][taken[row]]), out[row][places])
    owed = torch.autograd.grad(out[:, :5].sum(), [look.weights for look in seen.records])
    assert all(part.abs().sum() > 0 for part in owed)
