"""The task caption from files to scores, with a stand-in for a captioner."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import regard
import speaker
from conftest import facts, rows, same_tensors, stopped_in
from regard.cli import main
from regard.data.captions import Captioned
from regard.data.plan import Alike, Even
from regard.data.settings import Data
from regard.decode.settings import Decode
from regard.errors import RegardError, SettingError
from regard.inputs.captions import Captions
from regard.inputs.pixels import Pixels
from regard.inputs.text import Text
from regard.model import Identity, Model, assemble
from regard.runs.checking import LOOKS
from regard.runs.evaluating import evaluate
from regard.tasks import SEEING, find_task
from regard.tasks.caption import Caption, pairs_of
from regard.tasks.task import Terms
from regard.waists import IGNORE, Batch, States

TASK: Any = find_task("caption")
COLOURS = ("red", "green", "blue", "white", "black", "yellow")


@pytest.fixture(autouse=True)
def known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(regard.systems.SYSTEMS, "speaker", speaker.SYSTEM)
    monkeypatch.setattr("regard.runs.folder.curves", lambda *_: None)


@pytest.fixture(scope="session")
def album(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Thirty pictures of one colour with two or three captions, in a folder whose name has a blank."""
    folder = tmp_path_factory.mktemp("some") / "my album"
    (folder / "images").mkdir(parents=True)
    lines = []
    for number in range(30):
        colour, name = COLOURS[number % len(COLOURS)], f"n {number}.png"
        Image.new("RGB", (20 + number, 18), colour).save(folder / "images" / name)
        captions = [f"a {colour} thing", f"this is {colour}", f"everything here is {colour} , really"][: 2 + number % 2]
        lines.append(json.dumps({"image": name, "captions": captions}))
    (folder / "captions.jsonl").write_text("\n".join(lines) + "\n")
    return folder


def train(album: Path, out: Path, *settings: str, **more: Any) -> Model:
    return regard.train(
        "caption", str(album), model=more.pop("model", "speaker-tiny"), out=out, settings=settings, **more
    )


