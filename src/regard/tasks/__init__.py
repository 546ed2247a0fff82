"""The table of tasks: one row per task and input modality. A row names modules; nothing is imported until a row is resolved."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any

from regard import index
from regard.errors import SettingError, UnknownNameError

if TYPE_CHECKING:
    from regard.data.reader import Reader
    from regard.tasks.base import Objective
    from regard.tasks.modality.base import Modality

__all__ = ["MODALITIES", "TASKS", "Task", "find_task", "uses_setting"]

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
    input: str  # input modality: text, image or points
    objective_path: str  # class of the objective: head, loss, predictions and metrics
    reader_path: str  # reader of samples in `regard.data`
    check_path: str  # data check in `regard.data.check`
    explain_path: str  # explainer in `regard.explain`
    default_model: str  # preset if no model is given
    description: str
    usage: str  # example of an input on the command line
    pipeline_tag: str = ""  # pipeline tag of the Hugging Face Hub; the Hub has none for point clouds
    aliases: tuple[str, ...] = ()  # names of the task in other tools

    def __reduce__(self) -> Any:
        """A row of the table is pickled and copied by name."""
        return (find_task, (self.name, self.input)) if self in TASKS else object.__reduce_ex__(self, 4)

    @functools.cached_property
    def objective(self) -> Objective:
        """The objective, imported at the first use."""
        made: Objective = resolve_name(f"regard.tasks.{self.objective_path}")(self)
        return made

    @functools.cached_property
    def reader(self) -> Reader:
        """The reader of samples, imported at the first use."""
        found: Reader = resolve_name(f"regard.data.{self.reader_path}")
        return found

    @property
    def modality(self) -> Modality:
        """The input modality."""
        return self.objective.modality

    @property
    def checker(self) -> Any:
        """Class of the data check."""
        return resolve_name(f"regard.data.check.{self.check_path}")

    @property
    def explainer(self) -> Any:
        """Function that explains a prediction."""
        return resolve_name(f"regard.explain.{self.explain_path}")


TASKS = (
    Task(
        "translate", input="text", objective_path="translate:Translate",
        reader_path="text.samples:PAIRS", check_path="pairs:PairSurvey",
        explain_path="text_generation:explain_translation", default_model="transformer-tiny", usage='"a sentence"',
        description="Translation: sentence pairs.", pipeline_tag="translation",
        aliases=("translation", "seq2seq", "text2text-generation"),
    ),
    Task(
        "lm", input="text", objective_path="lm:LanguageModeling", reader_path="text.documents:DOCUMENTS",
        check_path="texts:TextSurvey", explain_path="text_generation:explain_lm", default_model="gpt2-mini",
        usage='"Once upon a time"', description="Causal language modeling and text generation: plain text.",
        pipeline_tag="text-generation", aliases=("text-generation", "causal-lm", "language-modeling"),
    ),
    Task(
        "mlm", input="text", objective_path="mlm:MaskedLM", reader_path="text.documents:NUMBERED_DOCUMENTS",
        check_path="texts:DocumentSurvey", explain_path="text_decisions:explain_mlm", default_model="bert-mini",
        usage='"The capital of [MASK] is Paris."',
        description="Masked language modeling (and next-sentence prediction): documents.", pipeline_tag="fill-mask",
        aliases=("fill-mask", "masked-lm"),
    ),
    Task(
        "classify", input="text", objective_path="classify:Classify", reader_path="text.samples:LABELED",
        check_path="texts:LabeledSurvey", explain_path="text_decisions:explain_classify", default_model="gpt2-mini",
        usage='"a text"', description="Classification of texts or text pairs, single- or multi-label.",
        pipeline_tag="text-classification", aliases=("text-classification", "sequence-classification"),
    ),
    Task(
        "tag", input="text", objective_path="tag:Tag", reader_path="text.tagged:TAGGED", check_path="texts:TagSurvey",
        explain_path="text_decisions:explain_tag", default_model="bert-mini", usage='"a sentence"',
        description="Token classification (NER, POS): one tag per word.", pipeline_tag="token-classification",
        aliases=("token-classification", "ner", "pos"),
    ),
    Task(
        "qa", input="text", objective_path="qa:QuestionAnswering", reader_path="text.qa:SPANS",
        check_path="texts:QASurvey", explain_path="text_decisions:explain_qa", default_model="bert-mini",
        usage="$'a question?\\tits context'", description="Extractive question answering: question, context, answer.",
        pipeline_tag="question-answering", aliases=("question-answering", "squad"),
    ),
    Task(
        "choose", input="text", objective_path="choose:Choose", reader_path="text.samples:QUESTIONS",
        check_path="texts:ChoiceSurvey", explain_path="text_decisions:explain_choice", default_model="gpt2-mini",
        usage='"a context" --choices "one answer|another"',
        description="Multiple choice: context, optional question, choices.", pipeline_tag="multiple-choice",
        aliases=("multiple-choice",),
    ),
    Task(
        "embed", input="text", objective_path="embed:Embed", reader_path="text.samples:SIMILAR_PAIRS",
        check_path="pairs:ContrastivePairSurvey", explain_path="text_decisions:explain_embed",
        default_model="bert-mini", usage='"a text"',
        description="Sentence embeddings: pairs of similar texts (contrastive).", pipeline_tag="sentence-similarity",
        aliases=("sentence-similarity", "feature-extraction"),
    ),
    Task(
        "algorithmic", input="text", objective_path="translate:Algorithmic",
        reader_path="synthetic.algorithmic:QUESTIONS", check_path="pairs:AlgorithmicSurvey",
        explain_path="text_generation:explain_translation", default_model="universal-tiny", usage='"a question"',
        description="Algorithmic tasks: copy, reverse, sort, add, facts (bAbI style).",
        pipeline_tag="text2text-generation", aliases=("copy", "babi"),
    ),
    Task(
        "classify", input="image", objective_path="classify:Classify", reader_path="images.labeled:LABELED",
        check_path="files:ImageSurvey", explain_path="images:explain_image", default_model="vit-tiny",
        usage="image.jpg", description="Image classification, single- or multi-label.",
        pipeline_tag="image-classification", aliases=("image-classification",),
    ),
    Task(
        "segment", input="image", objective_path="segment:segment", reader_path="images.labeled:SEGMENTED",
        check_path="files:MaskSurvey", explain_path="images:explain_image", default_model="dpt-small",
        usage="image.jpg", description="Semantic segmentation: images with masks.", pipeline_tag="image-segmentation",
        aliases=("image-segmentation", "semantic-segmentation"),
    ),
    Task(
        "depth", input="image", objective_path="depth:Depth", reader_path="images.labeled:DEPTH",
        check_path="files:DepthSurvey", explain_path="images:explain_image", default_model="dpt-small",
        usage="image.jpg", description="Depth estimation: images with depth maps.", pipeline_tag="depth-estimation",
        aliases=("depth-estimation",),
    ),
    Task(
        "draw", input="image", objective_path="draw:Draw", reader_path="images.labeled:UNLABELED",
        check_path="files:UnlabeledImageSurvey", explain_path="images:explain_generation",
        default_model="imagegpt-mini", usage="image.jpg", description="Image generation and completion: images.",
        pipeline_tag="unconditional-image-generation", aliases=("image-generation", "unconditional-image-generation"),
    ),
    Task(
        "caption", input="image", objective_path="caption:Caption",
        reader_path="images.captions:CAPTIONED", check_path="files:CaptionSurvey",
        explain_path="captioning:explain_caption", default_model="caption-attend-tiny", usage="image.jpg",
        description="Image captioning: images with captions.", pipeline_tag="image-to-text",
        aliases=("image-to-text", "image-captioning"),
    ),
    Task(
        "classify", input="points", objective_path="classify:Classify", reader_path="points.labeled:CLOUDS",
        check_path="point_clouds:CloudSurvey", explain_path="points:explain_cloud", default_model="point-tiny",
        usage="cloud.ply", description="Point-cloud classification.", aliases=("point-classification",),
    ),
    Task(
        "segment", input="points", objective_path="segment:segment", reader_path="points.labeled:LABELED_CLOUDS",
        check_path="point_clouds:LabeledCloudSurvey", explain_path="points:explain_cloud", default_model="point-tiny",
        usage="cloud.ply", description="Point-cloud segmentation: point clouds with labels per point.",
        aliases=("point-segmentation",),
    ),
)  # fmt: skip


def uses_setting(task: Task, setting: str) -> bool:
    """True if the setting, for example `data.vocab_size`, has an effect in the task."""
    return setting in task.objective.settings_used or all(
        setting not in row["settings"] for row in index.load_index()["tasks"]
    )


def find_task(name: str, modality: str | None = None) -> Task:
    """Task by name and modality. None: the first modality with such a task, in the order text, image, points."""
    name = next((task.name for task in TASKS if name in task.aliases), name)
    rows = [task for task in TASKS if task.name == name]
    if not rows:
        raise UnknownNameError("task", name, dict.fromkeys(task.name for task in TASKS), index.TASK_ADVICE)
    for task in rows:
        if modality in (None, task.input):
            return task
    raise SettingError(f"Task '{name}' does not support models with input type '{modality}'.")
