"""Kernels on a CUDA device against plain attention; test_attention.py tests kernel selection without a device."""

from __future__ import annotations

import copy
import gc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from test_capabilities import remove
from torch.nn import functional as F

import regard
from conftest import TWELVE, Pairs, rows, same_tensors, stopped_in, train_tiny, write_pairs
from oracle import kernel_name
from regard import capabilities
from regard.decode.search import search
from regard.decode.searches import SearchInputs, plain_search
from regard.decode.settings import DecodeSettings
from regard.nn.attention.masks import AttentionMask, Causal, Full, PackedDocuments, Padding, SlidingWindow
from regard.nn.blocks.block import FeedForward, TokenEmbedding
from regard.nn.kernels import dispatch
from regard.nn.kernels import losses as loss
from regard.nn.kernels.cuda_graph import capture
from regard.nn.kernels.dispatch import AttentionCall
from regard.nn.kernels.linear import accepts_gelu, linear_gelu
from regard.nn.vision.dense import conv_then_resize, resize_bilinear
from regard.processors.tokenizer.tokenizer import TextTokenizer
from regard.types import IGNORE, Batch, DecoderInputs, Packing
from tiny import tiny

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")

STARTS = Packing(torch.tensor([0, 5, 6, 40, 64]), 64)
OTHERS = Packing(torch.tensor([0, 9, 12, 50, 80]), 64)


def heads(length: int, seed: int, dtype: torch.dtype, rows: int = 1) -> torch.Tensor:
    made = torch.randn(rows, 4, length, 32, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return made.to("cuda", dtype).requires_grad_()


def on_cuda(offsets: Packing) -> Packing:
    return Packing(offsets.starts.cuda(), offsets.max_length)


def agree(ours: Any, right: Any, tolerance: float = 1e-2, floor: float = 0.0) -> None:
    """Relative L2 distance of each tensor within the tolerance."""
    for mine, theirs in zip(ours, right, strict=True):
        assert mine.shape == theirs.shape and (mine.double() - theirs).norm() <= tolerance * theirs.norm() + floor


def equals_plain_attention(kernel: Any, qkv: Any, rule: AttentionMask, floor: float = 0.0) -> None:
    """Outputs and gradients of a kernel equal plain attention in float64."""
    got = kernel(AttentionCall(*qkv, 0.2, rule))
    exact = [x.detach().double().requires_grad_() for x in qkv]
    wanted, _ = dispatch.eager_attention(*exact, dispatch.bool_mask(*exact[:2], rule, None), 0.2)
    way = torch.randn_like(wanted)
    got.backward(way.to(got.dtype))
    wanted.backward(way)
    agree([got, *(x.grad for x in qkv)], [wanted, *(x.grad for x in exact)], floor=floor)


FORMS = [
    *((form, kernel, torch.bfloat16) for form in ("same", "causal", "cross") for kernel in ("varlen", "varlen_short")),
    *((form, "varlen", torch.bfloat16) for form in ("window", "causal window")),
    *((f"band {band}", "varlen", dtype) for band in (1, 5, 63) for dtype in (torch.float16, torch.bfloat16)),
]
"""The kernel for short documents does not support windows."""


@pytest.mark.parametrize(("form", "kernel", "dtype"), FORMS)
def test_varlen_kernels_equal_plain_attention_forward_and_backward(form: str, kernel: str, dtype: torch.dtype) -> None:
    own, other = on_cuda(STARTS), on_cuda(OTHERS)
    packed = PackedDocuments(own, other if form == "cross" else own)
    rule: AttentionMask = {
        "causal": packed & Causal(),
        "window": SlidingWindow(3, 2) & packed,
        "causal window": Causal() & packed & SlidingWindow(4, 9),
        **{f"band {band}": Causal() & SlidingWindow(band - 1, 0) for band in (1, 5, 63)},
    }.get(form, packed)
    rows, keys_length = 2 if form.startswith("band") else 1, 80 if form == "cross" else 64
    q, k, v = (heads(n, seed, dtype, rows) for n, seed in ((64, 1), (keys_length, 2), (keys_length, 3)))
    chosen = "varlen" if "window" in form or "band" in form else "varlen_short"
    assert kernel_name(q, k, rule, None, 0.0, False) == chosen
    equals_plain_attention(getattr(dispatch, kernel), (q, k, v), rule, floor=1e-3 if rows == 2 else 0.0)


@pytest.mark.parametrize("determined", [False, True])
def test_whole_causal_rows_are_the_plain_rule_whichever_kernel_takes_them(determined: bool) -> None:
    q, k, v = (torch.randn(2, 3, 1024, 64, device="cuda", dtype=torch.bfloat16).requires_grad_() for _ in range(3))
    torch.use_deterministic_algorithms(determined)
    try:
        got = dispatch.sdpa(AttentionCall(q, k, v, 0.2, Causal(), None, 0.0))
        got.float().sum().backward()
    finally:
        torch.use_deterministic_algorithms(False)
    exact = [x.detach().double() for x in (q, k, v)]
    wanted, _ = dispatch.eager_attention(*exact, dispatch.bool_mask(*exact[:2], Causal(), None), 0.2)
    assert (got.double() - wanted).norm() <= 1e-2 * wanted.norm() and all(x.grad is not None for x in (q, k, v))


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 2e-5), (torch.bfloat16, 1e-2)])
def test_padded_rows_equal_the_plain_rule_and_a_query_without_keys_gives_zero(
    dtype: torch.dtype, tolerance: float
) -> None:
    rule = Causal() & Padding(torch.tensor([0, 4], device="cuda"))
    q, k, v = (heads(6, seed, dtype).expand(2, -1, -1, -1) for seed in (1, 2, 3))
    out = dispatch.sdpa(AttentionCall(q, k, v, 0.2, rule, None, 0.0))
    wanted, _ = dispatch.eager_attention(*(x.double() for x in (q, k, v)), dispatch.bool_mask(q, k, rule, None), 0.2)
    agree([out], [wanted], tolerance)
    assert (out[0] == 0).all()
    out.float().sum().backward()


