"""What a person may set about data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from regard.errors import SettingError

PairOrder = Literal["ordered", "symmetric"]


@dataclass(frozen=True)
class DataSettings:
    tokenizer_type: Literal["byte_bpe", "char", "wordpiece"] = "byte_bpe"
    """the tokenizer that is made, but for translation: byte-pair encoding of bytes, one token a character, or WordPiece as
    encoders have it"""
    vocab_size: int = 10_000
    """tokens of the tokenizer that is trained"""
    tokenizer: str = ""
    """an existing tokenizer.json, or a folder with one or with vocab.json and merges.txt, instead of training one"""
    max_length: int = 256
    """pairs and captions with more tokens than this on a side are counted, named and skipped; texts of classify and choose
    are cut in their middle, and that is counted"""
    pair_order: PairOrder = "ordered"
    """how classify reads two texts: one after the other (entailment), or in both orders, whose states are added
    (similarity)"""
    tag_scheme: Literal["auto", "IOB1", "IOB2", "BIOES", "BILOU", "plain"] = "auto"
    """how tag learns and spells entities, whatever scheme the files are in: auto is IOB2; plain: no entities, each word has a
    class of its own"""
    image_size: tuple[int, ...] = ()
    """height and width in which segment and depth look at pictures; none: a square of model.image_size"""
    metric_depth: bool = True
    """depth is learnt in metres; else up to a scale and a shift of each picture, as where data of many sources is mixed"""
    depth_scale: float = 0.0
    """metres that a step of a map of depth is worth; 0: whole numbers are millimetres, others metres"""
    crop_scale: float = 1.0
    """pictures to learn from are cut out at random: the least share of a picture that is taken; 1: pictures are left whole"""
    shift: float = 0.0
    """they are moved by up to this share of their sides, by whole pixels: for small pictures, which a cut-out would blur;
    clouds along each axis by up to this, in the unit of their frame"""
    flip: bool = False
    """every second one is mirrored; captions are not, which may say 'left of'; clouds along one of the axes that do not point
    upwards"""
    color_jitter: float = 0.0
    """its brightness, contrast and saturation are changed by up to this share"""
    random_erasing: float = 0.0
    """a grey rectangle covers up to this share of every second one, so that no part alone decides"""
    mixup: float = 0.0
    """two pictures are mixed, and their classes: the parameter of the Beta distribution of the shares; 0: they are not"""
    num_points: int = -1
    """points that are drawn of each cloud, others each time; 0: all; -1: 1,024 to classify, 4,096 to segment"""
    point_norm: Literal["auto", "unit_sphere", "center", "floor"] = "auto"
    """where clouds are laid. unit: their mean at 0, the farthest point at 1; centred: their mean at 0; floor: their mean in the
    plane at 0, and the lowest point; auto: unit to classify, floor to segment"""
    voxel_size: float = -1.0
    """edge of cells of which one point each is kept, in the unit of the files; 0: all are; -1: as the model has it, and all
    of a new one"""
    block_size: float = -1.0
    """side of upright columns that scenes are cut into, in the unit of the files; 0: clouds stay whole; -1: as the model has
    it, and whole for a new one"""
    up_axis: Literal["auto", "x", "y", "z"] = "auto"
    """the axis of clouds that points upwards; auto: as the model has it, z of a new one"""
    point_features: tuple[str, ...] = ("auto",)
    """what is read beside the places of points: colours, normals; none: nothing; auto: what the clouds have"""
    rotate: Literal["none", "up", "any"] = "none"
    """clouds to learn from are turned at random: about the axis that points upwards, or about any"""
    scale: tuple[float, ...] = (1.0, 1.0)
    """they are scaled by a factor between these"""
    jitter: float = 0.0
    """each point is moved by itself, by so much in the mean of its squares, in the unit of the frame"""
    point_dropout: float = 0.0
    """up to this share of their points is left out"""
    tilt: float = 0.0
    """they are turned a little, about any axis: the deviation in degrees"""
    stretch: float = 0.0
    """they are made longer or shorter along each axis by itself, by up to this share"""
    mask_prob: float = 0.15
    """share of the tokens that mask hides and asks for"""
    whole_word_mask: bool = False
    """mask hides all pieces of a word together"""
    valid_fraction: float = 0.02
    """share held out for validation when none is given (at most 2,000; of small data more, unless it is set)"""
    pretokenized: bool = False
    """the text is already split into tokens by spaces: BLEU (of captions CIDEr too) is computed on it as it is"""
    num_workers: int = -1
    """processes that prepare batches ahead; -1 is 2 with CUDA and 0 elsewhere"""
    eval_samples: int = 500
    """validation samples answered for the score while training"""
    detokenize: Literal["none", "wikitext", "ptb"] = "none"
    """undo the spaces and signs that a published data set put into its text (language and mask)"""
    stride: int = 0
    """tokens between two windows of a text: where language measures its loss (0: windows do not overlap), and where tag and
    span read texts that are longer than the model's (0: they overlap by 128)"""

    def __post_init__(self) -> None:
        for name in ("vocab_size", "max_length", "eval_samples"):
            if getattr(self, name) < 1:
                raise SettingError(f"data.{name} must be at least 1, not {getattr(self, name)}.")
        if self.num_points < -1:
            raise SettingError(
                f"data.num_points must be at least 0, or -1 for a sensible number, not {self.num_points}."
            )
        for name in ("voxel_size", "block_size"):
            if getattr(self, name) < 0 and getattr(self, name) != -1:
                raise SettingError(f"data.{name} must be at least 0, not {getattr(self, name)}.")
        if self.num_workers < -1:
            raise SettingError(
                f"data.num_workers must be at least 0, or -1 for a sensible number, not {self.num_workers}."
            )
        if self.stride < 0:
            raise SettingError(f"data.stride must be at least 0, not {self.stride}.")
        if not 0 < self.mask_prob < 1:
            raise SettingError(f"data.mask_prob must lie between 0 and 1, not {self.mask_prob}.")
        if not 0 < self.valid_fraction < 1:
            raise SettingError(f"data.valid_fraction must lie between 0 and 1, not {self.valid_fraction}.")
