"""What the systems that translated before the Transformer share: the fields of their configs that are about tokens."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from regard.nn.blocks.embeddings import Sharing, check_tables
from regard.systems.common.system import check_sizes


@dataclass(frozen=True)
class Ancestor:
    """Fields of each of them."""

    vocabulary: int = 30_000
    """tokens, written by one tokenizer for source and target"""
    tables: Sharing = "three"
    """embeddings of source and target and the output matrix: three, two (source and target share theirs), or one for all"""
    pad: int = 0
    """id of the padding token"""
    start: int = 1
    """id of the token that a translation starts from"""
    end: int = 2
    """id of the token that ends a sentence"""

    packs: ClassVar[bool] = False
    """it would go on from one sentence of a packed row into the next"""
    sizes: ClassVar[tuple[str, ...]] = ()
    """further fields that are sizes"""
    read: ClassVar[str] = "width"
    """the field that is the width of what tokens are read from"""

    def __post_init__(self) -> None:
        check_sizes(self, (*self.sizes, "vocabulary"), ("dropout",))
        check_tables(self, self.read)


@dataclass(frozen=True)
class Recurring(Ancestor):
    """Also of those that are recurrent."""

    source_vocabulary: int = 0
    """tokens of the source where it has more of them than the target; 0: as many"""