@pytest.fixture(scope="session")
def run(album: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(regard.systems.SYSTEMS, "speaker", speaker.SYSTEM)
        out = tmp_path_factory.mktemp("runs") / "a run"
        train(album, out, "train.steps=200", "train.every=100", "train.rate=2e-2", "train.images=24", "model.width=32")
    return out


def samples(album: Path) -> list[Captioned]:
    return list(TASK.stream([str(album)]))


def model(album: Path, **changes: Any) -> Model:
    text = Text.train(TASK.phrases(samples(album)), 300)
    config = replace(speaker.Config(), **changes)
    reader = TASK.reading(text, config, Data())
    torch.manual_seed(3)
    return assemble(Identity(speaker.SYSTEM, TASK.fit(config, reader), TASK), reader).double().eval()


def encoded(album: Path, made: Model, longest: int = 99, data: Data | None = None) -> Any:
    return TASK.encode(samples(album), made.reader, made.config, longest, data or Data())


# -- batches


def test_it_is_listed_and_checked() -> None:
    assert TASK is SEEING["caption"] and "caption" in LOOKS and isinstance(TASK, Caption)


def test_a_row_is_a_picture_with_one_of_its_captions(album: Path) -> None:
    made, some = model(album), samples(album)
    found = encoded(album, made)
    assert len(found) == TASK.count(found) == 30 and TASK.left(found) == sum(len(s.captions) for s in some) == 75
    told: list[tuple[float, str]] = []
    for batch in TASK.batches(found, made.config, 8):
        assert batch.x.dtype == torch.uint8 and batch.changes is None and batch.target is not None
        assert batch.owners is not None and len(batch.x) == len(batch.owners.unique()), "each picture once"
        for x, target, labels in zip(batch.x[batch.owners], batch.target, batch.labels, strict=True):  # type: ignore[arg-type]
            n = int((labels != IGNORE).sum())
            assert target[0] == made.config.start and labels[n - 1] == made.config.end
            assert target[1:n].tolist() == labels[: n - 1].tolist() and (target[n:] == made.config.pad).all()
            told.append((float(x.float().mean()), made.reader.text.decode([labels[:n].tolist()])[0]))
    right = [caption for sample in some for caption in sample.captions]
    assert [text for _, text in told] == right
    mean = {"red": 85.0, "white": 255.0, "black": 0.0}
    assert all(x == pytest.approx(mean[c], abs=0.1) for x, text in told for c in mean if c in text)


def test_captions_that_are_too_long_are_left_out_and_their_pictures_stay(album: Path) -> None:
    made = model(album)
    whole, short = encoded(album, made), encoded(album, made, longest=4)
    assert TASK.left(short) < TASK.left(whole) and len(short) == 30 and short.too_long
    assert len(short.too_long) == TASK.left(whole) - TASK.left(short)
    assert pairs_of(short).lengths.max() <= 5 and set(pairs_of(short).owner) <= set(range(30))
    narrow = model(album, length=5)
    assert pairs_of(encoded(album, narrow)).lengths.max() <= 5
    none = encoded(album, made, longest=1)
    assert TASK.left(none) == 0 and len(none) == 30


def test_grains_have_like_lengths_or_one_shape(album: Path) -> None:
    made = model(album)
    found = encoded(album, made)
    plan, steady = (TASK.plan(found, made.config, 8, 5, packed) for packed in (False, True))
    assert isinstance(plan, Alike) and not plan.steady and isinstance(steady, Even) and steady.steady
    for way in (plan, steady):
        epoch = list(way.epoch(0))
        assert {len(grain) for grain in epoch} == {8} and {int(n) for grain in epoch for n in grain[:, 0]} == set(
            range(75)
        )
    assert plan.padding() < 0.1
    shapes = {tuple(TASK.collate(found, g, made.config, steady.shape).target.shape) for g in steady.epoch(1)}
    assert shapes == {(8, steady.shape.longest[0])} and steady.shape.longest[0] <= made.config.length
    plain = TASK.collate(found, steady.epoch(1)[0], made.config)
    padded = TASK.collate(found, steady.epoch(1)[0], made.config, steady.shape)
    with torch.no_grad():
        assert float(TASK.loss(made, plain)[0]) == pytest.approx(float(TASK.loss(made, padded)[0]), rel=1e-12)


def test_a_picture_is_decoded_once_for_all_its_captions(album: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import regard.tasks.pictured as pictured

    seen: list[Any] = []
    real = pictured.read_picture
    monkeypatch.setattr(pictured, "read_picture", lambda source, least=0: seen.append(source) or real(source, least))
    made = model(album)
    found = encoded(album, made)
    plan = TASK.plan(found, made.config, 8, 5, False)
    for grain in (*plan.epoch(0), *plan.epoch(1)):
        TASK.collate(found, grain, made.config)
    assert len(seen) == len(set(seen)) == 30


def test_pictures_are_changed_while_learning_and_captions_are_not(album: Path) -> None:
    made = model(album)
    found = encoded(album, made, data=Data(flip=True, colour=0.3))
    grain = TASK.plan(found, made.config, 8, 5, False).epoch(0)[0]
    batch, again = (TASK.collate(found, grain, made.config) for _ in range(2))
    assert batch.changes is not None and torch.equal(batch.changes, again.changes)  # type: ignore[arg-type]
    assert TASK.looked_at(made, batch).changes is None
    with pytest.raises(SettingError, match=r"data\.mixup mixes pictures"):
        TASK.check(made.config, 8, Data(mixup=0.2))
    with pytest.raises(SettingError, match=r"data\.kind=characters"):
        TASK.check(made.config, 8, Data(kind="characters"))


def test_the_penalty_counts_while_learning(album: Path) -> None:
    made, plain = model(album, penalty=0.5), model(album)
    plain.body.load_state_dict(made.body.state_dict())
    batch = next(TASK.batches(encoded(album, made), made.config, 8))
    with torch.no_grad():
        own = float(made.body(TASK.looked_at(made, batch)).side["penalty"])
        without, count = TASK.loss(plain, batch, Terms(smoothing=0.1))
        assert float(TASK.loss(made, batch, Terms(smoothing=0.1))[0]) == pytest.approx(float(without), rel=1e-12)
        learns = float(TASK.loss(made.train(), batch, Terms(smoothing=0.1))[0])
    assert own > 0 and learns == pytest.approx(float(without) + own, rel=1e-12)
    assert int(count) == int((batch.labels != IGNORE).sum())


# -- the reader


def test_the_reader_of_a_captioner_is_kept_and_found_again(album: Path, tmp_path: Path) -> None:
    made = model(album)
    made.save(tmp_path / "m")
    again = regard.load(tmp_path / "m")
    assert isinstance(again.reader, Captions) and replace(again.reader.pixels, edge=0) == made.reader.pixels
    assert again.reader.text.fingerprint() == made.text_or_refuse().fingerprint() and again.config == made.config
    assert isinstance(again.pixels_or_refuse(), Pixels) and again.reader_or_refuse() is again.reader
    picture = str(next((album / "images").iterdir()))
    assert again.answer(picture) == made.answer(picture)
    for name, missing in (
        ("tokenizer.json", "no tokenizer.json"),
        ("preprocessor_config.json", "no preprocessor_config"),
    ):
        made.save(tmp_path / name)
        (tmp_path / name / name).unlink()
        half = regard.load(tmp_path / name)
        assert half.logits(torch.zeros(1, 3, 16, 16), torch.ones(1, 2, dtype=torch.long)).shape == (
            1,
            2,
            made.config.vocabulary,
        )
        with pytest.raises(RegardError, match=missing):
            half.answer(picture)
        with pytest.raises(RegardError, match=missing):
            half.reader_or_refuse()
    half.text = made.text
    half.save(tmp_path / "half")
    assert (tmp_path / "half/tokenizer.json").exists() and not (tmp_path / "half/preprocessor_config.json").exists()


def test_pictures_are_made_ready_as_what_a_captioner_sees_through_wants_them(album: Path) -> None:
    @dataclass(frozen=True)
    class Through(speaker.Config):
        said: Pixels | None = None

        def pixels(self) -> Pixels | None:
            return self.said

    text, own = Text.train(["a b"], 300), Pixels((16, 16), mean=(0.1, 0.2, 0.3))
    assert TASK.reading(text, Through(said=own), Data()).pixels is own
    assert TASK.reading(text, Through(), Data()).pixels == TASK.reading(text, speaker.Config(), Data()).pixels


def test_a_tokenizer_may_be_brought(album: Path, tmp_path: Path) -> None:
    Text.wordpiece(TASK.phrases(samples(album)), 120).save(tmp_path / "tokenizer.json")
    made = train(album, tmp_path / "run", f"data.tokenizer={tmp_path / 'tokenizer.json'}", "train.steps=2")
    text, config = made.text_or_refuse(), made.config
    assert (config.start, config.end, config.pad) == tuple(text.id_of(t) for t in ("[CLS]", "[SEP]", "[PAD]"))
    assert config.vocabulary == text.size
    Text.language(TASK.phrases(samples(album)), 300).save(tmp_path / "other.json")
    adopted = TASK.adopt(Text.load(tmp_path / "other.json"))
    assert adopted.role("pad") is not None and adopted.role("start") == adopted.role("end") is not None


# -- answers


def test_pictures_are_answered_however_they_are_given(run: Path, album: Path) -> None:
    made = regard.load(run)
    path = album / "images" / "n 0.png"
    picture = Image.fromarray(np.asarray(Image.new("RGB", (20, 18), "red")))
    given = [str(path), path, path.read_bytes(), picture, np.asarray(picture)]
    answers = [made.answer(one) for one in given]
    assert all(answer == answers[0] for answer in answers)
    assert [answer.value for answer in made.answer(given[:3])] == [answers[0].value] * 3
    answer = answers[0]
    assert "red" in answer.value and answer.extra["ended"] and answer.tokens
    assert len(answer.extra["ids"]) + 1 == len(answer.extra["log_probabilities"])
    assert made.answer([]) == []


@pytest.mark.parametrize("settings", [{}, {"beam": 3, "best": 2}, {"sample": True, "seed": 4, "best": 2}])
def test_a_picture_is_answered_as_it_is_alone(settings: dict[str, Any], album: Path) -> None:
    made = model(album)
    some = [str(album / "images" / f"n {number}.png") for number in range(5)]
    decode = Decode(**settings)
    whole = TASK.answer(made, some, decode)
    for number, path in enumerate(some):
        (alone,) = TASK.answer(made, [path], decode, first=number)
        assert alone.value == whole[number].value and alone.scores == pytest.approx(whole[number].scores, rel=1e-9)
    assert len(whole[0].extra["alternatives"]) == settings.get("best", 1)


def test_answers_end_where_the_model_or_a_person_says(album: Path) -> None:
    made = model(album, length=7)
    path = str(album / "images" / "n 1.png")
    made.body.out.bias.data[made.config.end] = -99
    assert len(made.answer(path).extra["ids"]) == 7 and len(made.answer(path, length=3).extra["ids"]) == 3
    assert len(made.answer(path, length=50).extra["ids"]) == 7 and not made.answer(path).extra["ended"]
    made.body.out.bias.data[[made.config.pad, made.config.start]] = 99
    assert not {made.config.pad, made.config.start} & set(made.answer(path).extra["ids"]), "they are never said"


def test_cached_steps_say_what_one_pass_says(album: Path) -> None:
    """The stand-in itself keeps the promise that the task relies on."""
    made = model(album)
    x = torch.randint(0, 256, (2, 3, 16, 16), generator=torch.Generator().manual_seed(1), dtype=torch.uint8)
    target = torch.tensor([[1, 5, 9], [1, 7, 8]])
    batch = TASK.looked_at(made, Batch(x, target=target))
    states: States = made.body(batch)
    state = made.body.start(batch)
    torch.testing.assert_close(made.body.step(target[:, -1], state), made.body.read(states.sequence)[:, -1])
    assert torch.equal(made.logits(x, target), made.body.read(states.sequence))


# -- runs


def test_a_run_learns_scores_and_draws(run: Path, album: Path) -> None:
    found = facts(run)
    assert (
        found["scores"]["exact"] == 100.0
        and found["scores"]["cider"] > 100
        and found["scores"]["samples"] == found["found"]["valid"]
    )
    assert found["found"]["train"] + found["found"]["valid"] == 30 and set(found["best"]) >= {"cider", "bleu4", "loss"}
    names = {path.name for path in run.iterdir()}
    assert {"captions.png", "tokenizer.json", "tokenizer_config.json", "preprocessor_config.json", "README.md"} <= names
    with Image.open(run / "captions.png") as drawn:
        assert min(drawn.size) > 400
    card = (run / "README.md").read_text("utf-8")
    assert "![captions](captions.png)" in card and "sacreBLEU signature" in card and f"| {album}/images/n " in card
    told = (run / "samples.txt").read_text("utf-8")
    assert "    → " in told and "    = " in told


def test_pictures_are_divided_not_captions(run: Path, album: Path) -> None:
    assert len({TASK.key(sample) for sample in samples(album)}) == 30
    held = {row["picture"] for row in evaluate(run).rows}
    assert len(held) == facts(run)["found"]["valid"]
    learnt = Text.train(TASK.phrases(sample for sample in samples(album) if sample.source not in held), 300)
    assert regard.load(run).text_or_refuse().fingerprint() == learnt.fingerprint(), (
        "of captions, and of no names of files"
    )


def test_a_run_is_evaluated_on_other_files_too(run: Path, album: Path, tmp_path: Path) -> None:
    own = evaluate(run)
    assert own.scores["cider"] == facts(run)["scores"]["cider"]
    other = tmp_path / "two.csv"
    other.write_text(f"image,caption\n{album}/images/n 0.png,a red thing\n{album}/images/n 0.png,something red\n")
    scores = evaluate(run, [str(other)]).scores
    assert (
        scores["samples"] == 1
        and "cider" not in scores
        and TASK.deciding(scores) == "bleu4"
        and scores["exact"] == 100.0
    )
    long = tmp_path / "long.csv"
    long.write_text(f"image,caption\n{album}/images/n 0.png,{'red ' * 40}\n{album}/images/n 1.png,a green thing\n")
    said: list[str] = []
    assert evaluate(run, [str(long)], say=said.append).scores["samples"] == 2
    assert any("1 captions are longer than 16 tokens: the loss is without them" in line for line in said)


def test_a_resumed_run_is_the_uninterrupted_one_bit_for_bit(album: Path, tmp_path: Path) -> None:
    changes = ("data.flip=true", "data.colour=0.2")
    train(album, tmp_path / "whole", *changes)
    with stopped_in(6):
        train(album, tmp_path / "halved", *changes)
    regard.train("caption", out=tmp_path / "halved", resume=True)
    same_tensors(tmp_path / "whole/model.safetensors", tmp_path / "halved/model.safetensors")
    logs = [[{**row, "images_per_s": 0} for row in rows(tmp_path / name)] for name in ("whole", "halved")]
    assert logs[0] == logs[1]
    with pytest.raises(RegardError, match="there is a run already"):
        train(album, tmp_path / "whole")
    path = album.parent / "changed"
    with pytest.raises(RegardError, match=r"data: .* -> .*changed"):
        regard.train("caption", str(path), out=tmp_path / "halved", resume=True)


def test_training_starts_from_a_folder(run: Path, album: Path, tmp_path: Path) -> None:
    made = train(album, tmp_path / "on", "train.steps=1", "train.rate=1e-9", "train.every=1", model=str(run))
    assert made.text_or_refuse().fingerprint() == regard.load(run).text_or_refuse().fingerprint()
    assert facts(tmp_path / "on")["scores"]["exact"] == 100.0
    with pytest.raises(SettingError, match=r"data\.vocabulary cannot be set here"):
        train(album, tmp_path / "no", "data.vocabulary=280", model=str(run))
    with pytest.raises(SettingError, match=r"model\.vocabulary follows from the tokenizer"):
        train(album, tmp_path / "no", "model.vocabulary=280")


def test_a_caption_that_was_changed_is_noticed(album: Path, tmp_path: Path) -> None:
    import shutil

    mine = Path(shutil.copytree(album, tmp_path / "mine"))
    text = (mine / "captions.jsonl").read_text().replace('"captions"', '"split": "train", "captions"')
    (mine / "captions.jsonl").write_text(text)
    with stopped_in(6):
        train(f"{mine}/captions.jsonl#train", tmp_path / "run")  # type: ignore[arg-type]
    (mine / "captions.jsonl").write_text(text.replace("a white thing", "a white one"))
    with pytest.raises(RegardError, match="data is not what the run was started with"):
        regard.train("caption", out=tmp_path / "run", resume=True)


def test_one_bad_picture_ends_no_training(album: Path, tmp_path: Path, capfd: Any) -> None:
    import shutil

    mine = Path(shutil.copytree(album, tmp_path / "mine"))
    held = {row["picture"] for row in evaluate_rows(mine, tmp_path)}
    bad = next(path for path in sorted((mine / "images").iterdir()) if str(path) not in held)
    bad.write_bytes(bad.read_bytes()[:30])
    train(mine, tmp_path / "run", "data.share=0.2", valid=str(tmp_path / "held.jsonl"))
    assert "left out" in capfd.readouterr().err


def evaluate_rows(mine: Path, tmp_path: Path) -> list[dict[str, str]]:
    """Validation pictures of their own, elsewhere."""
    lines = (mine / "captions.jsonl").read_text().splitlines()[:4]
    rows = [json.loads(line) for line in lines]
    for row in rows:
        row["image"] = str(mine / "images" / row["image"])
    (tmp_path / "held.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return [{"picture": row["image"]} for row in rows]


# -- the command line


def regard_says(*words: str) -> int:
    with pytest.MonkeyPatch.context() as patch, pytest.raises(SystemExit) as stop:
        patch.setattr(sys, "argv", ["regard", *words])
        main()
        raise SystemExit(0)
    return int(stop.value.code or 0)


def test_pictures_folders_and_tables_are_run(run: Path, album: Path, tmp_path: Path, capsys: Any) -> None:
    picture = str(album / "images" / "n 2.png")
    assert regard_says("run", str(run), picture) == 0
    assert capsys.readouterr().out == f"{picture}\t{regard.load(run).answer(picture).value}\n"
    assert regard_says("run", str(run), str(album / "captions.jsonl")) == 0
    table = capsys.readouterr().out
    assert regard_says("run", str(run), str(album / "images")) == 0
    assert sorted(table.splitlines()) == sorted(capsys.readouterr().out.splitlines()) and table.count("\n") == 30
    assert regard_says("run", str(run), picture, "--json", "--set", "decode.beam=2", "decode.best=2") == 0
    row = json.loads(capsys.readouterr().out)
    assert row["input"] == picture and len(row["alternatives"]) == 2 and row["log_probabilities"]
    (tmp_path / "bad one.jpg").write_text("no picture")
    assert regard_says("run", str(run), str(tmp_path / "bad one.jpg"), picture) == 2
    out, err = capsys.readouterr()
    assert out.startswith("\n") and out.count("\t") == 1 and "bad one.jpg: is no picture" in err
    assert regard_says("run", str(run), str(tmp_path / "none.jpg")) == 2
    assert "there is no such file" in capsys.readouterr().err


def test_commands_say_what_is_wrong_in_a_sentence(run: Path, album: Path, tmp_path: Path, capsys: Any) -> None:
    wrong: list[tuple[list[str], str]] = [
        (["train", "captoin", "--data", str(album)], "unknown task 'captoin'. Did you mean 'caption'"),
        (["train", "caption", "--data", str(album / "nothing.jsonl"), "--model", "speaker-tiny"], "no such file"),
        (["train", "caption", "--data", str(album), "--model", "speaker-tin"], "Did you mean 'speaker-tiny'"),
        (["train", "caption", "--data", str(album), "--model", "vit-tiny"], "vit-tiny cannot do the task 'caption'"),
        (["train", "caption", "--data", str(album), "--model", "speaker-tiny", "--set", "data.mixup=1"], "cannot be mixed"),
        (["train", "classify", "--data", str(album), "--model", "speaker-tiny"], "speaker-tiny cannot do the task 'classify'"),
        (["check", "caption", "--data", f"{album}#train"], "has no part 'train'"),
        (["train", "caption", "--data", f"{album}#train", "--model", "speaker-tiny"], "No row says what part"),
        (["evaluate", str(run), "--data", str(album / "images")], "folder without a file of captions"),
        (["explain", str(run), "x"], "x: there is no such file"),
    ]  # fmt: skip
    for words, right in wrong:
        out = ["--out", str(tmp_path / "no")] if words[0] == "train" else []
        regard_says(*words, *out)
        told = "".join(capsys.readouterr())
        assert right in told and "Traceback" not in told, (words, told)
    assert not (tmp_path / "no").exists()


def test_a_preset_is_told_of(run: Path, capsys: Any) -> None:
    assert regard_says("info", "speaker-tiny") == 0
    assert "for a picture of 16 x 16 and 16 tokens" in capsys.readouterr().out
    assert regard_says("list", "tasks") == 0 and "caption" in capsys.readouterr().out