def test_packed_dropout_scales_weights_and_passes_on_the_gradient_of_kept_ones() -> None:
    """Values are rows of the identity matrix, so that outputs are the attention weights."""
    own, share = on_cuda(STARTS), 0.25
    q, k = (heads(64, seed, torch.bfloat16) for seed in (1, 2))
    v = torch.eye(64, device="cuda", dtype=torch.bfloat16).expand(1, 4, 64, 64).contiguous().requires_grad_()
    q, k = (torch.cat((x, x), -1).detach() for x in (q, k))
    assert kernel_name(q, k, PackedDocuments(own, own), None, share, False) == "varlen"
    found = dispatch.varlen(AttentionCall(q, k, v, 0.2, PackedDocuments(own, own), None, share))
    right, _ = dispatch.eager_attention(
        *(x.double() for x in (q, k, v)), dispatch.bool_mask(q, k, PackedDocuments(own, own), None), 0.2
    )
    kept = found[right > 0].double() / right[right > 0]
    assert ((kept == 0) | ((kept - 1 / (1 - share)).abs() < 0.05)).all()
    assert abs(float((kept == 0).double().mean()) - share) < 0.05 and float(found[right == 0].detach().abs().max()) == 0
    told = torch.randn_like(found)
    (gradient,) = torch.autograd.grad(found, v, told)
    wanted = found.detach().double().transpose(-2, -1) @ told.double()
    assert torch.allclose(gradient.double(), wanted, atol=0.05)


# -- training: captured, compiled and plain steps agree; deterministic runs resume bit for bit


def losses(few: Path, out: Path, *settings: str) -> list[float]:
    train_tiny(few, out, *TWELVE, "train.precision=bfloat16", "train.log_every=1", *settings, device="cuda")
    return [row["loss"] for row in rows(out, "train")]


def test_captured_steps_equal_plain_steps_and_dropout_continues(few: Path, tmp_path: Path) -> None:
    plain = losses(few, tmp_path / "plain", "train.compile=off")
    recorded = losses(few, tmp_path / "recorded", "train.compile=graph")
    assert recorded == pytest.approx(plain, rel=2e-3)
    padded = losses(few, tmp_path / "padded", "train.packing=off", "model.dropout=0")
    assert len(padded) == 12 and padded[-1] < padded[0]


