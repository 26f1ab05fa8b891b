"""What a snapshot says of itself: manifest.json. Written by `snapshot`, read by everyone."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field

from greenroom.specs import as_json

ENCODING_VERSION = 1  # raised whenever the same inputs give other rows than before


@dataclass(frozen=True)
class SplitInfo:
    """The figures of one split."""

    rows: int
    labels: Mapping[str, int]  # examples by label
    truncated: int  # texts that lost tokens
    tokens: int  # after the cut, special ones included
    longest: int  # tokens of the longest example


@dataclass(frozen=True)
class TokenizerInfo:
    """The tokenizer that encoded the texts; the snapshot holds a copy."""

    source: str
    digest: str
    vocab_size: int


@dataclass(frozen=True)
class Manifest:
    """All that is known of a snapshot besides its rows."""

    id: str
    source: str
    source_digest: str  # sha256 over the source's bytes
    labels: tuple[str, ...]  # label i of the Arrow files is labels[i]
    splits: Mapping[str, SplitInfo]  # train first; only those that have rows
    tokenizer: TokenizerInfo
    max_length: int
    pad_id: int
    task: str = "classification"
    notes: tuple[str, ...] = ()  # what a reader of results should know
    counts: Mapping[str, int] = field(default_factory=dict)  # rows read, kept, dropped and why
    encoding_version: int = ENCODING_VERSION
    created: str = ""  # ISO 8601, UTC

    def to_json(self) -> str:
        """The text of manifest.json."""
        return as_json(self, indent=1)

    @classmethod
    def from_json(cls, text: str) -> Manifest:
        """The manifest that `to_json` wrote; ValueError, TypeError or KeyError when it is not."""
        value = json.loads(text)
        order = [s for s in ("train", "validation", "test") if s in value["splits"]]
        splits = {name: SplitInfo(**value["splits"][name]) for name in order}
        return cls(
            **{
                **value,
                "labels": tuple(value["labels"]),
                "notes": tuple(value["notes"]),
                "splits": splits,
                "tokenizer": TokenizerInfo(**value["tokenizer"]),
            }
        )
