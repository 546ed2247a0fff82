"""The table of tasks: one row per task and input modality. A row names modules; nothing is imported until a row is resolved."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from regard import index
from regard.errors import SettingError, UnknownNameError
from regard.lazy import resolve

if TYPE_CHECKING:
    from regard.data.reader import Reader
    from regard.tasks.base import Objective
    from regard.tasks.modality.base import Modality

__all__ = ["MODALITIES", "TASKS", "Task", "find_task", "unused_settings", "uses_setting"]

MODALITIES = {
    "text": "regard.tasks.modality.text:Text",
    "image": "regard.tasks.modality.image:Image",
    "points": "regard.tasks.modality.points:Points",
}
"""Input modalities in the order of preference if a task of this name has several."""


@dataclass(frozen=True)
class Task:
    """A task for one input modality."""

    name: str
    input: str
    """input modality: text, image or points"""
    objective_path: str
    """class of the objective: head, loss, predictions and metrics"""
    reader_path: str
    """reader of samples in `regard.data`"""
    check_path: str
    """data check in `regard.data.check`"""
    explain_path: str
    """explainer in `regard.explain`"""
    default_model: str
    """preset if no model is given"""
    description: str
    usage: str
    """example of an input on the command line"""
    target: str = ""
    """modality of the targets, if the targets need a processor; text: the processor includes a tokenizer"""
    pipeline_tag: str = ""
    """pipeline tag of the Hugging Face Hub; the Hub has none for point clouds"""
    aliases: tuple[str, ...] = ()
    """names of the task in other tools"""

    @functools.cached_property
    def objective(self) -> Objective:
        """The objective, imported at the first use."""
        made: Objective = resolve(f"regard.tasks.{self.objective_path}")(self)
        return made

    @functools.cached_property
    def reader(self) -> Reader:
        """The reader of samples, imported at the first use."""
        found: Reader = resolve(f"regard.data.{self.reader_path}")
        return found

    @property
    def modality(self) -> Modality:
        """The input modality."""
        return self.objective.modality

    @property
    def checker(self) -> Any:
        """Class of the data check."""
        return resolve(f"regard.data.check.{self.check_path}")

    @property
    def explainer(self) -> Any:
        """Function that explains a prediction."""
        return resolve(f"regard.explain.{self.explain_path}")

    @property
    def has_text(self) -> bool:
        """True if the processor includes a tokenizer."""
        return "text" in (self.input, self.target)


TASKS = (
    Task(
        "translate", "text", "translate:Translate", "text.samples:PAIRS", "pairs:PairSurvey",
        "text_generation:explain_translation", "transformer-tiny", "Translation: sentence pairs.", '"a sentence"', "text",
        "translation", ("translation", "seq2seq", "text2text-generation"),
    ),
    Task(
        "lm", "text", "lm:LanguageModeling", "text.documents:DOCUMENTS", "texts:TextSurvey",
        "text_generation:explain_lm", "gpt2-mini", "Causal language modeling and text generation: plain text.",
        '"Once upon a time"', "", "text-generation", ("text-generation", "causal-lm", "language-modeling"),
    ),
    Task(
        "mlm", "text", "mlm:MaskedLM", "text.documents:NUMBERED_DOCUMENTS", "texts:DocumentSurvey",
        "text_decisions:explain_mlm", "bert-mini", "Masked language modeling (and next-sentence prediction): documents.",
        '"The capital of [MASK] is Paris."', "", "fill-mask", ("fill-mask", "masked-lm"),
    ),
    Task(
        "classify", "text", "classify:Classify", "text.samples:LABELED", "texts:LabeledSurvey",
        "text_decisions:explain_classify", "gpt2-mini", "Classification of texts or text pairs, single- or multi-label.",
        '"a text"', "", "text-classification", ("text-classification", "sequence-classification"),
    ),
    Task(
        "tag", "text", "tag:Tag", "text.tagged:TAGGED", "texts:TagSurvey", "text_decisions:explain_tag", "bert-mini",
        "Token classification (NER, POS): one tag per word.", '"a sentence"', "", "token-classification",
        ("token-classification", "ner", "pos"),
    ),
    Task(
        "qa", "text", "qa:QuestionAnswering", "text.qa:SPANS", "texts:QASurvey", "text_decisions:explain_qa", "bert-mini",
        "Extractive question answering: question, context, answer.", "$'a question?\\tits context'", "",
        "question-answering", ("question-answering", "squad"),
    ),
    Task(
        "choose", "text", "choose:Choose", "text.samples:QUESTIONS", "texts:ChoiceSurvey",
        "text_decisions:explain_choice", "gpt2-mini", "Multiple choice: context, optional question, choices.",
        '"a context" --choices "one answer|another"', "", "multiple-choice", ("multiple-choice",),
    ),
    Task(
        "embed", "text", "embed:Embed", "text.samples:SIMILAR_PAIRS", "pairs:ContrastivePairSurvey",
        "text_decisions:explain_embed", "bert-mini", "Sentence embeddings: pairs of similar texts (contrastive).",
        '"a text"', "", "sentence-similarity", ("sentence-similarity", "feature-extraction"),
    ),
    Task(
        "algorithmic", "text", "algorithmic:Algorithmic", "synthetic.algorithmic:QUESTIONS", "pairs:AlgorithmicSurvey",
        "text_generation:explain_translation", "universal-tiny",
        "Algorithmic tasks: copy, reverse, sort, add, facts (bAbI style).", '"a question"', "text",
        "text2text-generation", ("copy", "babi"),
    ),
    Task(
        "classify", "image", "classify:Classify", "images.labeled:LABELED", "files:ImageSurvey", "images:explain_image",
        "vit-tiny", "Image classification, single- or multi-label.", "image.jpg", "", "image-classification",
        ("image-classification",),
    ),
    Task(
        "segment", "image", "segment:Segment", "images.masks:SEGMENTED", "files:MaskSurvey", "images:explain_image",
        "dpt-small", "Semantic segmentation: images with masks.", "image.jpg", "", "image-segmentation",
        ("image-segmentation", "semantic-segmentation"),
    ),
    Task(
        "depth", "image", "depth:Depth", "images.labeled:DEPTH", "files:DepthSurvey", "images:explain_image", "dpt-small",
        "Depth estimation: images with depth maps.", "image.jpg", "", "depth-estimation", ("depth-estimation",),
    ),
    Task(
        "draw", "image", "draw:Draw", "images.labeled:UNLABELED", "files:UnlabeledImageSurvey",
        "images:explain_generation", "imagegpt-mini", "Image generation and completion: images.", "image.jpg", "",
        "unconditional-image-generation", ("image-generation", "unconditional-image-generation"),
    ),
    Task(
        "caption", "image", "caption:Caption", "images.captions:CAPTIONED", "files:CaptionSurvey",
        "captioning:explain_caption", "caption-attend-tiny", "Image captioning: images with captions.", "image.jpg", "text",
        "image-to-text", ("image-to-text", "image-captioning"),
    ),
    Task(
        "classify", "points", "classify:Classify", "points.labeled:CLOUDS", "point_clouds:CloudSurvey",
        "points:explain_cloud", "point-tiny", "Point-cloud classification.", "cloud.ply", "", "", ("point-classification",),
    ),
    Task(
        "segment", "points", "segment:Segment", "points.labeled:LABELED_CLOUDS", "point_clouds:LabeledCloudSurvey",
        "points:explain_cloud", "point-tiny", "Point-cloud segmentation: point clouds with labels per point.", "cloud.ply",
        "", "", ("point-segmentation",),
    ),
)  # fmt: skip


def uses_setting(task: Task, setting: str) -> bool:
    """True if the setting, for example `data.vocab_size`, has an effect in the task."""
    return setting in task.objective.settings_used or setting not in index.task_specific_settings()


def unused_settings(task: Task, settings: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """User settings by group without an effect in the task, as `group.name`."""
    named = (f"{group}.{name}" for group, values in settings.items() for name in values)
    return [setting for setting in named if not uses_setting(task, setting)]


def find_task(name: str, modality: str | None = None) -> Task:
    """Task by name and modality. None: the first modality with such a task, in the order text, image, points."""
    name = index.resolve_task_name(name)
    rows = [task for task in TASKS if task.name == name]
    if not rows:
        raise UnknownNameError("task", name, dict.fromkeys(task.name for task in TASKS), index.TASK_ADVICE)
    for task in rows:
        if modality in (None, task.input):
            return task
    raise SettingError(f"Task '{name}' does not support models with input type '{modality}'.")