def test_a_deterministic_run_resumes_bit_for_bit(few: Path, tmp_path: Path) -> None:
    # no workers: the signal must reach the main process
    settings = ("train.deterministic=true", "train.ema_decay=0.9", "data.num_workers=0")
    right = losses(few, tmp_path / "whole", *settings)
    with stopped_in(6):
        losses(few, tmp_path / "halved", *settings)
    train_tiny((), tmp_path / "halved", tiny=False, resume=True, device="cuda")
    assert [row["loss"] for row in rows(tmp_path / "halved", "train")] == right
    same_tensors(tmp_path / "whole/model.safetensors", tmp_path / "halved/model.safetensors")


def test_a_graph_follows_weights_that_change_in_place() -> None:
    model, settings = tiny("transformer").cuda(), DecodeSettings()
    batch = Batch(
        torch.randint(3, 9, (2, 4)).cuda(), decoder=DecoderInputs(torch.full((2, 1), model.config.bos_id).cuda())
    )
    limits = torch.tensor([6, 6])
    before = search(model.body, batch, model.config.eos_id, limits, settings)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(-1.3)
    after = search(model.body, batch, model.config.eos_id, limits, settings)
    assert after[0][0].log_probs != before[0][0].log_probs
    with torch.inference_mode():
        right = plain_search(SearchInputs(model.body, batch, model.config.eos_id, limits, settings, np.arange(2)))
    assert [f[0].tokens for f in after] == [f[0].tokens for f in right]


# -- loss with a large vocabulary


def loss_of(
    tokens: TokenEmbedding, x: torch.Tensor, labels: torch.Tensor, smoothing: float = 0.0
) -> tuple[torch.Tensor, torch.Tensor]:
    bias = tokens.bias if tokens.has_bias else None
    return loss.linear_cross_entropy(x, tokens.table.weight, bias, labels, smoothing)


def reading(dtype: torch.dtype, biased: bool) -> tuple[TokenEmbedding, torch.Tensor, torch.Tensor]:
    """An odd vocabulary size, hidden states and labels, some of them ignored."""
    torch.manual_seed(1)
    tokens = TokenEmbedding(5003, 64, bias=biased).to("cuda", dtype)
    x = torch.randn(3, 100, 64, device="cuda", dtype=dtype).requires_grad_()
    labels = torch.randint(0, 5003, (3, 100), device="cuda")
    labels[:, ::7] = IGNORE
    return tokens, x, labels


def exactly(tokens: TokenEmbedding, x: torch.Tensor, labels: torch.Tensor, scale: float) -> list[torch.Tensor]:
    """Loss and gradients of the plain formula in float64."""
    exact = [part.detach().double().requires_grad_() for part in (x, *reversed(list(tokens.parameters())))]
    total, _ = loss.cross_entropy(F.linear(*exact), labels, 0.1)
    return [total.detach(), *torch.autograd.grad(total * scale, exact)]


