"""The two captioners of 2015 against loops of their equations and against torch LSTMs."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from regard.nn.recurrent.rnn import lstm_cell
from regard.nn.recurrent.score_attention import ScoreContext
from regard.systems.captioners import show_and_tell, show_attend_tell
from regard.types import Batch
from tiny import gradients, near, noise
from tiny_caption_models import batch_of, captions, config_of, made

# -- Show and Tell


@pytest.mark.parametrize("depth", [1, 2])
def test_show_and_tell_equals_torch_cells_that_read_the_image_first(depth: int) -> None:
    body, batch = made("caption-fixed", depth=depth), batch_of()
    assert batch.decoder_inputs is not None
    cells = []
    for layer in range(depth):
        cell = nn.LSTMCell(7 if layer == 0 else 10, 10, dtype=torch.float64)
        cell.load_state_dict({name: getattr(body.lstm, f"{name}_l{layer}") for name, _ in cell.named_parameters()})
        cells.append(cell)
    picture = body.eyes.pooled(batch.inputs) @ body.project.weight.T + body.project.bias
    states, right = [(torch.zeros(3, 10, dtype=torch.float64),) * 2] * depth, []
    for at in range(-1, 6):
        x = picture if at < 0 else body.tokens.weight[batch.decoder_inputs[:, at]]
        for layer, cell in enumerate(cells):
            states[layer] = cell(x, states[layer])
            x = states[layer][0]
        if at >= 0:
            right.append(x @ body.words.weight.T + body.words.bias)
    ours = body.to_logits(body(batch).sequence)
    near(ours, torch.stack(right, 1), 1e-12)
    weigh = noise(*ours.shape, seed=6)
    mine, theirs = ((out * weigh).sum() for out in (ours, torch.stack(right, 1)))
    (found, picked) = gradients(body, mine), [part for cell in cells for part in cell.parameters()]
    wanted = torch.autograd.grad(theirs, picked, retain_graph=True)
    names = [f"lstm.{name}_l{layer}" for layer, cell in enumerate(cells) for name, _ in cell.named_parameters()]
    for name, gradient in zip(names, wanted, strict=True):
        near(found[name], gradient, 1e-11)
    for name, gradient in gradients(body, theirs).items():  # shared layers
        near(found[name], gradient, 1e-11)
    assert {"tokens.weight", "project.weight", "words.bias", "eyes.body.stem.conv.weight"} <= set(found)


def test_the_image_vector_is_the_mean_of_the_last_feature_map() -> None:
    body, batch = made("caption-fixed"), batch_of()
    near(body.eyes.pooled(batch.inputs), body.eyes.body.feature_maps(batch.inputs)[-1].mean((2, 3)))


# -- Show, Attend and Tell


def sums(matrix: Tensor, x: list[Tensor], bias: Tensor | None = None) -> list[Tensor]:
    """Product of a matrix and a vector in scalar operations."""
    rows = range(matrix.shape[0])
    return [
        sum((matrix[r, c] * x[c] for c in range(len(x))), torch.zeros((), dtype=torch.float64))
        + (0 if bias is None else bias[r])
        for r in rows
    ]


def sigmoid(x: Tensor) -> Tensor:
    return 1 / (1 + torch.exp(-x))


def attended(body: Any, places: Tensor, tokens: list[int]) -> tuple[Tensor, Tensor]:
    """Logits (T, V) and attention weights (T, K) of one caption, from the equations alone."""
    K, D = places.shape
    n, score = body.gate.weight.shape[1], body.align.score
    a = [[places[i, d] for d in range(D)] for i in range(K)]
    mean = [sum(a[i][d] for i in range(K)) / K for d in range(D)]
    first = [value.clamp(min=0) for value in sums(body.begin["first"].weight, mean, body.begin["first"].bias)]
    h, c = ([torch.tanh(v) for v in sums(body.begin[k].weight, first, body.begin[k].bias)] for k in ("h", "c"))
    known = [sums(score.k.weight, a[i], score.k.bias) for i in range(K)]
    if body.deeper is not None:
        known = [[torch.tanh(v) for v in sums(body.deeper.weight, row, body.deeper.bias)] for row in known]
    said, looks = [], []
    for t, token in enumerate(tokens):
        word = [body.tokens.weight[token, m] * (t > 0) for m in range(body.tokens.weight.shape[1])]
        asked = sums(score.q.weight, h)
        energy = [
            sum(score.v.weight[0, j] * torch.tanh(known[i][j] + asked[j]) for j in range(len(asked))) + score.v.bias[0]
            for i in range(K)
        ]
        whole = sum(torch.exp(e) for e in energy)
        alpha = [torch.exp(e) / whole for e in energy]
        beta = sigmoid(sums(body.gate.weight, h, body.gate.bias)[0])
        z = [beta * sum(alpha[i] * a[i][d] for i in range(K)) for d in range(D)]
        parts = zip(
            sums(body.cell["x"].weight, word, body.cell["x"].bias),
            sums(body.cell["h"].weight, h),
            sums(body.cell["z"].weight, z),
            strict=True,
        )
        total = [x + y + w for x, y, w in parts]
        i, f, o = ([sigmoid(v) for v in total[k * n : (k + 1) * n]] for k in range(3))
        g = [torch.tanh(v) for v in total[3 * n :]]
        c = [f[j] * c[j] + i[j] * g[j] for j in range(n)]
        h = [o[j] * torch.tanh(c[j]) for j in range(n)]
        from_h, from_z = (
            sums(body.out["h"].weight, h, body.out["h"].bias),
            sums(body.out["z"].weight, z, body.out["z"].bias),
        )
        told = [torch.tanh(x + y + w) for x, y, w in zip(from_h, word, from_z, strict=True)]
        said.append(torch.stack(sums(body.words.weight, told, body.words.bias)))
        looks.append(torch.stack(alpha))
    return torch.stack(said), torch.stack(looks)


@pytest.mark.parametrize(("inner", "deeper"), [(9, True), (0, True), (5, False)])
def test_show_attend_and_tell_equals_loops_of_its_equations(inner: int, deeper: bool) -> None:
    body = made("caption-attend", width=3, embedding_dim=4, attention_dim=inner, project_features=deeper, vocab_size=8)
    target = torch.tensor([[1, 5, 7], [1, 3, 3]])
    batch = Batch(batch_of((3, 3)).inputs, decoder_inputs=target)
    places = body.eyes.patch_features(batch.inputs)
    assert places.shape == (2, 4, 12) and (body.deeper is not None) == deeper
    theirs = [attended(body, places[row], target[row].tolist()) for row in range(2)]
    right = torch.stack([said for said, _ in theirs])
    ours = body.to_logits(body(batch).sequence)
    near(ours, right, 1e-12)
    weigh = noise(*ours.shape, seed=6)
    found, wanted = gradients(body, (ours * weigh).sum()), gradients(body, (right * weigh).sum())
    assert set(found) == set(wanted) == {name for name, _ in body.named_parameters()}
    for name, gradient in wanted.items():
        near(found[name], gradient, 1e-10)
    body.train()
    body.eyes.eval()
    body.dropout.p = 0.0
    penalty = sum(((1 - looks.sum(0)) ** 2).sum() for _, looks in theirs)
    near(body(batch).aux_losses["penalty"], penalty, 1e-12)  # type: ignore[arg-type]


def test_its_lstm_is_torchs_with_the_gates_in_another_order() -> None:
    body, n = made("caption-attend"), 10
    D, m = body.out["z"].weight.shape[1], 7
    cell = nn.LSTMCell(m + D, n, dtype=torch.float64)
    order = [0, 1, 3, 2]  # the gate order of torch is i, f, g, o

    def moved(matrix: Tensor) -> Tensor:
        return torch.cat([matrix.chunk(4)[part] for part in order])

    with torch.no_grad():
        cell.weight_ih.copy_(moved(torch.cat([body.cell["x"].weight, body.cell["z"].weight], 1)))
        cell.weight_hh.copy_(moved(body.cell["h"].weight))
        cell.bias_ih.copy_(moved(body.cell["x"].bias[:, None])[:, 0])
        cell.bias_hh.zero_()
    word, z, h, c = (noise(3, size, seed=number) for number, size in enumerate((m, D, n, n)))
    ours = body.lstm_step(body.cell["x"](word), h, c, z)
    for mine, theirs in zip(ours, cell(torch.cat([word, z], 1), (h, c)), strict=True):
        near(mine, theirs)
    mixed = lstm_cell(noise(2, 8), noise(2, 2, seed=1)), lstm_cell(noise(2, 8), noise(2, 2, seed=1), "ifog")
    assert not torch.allclose(mixed[0][0], mixed[1][0])


def test_attention_penalty_is_correct_for_captions_of_all_lengths() -> None:
    """The penalty excludes positions after the end of a caption, given by labels, lengths or a mask."""
    body, batch = made("caption-attend", dropout=0.0, attention_penalty=0.7, freeze_encoder=True).train(), batch_of()
    assert batch.decoder_inputs is not None and batch.labels is not None
    alone = []
    for row, length in enumerate((6, 3, 5)):
        one = Batch(batch.inputs[row : row + 1], decoder_inputs=batch.decoder_inputs[row : row + 1, :length])
        alone.append(body(one).aux_losses["penalty"])
        near(body(replace(one, labels=batch.labels[row : row + 1, :length])).aux_losses["penalty"], alone[-1])
    right = torch.stack(alone).sum()
    near(body(batch).aux_losses["penalty"], right)
    lengths = torch.tensor([6, 3, 5])
    near(body(replace(batch, labels=None, decoder_mask=lengths)).aux_losses["penalty"], right)
    near(
        body(replace(batch, labels=None, decoder_mask=torch.arange(6) < lengths[:, None])).aux_losses["penalty"], right
    )
    double = made("caption-attend", dropout=0.0, attention_penalty=1.4, freeze_encoder=True).train()
    near(double(batch).aux_losses["penalty"], 2 * right)
    assert (
        not body.eval()(batch).aux_losses
        and not made("caption-attend", attention_penalty=0.0).train()(batch).aux_losses
    )


def test_no_token_precedes_the_first_word() -> None:
    body, (target, _) = made("caption-attend"), captions()
    other = target.clone()
    other[:, 0] = 9
    x = batch_of().inputs
    near(body(Batch(x, decoder_inputs=other)).sequence, body(Batch(x, decoder_inputs=target)).sequence)
    state = body.start(Batch(x, decoder_inputs=target[:, :1]))
    near(
        body.step(torch.tensor([5, 6, 7]), state), body.to_logits(body(Batch(x, decoder_inputs=target)).sequence)[:, 0]
    )


def test_small_models_are_initialized_by_fan_in() -> None:
    config = config_of("caption-attend", width=40, embedding_dim=30, attention_dim=12, vocab_size=400)
    body = show_attend_tell.build(replace(config, init_std=0.0))  # type: ignore[arg-type]
    for matrix in (body.cell["h"].weight, body.words.weight, body.out["h"].weight):
        assert matrix.std().item() == pytest.approx(matrix.shape[1] ** -0.5, rel=0.1)
    assert body.tokens.weight.std().item() == pytest.approx(0.1, rel=0.1) and not body.words.bias.any()


def test_its_decoder_has_the_parameters_and_initialization_of_the_authors() -> None:
    """V = 10,000, embedding size 512, hidden size 1800, feature size 512."""
    config = show_attend_tell.Config(encoder="resnet-18")
    assert (config.vocab_size, config.embedding_dim, config.width) == (10_000, 512, 1800)
    with torch.device("meta"):
        body = show_attend_tell.build(config)
    assert body.eyes.tap.channels == 512
    assert sum(part.numel() for name, part in body.named_parameters() if not name.startswith("eyes.")) == 35_333_450
    torch.manual_seed(0)
    small = show_attend_tell.build(
        config_of("caption-attend", width=40, embedding_dim=30, attention_dim=12, vocab_size=400)
    )  # type: ignore[arg-type]
    for name, part in small.named_parameters():
        if name.startswith("eyes."):
            continue
        blocks = part.chunk(4) if name.startswith("cell.") else (part,)
        for block in blocks:
            if block.ndim == 1:
                assert not block.any(), name
            elif block.shape[0] == block.shape[1]:
                torch.testing.assert_close(block @ block.T, torch.eye(len(block)), atol=1e-5, rtol=0)
            elif block.numel() > 200:
                assert 0.008 < block.std().item() < 0.012, name


def test_parameter_counts_of_show_and_tell_add_up() -> None:
    config = show_and_tell.PRESETS["caption-fixed-base"].config
    V, m, n, D = config.vocab_size, config.embedding_dim, config.width, 2048
    decoder = V * m + (D * m + m) + 4 * n * (m + n) + 2 * 4 * n + (n * V + V)
    assert (m, n) == (512, 512) and decoder + 23_508_032 == show_and_tell.PRESETS["caption-fixed-base"].parameters


# -- attention step of the lectures on a 3 × 3 grid, calculated by hand

STEP: dict[str, Any] = {
    "z": [[[1.927116370834386, 1.4914104243534405], [-0.3154913882864964, -1.8323318734989098],
        [-1.6645348844478025, 0.033627800968699426]], [[1.7008732412571288, 1.8043436675125866],
        [0.2489088470141234, -1.535371619527165], [-1.908038499804178, -0.5264635827316019]],
        [[1.3391395243932047, 1.9735439285492267], [0.7934811462612241, -1.1161045425735587],
        [-1.9995488621460222, -1.044617179253463]]],
    "h_prev": [0.4958324052262343, 0.2136899401169149, -0.2649180704542467],
    "memory_prev": [0.43160468332443686, 0.020790331216645246, -0.40913855553220513],
    "Ey_prev": [0.11962466460699121, -0.3438830795919869],
    "W_h": [[0.46601954298361314, 0.40424820190979505, -0.029187071713790043, -0.4357878862067941],
        [-0.44172732786007657, -0.0415447014087482, 0.39683393192457656, 0.47036527833988656],
        [0.11144495705012382, -0.34993734379677116, -0.4895888645756587, -0.17911464111841435]],
    "W_z": [[0.49272486499423007, 0.3377315902755755, -0.1277705510134156, -0.475801036944758],
        [-0.3863822437779936, 0.05827460242524682, 0.44935404790581346, 0.4272994540441402]],
    "v_att": [0.49978680152075255, 0.2577506859107321, -0.22126022164742623, -0.4968455018167322],
    "T": [[0.4869238154390976, 0.16749407507795255, -0.30592894547135946, -0.49808230441792034,
        -0.23230108970687868, 0.24705667556930408, 0.4992716726873025], [0.29245859644588085,
        -0.1832395646259642, -0.4904681150332458, -0.3467625423885612, 0.11575491255076947, 0.4718478347220524,
        0.39412603368765814], [-0.04595342511384082, -0.4437835167907523, -0.43360108974279066,
        -0.02476782043918371, 0.4068368687535527, 0.4643976170386202, 0.09499333789771887],
        [-0.3617473780221225, -0.48589922287193166, -0.16331756305236111, 0.30941751106001963,
        0.49767555245577955, 0.2283729860720964, -0.2508946505102871], [-0.4994909024734747,
        -0.28885752222286587, 0.187350131824731, 0.49130893868206976, 0.34356057310237215, -0.12005579897688724,
        -0.47329342314248024], [-0.3913872567753272, 0.050358548496250266, 0.44580493652072034,
        0.4313803218428394, 0.020346628674932428, -0.4093936610634218, -0.46273930683566533],
        [-0.0906445679348474, 0.3647883686964267, 0.4848365614559604, 0.1591282555512441, -0.3128818346497368,
        -0.4972298090022577, -0.2244269900508523], [0.25471296855521464, 0.49967099854065516,
        0.2852338168186891, -0.1914460206632386, -0.49211126964594376, -0.34033168680356396,
        0.12434727936602546], [0.47470193034335056, 0.3886178157631133, -0.054759726426850605,
        -0.44779142867738503, -0.4291257564979089, -0.01592384280907502, 0.41191837852185886],
        [0.4610447422987261, 0.08628869622290906, -0.3678007792195397, -0.4837359144477408, -0.1549264807951553,
        0.3163216448204238, 0.49674510898011065], [0.2204634108009245, -0.25851133054952175,
        -0.49981194677881946, -0.2815877641405584, 0.19552691024002433, 0.49287504506447427,
        0.3370761364663731], [-0.128629017492664, -0.47607324597205236, -0.3858179276289959,
        0.059156614085625295, 0.44974283762462597, 0.4268375703469062, 0.011499809354549483]],
    "b": [0.47315004384370724, 0.11962466460699121, -0.3438830795919869, -0.49122630631216624,
        -0.186938332415118, 0.28921988219410005, 0.499470670919886, 0.2505104282289423, -0.22876794688766067,
        -0.4977181266531887, -0.30906855611851664, 0.16373721956884651],
}  # fmt: skip
RIGHT: dict[str, Any] = {
    "e": [[0.4654323524956663, 0.7239160949539352, -0.7808827362364833], [0.22031612648954707,
        0.855696487848758, -0.6918829129888833], [-0.047757483184086735, 0.9273684829421125,
        -0.5311218382198385]],
    "a": [[0.12967280130873035, 0.16792175169035178, 0.0372890335218242], [0.10148369434092783,
        0.19157483202559658, 0.040759914031396866], [0.07761995366669099, 0.20580939945913743,
        0.0478686199553439]],
    "c": [0.4489060815161005, -0.37204757139222766],
    "memory": [-0.17102968282411932, -0.19633037343567156, -0.17457398563510426],
    "h": [-0.10861451340326478, -0.10374479225133136, -0.06625836968809899],
}  # fmt: skip


def test_a_step_on_a_grid_of_nine_positions_equals_the_lectures() -> None:
    """v · tanh(h W_h + z W_z) over the positions, and [i f o g] = T [E y; h; c] + b. The lectures have no gate."""
    given = {name: torch.tensor(value, dtype=torch.float64) for name, value in STEP.items()}
    body = made("caption-attend", width=3, embedding_dim=2, attention_dim=4, project_features=False)
    body.align.score = type(body.align.score)(3, 2, 4, bias=True).double()
    body.cell["z"], score = nn.Linear(2, 12, bias=False).double(), body.align.score
    with torch.no_grad():
        score.q.weight.copy_(given["W_h"].T)
        score.k.weight.copy_(given["W_z"].T)
        score.v.weight.copy_(given["v_att"][None])
        for bias in (score.k.bias, score.v.bias, body.gate.weight):
            bias.zero_()
        body.gate.bias.fill_(math.inf)
        for name, first, last in (("x", 0, 2), ("h", 2, 5), ("z", 5, 7)):
            body.cell[name].weight.copy_(given["T"][:, first:last])
        body.cell["x"].bias.copy_(given["b"])
    h, c, word = (given[name][None] for name in ("h_prev", "memory_prev", "Ey_prev"))
    ready: ScoreContext = body.align.prepare(given["z"].flatten(0, 1)[None])
    near(score(h[:, None], ready.keys)[0, 0], torch.tensor(RIGHT["e"], dtype=torch.float64).flatten(), 1e-12)
    z, weights = body.attend(h, ready)
    near(weights[0], torch.tensor(RIGHT["a"], dtype=torch.float64).flatten(), 1e-12)
    near(z[0], torch.tensor(RIGHT["c"], dtype=torch.float64), 1e-12)
    h, c = body.lstm_step(body.cell["x"](word), h, c, z)
    near(h[0], torch.tensor(RIGHT["h"], dtype=torch.float64), 1e-12)
    near(c[0], torch.tensor(RIGHT["memory"], dtype=torch.float64), 1e-12)
