"""Task caption from files to scores, with a substitute captioner."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import regard
import tiny_caption_system as caption_system
from conftest import facts, rows, same_tensors, stopped_in
from regard.cli import main
from regard.decode.settings import DecodeSettings
from regard.errors import RegardError, SettingError
from regard.model import Model
from regard.processors.tokenizer.tokenizer import TextTokenizer
from regard.runs.evaluate import evaluate
from regard.tasks.modality.image import prepare_images
from regard.types import Batch, BodyOutput, DecoderInputs
from tiny_caption_system import TASK, album_in, captions, model, samples


@pytest.fixture(autouse=True)
def known(monkeypatch: pytest.MonkeyPatch) -> None:
    caption_system.offer(monkeypatch)
    monkeypatch.setattr("regard.runs.trainer.draw_training_curves", lambda *_: None)


@pytest.fixture(scope="session")
def album(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """In a folder with a space in its name."""
    return album_in(tmp_path_factory.mktemp("some") / "my album")


def train(album: Path, out: Path, *settings: str, **more: Any) -> Model:
    return regard.train(
        "caption", str(album), model=more.pop("model", "speaker-tiny"), out=out, settings=settings, **more
    )


@pytest.fixture(scope="session")
def run(album: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    with pytest.MonkeyPatch.context() as patch:
        caption_system.offer(patch)
        out = tmp_path_factory.mktemp("runs") / "a run"
        train(
            album,
            out,
            "train.steps=200",
            "train.eval_every=100",
            "train.lr=2e-2",
            "train.batch_size=24",
            "model.width=32",
        )
    return out


# -- predictions


def test_images_are_captioned_in_every_input_form(run: Path, album: Path) -> None:
    made = regard.load(run)
    path = album / "images" / "n 0.png"
    picture = Image.fromarray(np.asarray(Image.new("RGB", (20, 18), "red")))
    given = [str(path), path, path.read_bytes(), picture, np.asarray(picture)]
    answers = [made.predict(one) for one in given]
    assert all(answer == answers[0] for answer in answers)
    assert [answer.value for answer in made.predict(given[:3])] == [answers[0].value] * 3
    answer = answers[0]
    assert "red" in answer.value and answer.extra["finish_reason"] == "eos" and answer.tokens
    assert len(answer.extra["token_ids"]) + 1 == len(answer.extra["logprobs"])
    assert made.predict([]) == []


@pytest.mark.parametrize(
    "settings",
    [{}, {"num_beams": 3, "num_return_sequences": 2}, {"do_sample": True, "seed": 4, "num_return_sequences": 2}],
)
def test_the_caption_of_an_image_does_not_depend_on_its_batch(settings: dict[str, Any], album: Path) -> None:
    made = model(album)
    some = [str(album / "images" / f"n {number}.png") for number in range(5)]
    decode = DecodeSettings(**settings)
    whole = TASK.objective.predict(made, some, decode)
    for number, path in enumerate(some):
        (alone,) = TASK.objective.predict(made, [path], decode, first=number)
        assert alone.value == whole[number].value and alone.score == pytest.approx(whole[number].score, rel=1e-9)
    assert len(whole[0].extra["alternatives"]) == settings.get("num_return_sequences", 1)


def test_captions_end_at_the_end_token_or_a_given_limit(album: Path) -> None:
    made = model(album, max_length=7)
    path = str(album / "images" / "n 1.png")
    made.body.out.bias.data[made.config.eos_id] = -99
    assert len(made.predict(path).extra["token_ids"]) == 7
    assert len(made.predict(path, max_new_tokens=3).extra["token_ids"]) == 3
    assert len(made.predict(path, max_new_tokens=50).extra["token_ids"]) == 7
    assert made.predict(path).extra["finish_reason"] == "length"
    made.body.out.bias.data[[made.config.pad_id, made.config.bos_id]] = 99
    assert not {made.config.pad_id, made.config.bos_id} & set(made.predict(path).extra["token_ids"]), "never generated"


def test_cached_steps_equal_one_pass(album: Path) -> None:
    """Validates the substitute captioner itself."""
    made = model(album)
    x = torch.randint(0, 256, (2, 3, 16, 16), generator=torch.Generator().manual_seed(1), dtype=torch.uint8)
    target = torch.tensor([[1, 5, 9], [1, 7, 8]])
    batch = prepare_images(made, Batch(x, decoder=DecoderInputs(target)))
    states: BodyOutput = made.body(batch)
    state = made.body.start(batch)
    torch.testing.assert_close(made.body.step(target[:, -1], state), made.body.to_logits(states.sequence)[:, -1])
    assert torch.equal(made.logits(x, target), made.body.to_logits(states.sequence))


# -- runs


def test_a_run_learns_scores_and_draws(run: Path, album: Path) -> None:
    found = facts(run)
    assert found["scores"]["exact_match"] == 100.0
    assert found["scores"]["cider"] > 100
    assert found["scores"]["samples"] == found["data_stats"]["valid"]
    assert found["data_stats"]["train"] + found["data_stats"]["valid"] == 30
    assert set(found["best"]) >= {
        "cider",
        "bleu4",
        "loss",
    }
    names = {path.name for path in run.iterdir()}
    assert {"captions.png", "tokenizer.json", "tokenizer_config.json", "preprocessor_config.json", "README.md"} <= names
    with Image.open(run / "captions.png") as drawn:
        assert min(drawn.size) > 400
    card = (run / "README.md").read_text("utf-8")
    assert "![captions](captions.png)" in card
    assert "sacreBLEU signature" in card
    assert f"| {os.path.relpath(album, run)}/images/n " in card
    told = (run / "samples.txt").read_text("utf-8")
    assert "    → " in told and "    = " in told


def test_images_are_split_not_captions(run: Path, album: Path) -> None:
    assert len({TASK.reader.split_key(sample) for sample in samples(album)}) == 30
    held = {row["image"] for row in evaluate(run).rows}
    assert len(held) == facts(run)["data_stats"]["valid"]
    learnt = TextTokenizer.train_sentence_bpe(
        captions(sample for sample in samples(album) if sample.source not in held), 300
    )
    assert regard.load(run).require_tokenizer().fingerprint() == learnt.fingerprint(), (
        "trained on captions, not on file names"
    )


def test_a_run_is_evaluated_on_other_files_too(run: Path, album: Path, tmp_path: Path) -> None:
    own = evaluate(run)
    assert own.scores["cider"] == facts(run)["scores"]["cider"]
    other = tmp_path / "two.csv"
    other.write_text(f"image,caption\n{album}/images/n 0.png,a red thing\n{album}/images/n 0.png,something red\n")
    scores = evaluate(run, [str(other)]).scores
    assert scores["samples"] == 1
    assert "cider" not in scores
    assert next(name for name in TASK.objective.metrics if name in scores) == "bleu4"
    assert scores["exact_match"] == 100.0
    long = tmp_path / "long.csv"
    long.write_text(f"image,caption\n{album}/images/n 0.png,{'red ' * 40}\n{album}/images/n 1.png,a green thing\n")
    said: list[str] = []
    assert evaluate(run, [str(long)], log=said.append).scores["samples"] == 2
    assert any("1 captions have more than 16 tokens and are excluded from the loss" in line for line in said)


def test_a_resumed_run_is_the_uninterrupted_one_bit_for_bit(album: Path, tmp_path: Path) -> None:
    changes = ("data.flip=true", "data.color_jitter=0.2")
    train(album, tmp_path / "whole", *changes)
    with stopped_in(6):
        train(album, tmp_path / "halved", *changes)
    regard.train("caption", out=tmp_path / "halved", resume=True)
    same_tensors(tmp_path / "whole/model.safetensors", tmp_path / "halved/model.safetensors")
    logs = [[{**row, "images_per_s": 0} for row in rows(tmp_path / name)] for name in ("whole", "halved")]
    assert logs[0] == logs[1]
    with pytest.raises(RegardError, match=r"--out|already"):
        train(album, tmp_path / "whole")
    path = album.parent / "changed"
    with pytest.raises(RegardError, match="changed"):
        regard.train("caption", str(path), out=tmp_path / "halved", resume=True)


def test_training_starts_from_a_folder(run: Path, album: Path, tmp_path: Path) -> None:
    made = train(album, tmp_path / "on", "train.steps=1", "train.lr=1e-9", "train.eval_every=1", model=str(run))
    assert made.require_tokenizer().fingerprint() == regard.load(run).require_tokenizer().fingerprint()
    assert facts(tmp_path / "on")["scores"]["exact_match"] == 100.0
    with pytest.raises(SettingError, match=r"data\.vocab_size"):
        train(album, tmp_path / "no", "data.vocab_size=280", model=str(run))
    with pytest.raises(SettingError, match=r"model\.vocab_size"):
        train(album, tmp_path / "no", "model.vocab_size=280")


def test_a_caption_that_was_changed_is_noticed(album: Path, tmp_path: Path) -> None:
    import shutil

    mine = Path(shutil.copytree(album, tmp_path / "mine"))
    text = (mine / "captions.jsonl").read_text().replace('"captions"', '"split": "train", "captions"')
    (mine / "captions.jsonl").write_text(text)
    with stopped_in(6):
        train(f"{mine}/captions.jsonl#train", tmp_path / "run")  # type: ignore[arg-type]
    (mine / "captions.jsonl").write_text(text.replace("a white thing", "a white one"))
    with pytest.raises(RegardError, match="started"):
        regard.train("caption", out=tmp_path / "run", resume=True)


def test_one_invalid_image_does_not_stop_training(album: Path, tmp_path: Path, capfd: Any) -> None:
    import shutil

    mine = Path(shutil.copytree(album, tmp_path / "mine"))
    held = {row["image"] for row in evaluate_rows(mine, tmp_path)}
    bad = next(path for path in sorted((mine / "images").iterdir()) if str(path) not in held)
    bad.write_bytes(bad.read_bytes()[:30])
    train(mine, tmp_path / "run", "data.valid_fraction=0.2", valid=str(tmp_path / "held.jsonl"))
    assert "warning: skipped" in capfd.readouterr().err


def evaluate_rows(mine: Path, tmp_path: Path) -> list[dict[str, str]]:
    """Validation rows with images in another folder."""
    lines = (mine / "captions.jsonl").read_text().splitlines()[:4]
    rows = [json.loads(line) for line in lines]
    for row in rows:
        row["image"] = str(mine / "images" / row["image"])
    (tmp_path / "held.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return [{"image": row["image"]} for row in rows]


# -- the command line


def regard_says(*words: str) -> int:
    with pytest.MonkeyPatch.context() as patch, pytest.raises(SystemExit) as stop:
        patch.setattr(sys, "argv", ["regard", *words])
        main()
        raise SystemExit(0)
    return int(stop.value.code or 0)


def test_images_folders_and_tables_are_predicted(run: Path, album: Path, tmp_path: Path, capsys: Any) -> None:
    picture = str(album / "images" / "n 2.png")
    assert regard_says("predict", str(run), picture) == 0
    assert capsys.readouterr().out == f"{picture}\t{regard.load(run).predict(picture).value}\n"
    assert regard_says("predict", str(run), str(album / "captions.jsonl")) == 0
    table = capsys.readouterr().out
    assert regard_says("predict", str(run), str(album / "images")) == 0
    assert sorted(table.splitlines()) == sorted(capsys.readouterr().out.splitlines()) and table.count("\n") == 30
    assert (
        regard_says(
            "predict", str(run), picture, "--json", "--set", "decode.num_beams=2", "decode.num_return_sequences=2"
        )
        == 0
    )
    row = json.loads(capsys.readouterr().out)
    assert row["input"] == picture and len(row["alternatives"]) == 2 and row["logprobs"]
    (tmp_path / "bad one.jpg").write_text("no picture")
    assert regard_says("predict", str(run), str(tmp_path / "bad one.jpg"), picture) == 2
    out, err = capsys.readouterr()
    assert out.startswith("\n") and out.count("\t") == 1 and "bad one.jpg: unknown image format" in err
    assert regard_says("predict", str(run), str(tmp_path / "none.jpg")) == 2
    assert "file not found" in capsys.readouterr().err


def test_commands_report_errors_in_one_sentence(run: Path, album: Path, tmp_path: Path, capsys: Any) -> None:
    wrong: list[tuple[list[str], str]] = [
        (["train", "captoin", "--data", str(album)], "Unknown task 'captoin'. Did you mean 'caption'"),
        (["train", "caption", "--data", str(album / "nothing.jsonl"), "--model", "speaker-tiny"], "file not found"),
        (["train", "caption", "--data", str(album), "--model", "speaker-tin"], "Did you mean 'speaker-tiny'"),
        (["train", "caption", "--data", str(album), "--model", "vit-tiny"], "'vit-tiny' does not support task 'caption'"),
        (["train", "caption", "--data", str(album), "--model", "speaker-tiny", "--set", "data.mixup=1"], "cannot be mixed"),
        (["train", "classify", "--data", str(album), "--model", "speaker-tiny"],
         "'speaker-tiny' does not support task 'classify'"),
        (["check", "caption", "--data", f"{album}#train"], "unknown split 'train'"),
        (["train", "caption", "--data", f"{album}#train", "--model", "speaker-tiny"], "No row has a value in the column"),
        (["evaluate", str(run), "--data", str(album / "images")], "expected one caption file"),
        (["explain", str(run), "x"], "x: file not found"),
    ]  # fmt: skip
    for words, right in wrong:
        out = ["--out", str(tmp_path / "no")] if words[0] == "train" else []
        regard_says(*words, *out)
        told = "".join(capsys.readouterr())
        assert right in told and "Traceback" not in told, (words, told)
    assert not (tmp_path / "no").exists()


def test_a_preset_is_described(run: Path, capsys: Any) -> None:
    assert regard_says("info", "speaker-tiny") == 0
    assert "image of 16 × 16 pixels and 16 tokens" in capsys.readouterr().out
    assert regard_says("list", "tasks") == 0 and "caption" in capsys.readouterr().out