@pytest.mark.parametrize("parts", [False, True])
@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize(
    ("own", "cast"),
    [(torch.float32, torch.bfloat16), (torch.float32, torch.float16), (torch.bfloat16, None), (torch.float16, None)],
)
def test_the_fused_loss_is_the_plain_one_with_its_gradients(
    own: torch.dtype, cast: torch.dtype | None, biased: bool, parts: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if parts:
        monkeypatch.setattr(loss, "MAX_LOGIT_BYTES", 1)
    tokens, x, labels = reading(own, biased)
    leaves = [x, *reversed(list(tokens.parameters()))]
    assert len(leaves) == 2 + biased and leaves[1].ndim == 2
    with torch.autocast("cuda", cast, enabled=cast is not None):
        assert loss._half_dtype(x, tokens.table.weight) == (cast or own)
        total, count = loss_of(tokens, x, labels, 0.1)
        with torch.no_grad():
            assert torch.equal(loss_of(tokens, x, labels, 0.1)[0], total)
    ours = torch.autograd.grad(total * 0.3, leaves)
    assert int(count) == int((labels != IGNORE).sum()) < labels.numel() and total.dtype == torch.float32
    assert [gradient.dtype for gradient in ours] == [own] * len(leaves)
    agree([total.detach(), *ours], exactly(tokens, x, labels, 0.3))


def test_the_fused_loss_of_no_rows_is_zero_and_of_a_wrong_label_no_number() -> None:
    tokens, x, labels = reading(torch.bfloat16, False)
    total, count = loss_of(tokens, x[:0], labels[:0])
    (gradient,) = torch.autograd.grad(total, tokens.table.weight)
    assert total.item() == 0.0 and int(count) == 0 and gradient.shape == (5003, 64) and not gradient.any()
    labels[1, 1] = 5003
    assert loss_of(tokens, x, labels)[0].isnan()


@pytest.mark.parametrize("compiled", [False, True])
def test_the_fused_loss_is_compiled_and_captured(compiled: bool) -> None:
    tokens, x, labels = reading(torch.float32, False)
    leaves = [x, tokens.table.weight]

    def made(x: torch.Tensor, labels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        with torch.autocast("cuda", torch.bfloat16):
            return loss_of(tokens, x, labels, 0.1)

    work = torch.compile(made, fullgraph=True) if compiled else made

    def grain() -> list[torch.Tensor]:
        total, count = work(x, labels)
        return [total.detach(), *torch.autograd.grad(total / count, leaves)]

    graph, result = capture(grain, x.device)
    with torch.no_grad():  # other values in the captured tensors
        x.copy_(x.roll(1, 0) * 0.7)
        labels.copy_(labels.roll(5, 1))
        labels[0] = IGNORE
    graph.replay()
    agree(result, exactly(tokens, x, labels, 1 / float((labels != IGNORE).sum())))


# -- fused decoding steps

HOPPER = torch.cuda.is_available() and torch.cuda.get_device_capability() >= (9, 0)
EARLY = [False, True] if HOPPER else [False]
LOW = {torch.float32: 1e-5, torch.bfloat16: 1e-2, torch.float16: 2e-3}


def random(*shape: int, dtype: torch.dtype, seed: int = 1) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator("cuda").manual_seed(seed), device="cuda").to(dtype)


@pytest.mark.parametrize("early", EARLY)
@pytest.mark.parametrize("dtype", LOW)
@pytest.mark.parametrize(
    ("sizes", "band"),
    [((1, 12, 1024, 64), 0), ((64, 12, 300, 64), 0), ((3, 2, 700, 80), 128), ((9, 4, 65, 128), 7), ((2, 1, 40, 16), 0)],
)
def test_a_captured_attention_step_equals_plain_attention_at_every_position(
    sizes: tuple[int, int, int, int], band: int, dtype: torch.dtype, early: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    from regard.nn.kernels import decode_attention

    monkeypatch.setattr(decode_attention, "supports_pdl", lambda device: early)
    (B, H, room, d), columns = sizes, torch.arange(sizes[2], device="cuda")
    at = torch.randint(0, room - 8, (B,), generator=torch.Generator().manual_seed(1)).cuda()
    at[0] = room - 8
    beyond = (columns >= at[:, None])[:, None, :, None]
    k, v = (random(*sizes, dtype=dtype, seed=seed).masked_fill(beyond, torch.nan) for seed in (1, 2))
    qkv, counts = random(B, 3 * H * d + 11, dtype=dtype)[:, 8:-3], decode_attention.make_counters(k)

    def work() -> torch.Tensor:
        out = decode_attention.decode_attention(qkv, k, v, at, counts, d**-0.5, band)
        at.add_(1)
        return out

    with torch.inference_mode():
        graph, ours = capture(work, k.device)
    for _ in range(5):
        qkv.normal_()
        rows, now = torch.arange(B, device="cuda"), at.clone()
        q, key, value = qkv.reshape(B, 3, H, d).unbind(1)
        keys, values = k.clone(), v.clone()
        keys[rows, :, now], values[rows, :, now] = key, value
        graph.replay()
        for kept, right in ((k, keys), (v, values)):
            assert torch.equal(kept.nan_to_num(7), right.nan_to_num(7))
        may = (columns <= now[:, None]) & (columns > now[:, None] - (band or room))
        exact = [x.nan_to_num().double() for x in (q[:, :, None], keys, values)]
        wanted, _ = dispatch.eager_attention(exact[0], exact[1], exact[2], may[:, None, None], d**-0.5)
        assert (ours.double() - wanted.flatten(1)).norm() <= LOW[dtype] * wanted.norm()
        assert not counts.any()


@pytest.mark.parametrize("early", EARLY)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("sizes", [(1, 2304, 768), (3, 1001, 100), (8, 4800, 1600)])
def test_a_linear_layer_of_few_rows_is_the_operators_around_it(
    sizes: tuple[int, int, int], dtype: torch.dtype, early: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    from regard.nn.kernels import small_linear

    monkeypatch.setattr(small_linear, "supports_pdl", lambda device: early)
    monkeypatch.setattr(small_linear, "MAX_OVERLAP_ROWS", 10**9)
    M, N, K = sizes
    x, weight = random(M, K + 8, dtype=dtype)[:, 8:], random(N, K, dtype=dtype) / K**0.5
    bias, more, gain, offset = (random(*shape, dtype=dtype, seed=3) for shape in ((N,), (M, N), (K,), (K,)))
    forms: list[tuple[small_linear.Activation, torch.Tensor | None, torch.Tensor | None, bool]] = [
        ("", None, None, False), ("", bias, more, False), ("relu", bias, None, True), ("gelu", None, more, True),
        ("gelu_tanh", bias, more, True),
    ]  # fmt: skip
    for activation, b, r, normed in forms:
        ours = small_linear.small_linear(x, weight, b, activation, r, (gain, offset, 1e-5) if normed else None)
        row = F.layer_norm(x.double(), (K,), gain.double(), offset.double()) if normed else x.double()
        right = F.linear(row, weight.double(), None if b is None else b.double())
        right = right.relu() if activation == "relu" else right
        if activation.startswith("gelu"):
            right = F.gelu(right, approximate="tanh" if activation == "gelu_tanh" else "none")
        right = right if r is None else right + r.double()
        assert ours.dtype == dtype and (ours.double() - right).norm() <= LOW[dtype] * right.norm()


@pytest.mark.skipif(not HOPPER, reason="needs a GPU whose kernels can begin early")
def test_kernels_with_early_launch_wait_for_their_inputs(monkeypatch: pytest.MonkeyPatch) -> None:
    from regard.nn.kernels import decode_attention, small_linear

    B, H, d, room, D = 1, 12, 64, 512, 768
    past, x = random(6, 2, B, H, room, d, dtype=torch.bfloat16), random(B, D, dtype=torch.bfloat16)
    at, kept = torch.zeros(B, dtype=torch.long).cuda(), past.clone()
    counts = decode_attention.make_counters(kept[0, 0])
    wide, back = (random(*shape, dtype=torch.bfloat16) / D**0.5 for shape in ((3 * D, D), (D, D)))
    norm = random(D, dtype=torch.bfloat16), random(D, dtype=torch.bfloat16), 1e-5

    def work() -> torch.Tensor:
        now = x
        for k, v in kept:
            mixed = decode_attention.decode_attention(
                small_linear.small_linear(now, wide, norm=norm), k, v, at, counts, d**-0.5, 0
            )
            now = small_linear.small_linear(mixed, back, residual=now)
        at.add_(1)
        return now

    def seen(early: bool) -> torch.Tensor:
        for module in (small_linear, decode_attention):
            monkeypatch.setattr(module, "supports_pdl", lambda device: early)
        with torch.inference_mode():
            graph, out = capture(work, x.device)
        kept.copy_(past)
        found = []
        for step in range(50):
            at.fill_(7 * step)
            x.copy_(random(B, D, dtype=torch.bfloat16, seed=step))
            graph.replay()
            found.append(out.clone())
        return torch.stack(found)

    right = seen(False)
    assert torch.equal(seen(True), right)


@pytest.mark.parametrize("rows", [3, 20])
@pytest.mark.parametrize("name", ["gpt2-mini", "gpt3-mini", "gpt1", "decoder-tiny"])
def test_steps_of_static_caches_equal_one_pass(name: str, rows: int) -> None:
    """Few rows use fused block kernels, many rows the attention kernel; rows have different lengths."""
    torch.manual_seed(0)
    changes = {"depth": 3, "width": 128, "heads": 2, "ffn_dim": 256, "vocab_size": 501, "eos_id": 500}
    model = regard.build(name, **changes, **({"local_window": 16} if name == "gpt3-mini" else {})).eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.1)
    whole, body = copy.deepcopy(model).double().body, model.cuda().body
    x = torch.randint(0, 500, (rows, 60))
    lengths = torch.randint(1, 30, (rows,))
    with torch.inference_mode():
        right = whole.to_logits(whole(Batch(x)).sequence)
        state = body.start(Batch(x[:, :30].cuda(), lengths.cuda()), max_positions=96)
        for step in range(30):
            at = lengths - 1 + step
            ours = body.step(x.gather(1, at[:, None])[:, 0].cuda(), state).cpu().double()
            wanted = right.gather(1, at[:, None, None].expand(-1, -1, right.shape[2]))[:, 0]
            assert (ours - wanted).abs().max() < 1e-4 * wanted.abs().max(), step


GENERATED: list[dict[str, Any]] = [
    {"do_sample": False}, {"do_sample": True, "top_k": 5, "seed": 3}, {"num_beams": 3, "do_sample": False},
    {"repetition_penalty": 1.3, "do_sample": False},
]  # fmt: skip


@pytest.mark.parametrize("settings", GENERATED)
def test_captured_generation_equals_plain_generation(settings: dict[str, Any]) -> None:
    torch.manual_seed(0)
    model = regard.build("gpt2-mini", depth=2, vocab_size=60, eos_id=59, max_length=96).eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.2)
    model.tokenizer = TextTokenizer.from_characters(["".join(chr(97 + i) for i in range(59))])
    texts, limited = ["abc", "d", "", "thequick", "xyz" * 5], {"max_new_tokens": 20, **settings}
    right = [answer.extra["token_ids"] for answer in model.predict(texts, **limited)]
    there = model.cuda()
    assert [answer.extra["token_ids"] for answer in there.predict(texts, **limited)] == right
    if not settings.get("do_sample"):  # random numbers depend on the index of a text
        assert [there.predict(text, **limited).extra["token_ids"] for text in texts] == right
    if settings.get("num_beams", 1) == 1:
        assert "".join(there.stream("abc", **limited)) == there.predict("abc", **limited).value


# -- kernels of image systems


@pytest.mark.parametrize("length", [50, 128, 197, 577])
@pytest.mark.parametrize("recorded", [False, True])
def test_attention_between_image_patches_equals_plain_attention(length: int, recorded: bool) -> None:
    """Queries, keys and values are views of one projection."""
    qkv = torch.randn(3, length, 3, 4, 64, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    way = torch.randn(3, 4, length, 64, device="cuda", dtype=torch.bfloat16)

    def work() -> list[torch.Tensor]:
        out = dispatch.sdpa(AttentionCall(*(part.transpose(1, 2) for part in qkv.unbind(2)), 0.125, Full()))
        return [out, *torch.autograd.grad(out, (qkv,), way)]

    if recorded:  # before the gradient of qkv is touched on another stream
        graph, got = capture(work, torch.device("cuda"))
        graph.replay()
    else:
        got = work()
    exact = qkv.detach().double().requires_grad_()
    wanted = dispatch.eager_attention(*(part.transpose(1, 2) for part in exact.unbind(2)), None, 0.125)[0]
    agree(got, (wanted, *torch.autograd.grad(wanted, (exact,), way.double())))


@pytest.mark.parametrize(("old", "new"), [((5, 7), (10, 14)), ((6, 6), (1, 9)), ((9, 4), (5, 3)), ((1, 3), (4, 6))])
@pytest.mark.parametrize("channels", [32, 40, 130])
def test_maps_are_made_larger_as_torch_does_it(old: tuple[int, int], new: tuple[int, int], channels: int) -> None:
    x = torch.randn(3, channels, *old, device="cuda")
    wanted = F.interpolate(x.double(), new, mode="bilinear", align_corners=True)
    with torch.no_grad():
        for given in (x, x.to(memory_format=torch.channels_last)):
            assert (resize_bilinear(given, new) - wanted).abs().max() < 1e-5
        assert (resize_bilinear(x.bfloat16(), new) - wanted).norm() < 1e-2 * wanted.norm()
        folded = torch.nn.Conv2d(channels, channels, 1, device="cuda")
        wanted = F.interpolate(copy.deepcopy(folded).double()(x.double()), new, mode="bilinear", align_corners=True)
        assert (conv_then_resize(folded, x, new) - wanted).abs().max() < 2e-3
    assert resize_bilinear(x.requires_grad_(), new).requires_grad and conv_then_resize(folded, x, new).requires_grad


@pytest.mark.parametrize("kind", ["gelu", "gelu_tanh"])
def test_a_matrix_and_gelu_in_one_kernel_are_nearer_to_float64_than_in_two(kind: str) -> None:
    torch.manual_seed(0)
    feed = FeedForward(192, 768, kind).cuda()
    torch.nn.init.normal_(feed.up.weight, std=0.12)  # preactivations as large as in a trained model
    torch.nn.init.normal_(feed.up.bias, std=0.5)
    x = torch.randn(4, 50, 192, device="cuda")
    low, small = copy.deepcopy(feed).bfloat16(), x.bfloat16()
    exact = copy.deepcopy(low).double()
    wanted = exact.activation(exact.up(small.double()))
    two = low.activation(low.up(small))
    with torch.no_grad():
        assert accepts_gelu(small, low.up.weight, low.up.bias, kind)
        one = linear_gelu(small, low.up.weight, low.up.bias)
        whole = low(small)
    assert (one - wanted).norm() <= 1.001 * (two - wanted).norm() and (one - wanted).abs().max() < 0.02
    assert (whole - exact(small.double())).norm() < 1e-2 * whole.norm()
    assert not accepts_gelu(small, low.up.weight, low.up.bias, kind), "with gradients"
    with torch.no_grad():
        assert torch.allclose(torch.compile(low)(small), whole, atol=1e-2)


# -- training, prediction and explanation work without each capability


def results(data: Path, out: Path) -> tuple[list[float], list[str], list[float]]:
    """Losses, greedy and beam predictions, and the largest attention weights; in bfloat16, with packed rows."""
    steps = ("train.steps=3", "train.eval_every=3", "train.log_every=1")
    train_tiny(data, out, *steps, "train.precision=bfloat16", "model.dropout=0", device="cuda")
    model, text = regard.load(out, device="cuda", dtype=torch.bfloat16), data.read_text("utf-8").split("\t")[0]
    predicted = [model.predict(text, num_beams=1).value, model.predict(text, num_beams=2).value]
    torch.manual_seed(0)
    sight = regard.build("dpt-small", device="cuda").bfloat16().eval()
    with torch.inference_mode():
        depth = sight.logits(torch.linspace(-1, 1, 3 * 64 * 64, device="cuda").view(1, 3, 64, 64).bfloat16())
    weights = [float(item.weights.max()) for item in model.float().explain(text).maps]
    return [row["loss"] for row in rows(out, "train")], predicted, [*weights, float(depth.float().mean())]


@pytest.fixture(scope="module")
def data(pairs: Pairs, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_pairs(tmp_path_factory.mktemp("data") / "pairs.tsv", pairs[:40])


@pytest.fixture(scope="module")
def expected(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    return results(data, tmp_path_factory.mktemp("all") / "run")


@pytest.mark.parametrize("name", capabilities.CUDA_TRIALS)
def test_a_capability_works_and_can_be_done_without(
    name: str, data: Path, tmp_path: Path, expected: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert capabilities.is_available(name)
    remove(name, monkeypatch)
    losses, _, values = results(data, tmp_path / "run")
    assert not capabilities.is_available(name)
    assert losses == pytest.approx(expected[0], rel=0.02)
    assert values == pytest.approx(expected[2], rel=0.05, abs=0.02)


def test_a_graph_freed_by_the_garbage_collector_does_not_break_a_capture() -> None:
    device, thresholds = torch.device("cuda"), gc.get_threshold()
    x = torch.ones(4, device=device)
    garbage: list[Any] = [[capture(lambda: x + 1, device)[0]]]
    garbage[0].append(garbage[0])

    def step() -> torch.Tensor:
        garbage.clear()  # only the garbage collector can free the older graph
        return [x * number for number in range(50)][-1]

    gc.set_threshold(1)
    try:
        graph, found = capture(step, device, warmup=0)
    finally:
        gc.set_threshold(*thresholds)
    graph.replay()
    assert found.tolist() == [49.0] * 4
