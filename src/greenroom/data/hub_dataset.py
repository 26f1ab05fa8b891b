"""Data sets of the Hugging Face hub. Called by `sources`.

The repository's files are copied once, at one commit, and read from there: what is hashed, what is
read and what is found again without a network are the same files.
"""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa

from greenroom import hub
from greenroom.data.sources import SPLIT_COLUMN, SPLIT_NAMES
from greenroom.data.tables import concatenate, with_constant
from greenroom.errors import ConfigError, DataError

_FILES = ("README.md", "*.parquet", "*.csv", "*.tsv", "*.json", "*.jsonl", "*.txt", "*.arrow")
_COMPRESSED = ("*.csv.gz", "*.json.gz", "*.jsonl.gz", "*.zst", "*.zip")


def identity(source: str) -> str:
    """The commit and the configuration: what the data depend on."""
    _, config, _ = _parts(source)
    return f"{_folder(source).name}:{config}"


def read(source: str) -> tuple[pa.Table, list[str]]:
    """All rows, with their split where the hub says one, and notes on what was left out."""
    import datasets

    _, config, _ = _parts(source)
    try:
        found = datasets.load_dataset(str(_folder(source)), name=config or None)
    except (ValueError, FileNotFoundError, datasets.exceptions.DatasetGenerationError) as error:
        raise DataError(f"data.source: the hub's {source!r} cannot be read: {error}") from error
    known = {name: SPLIT_NAMES[name] for name in found if name in SPLIT_NAMES}
    if len(found) == 1:
        return _plain(next(iter(found.values()))), []
    if "train" not in known.values():
        raise DataError(
            f"data.source: the hub's {source!r} has no train split, only: {', '.join(found)}"
        )
    parts = [
        (f"{source} {name}", with_constant(_plain(found[name]), SPLIT_COLUMN, split))
        for name, split in known.items()
    ]
    left = [name for name in found if name not in known]
    notes = [f"left out the hub's splits {', '.join(left)}"] if left else []
    return concatenate(parts), notes


def _plain(rows: object) -> pa.Table:
    """A `datasets.Dataset` as a table in which class numbers are the classes' names.

    -1 is how hub data sets write "no label"; it becomes null.
    """
    import datasets

    assert isinstance(rows, datasets.Dataset)
    table = pa.table(rows.with_format("arrow")[:])
    for name, feature in rows.features.items():
        if isinstance(feature, datasets.ClassLabel):
            named = [
                None if v is None or v < 0 else feature.int2str(v) for v in table[name].to_pylist()
            ]
            column = table.column_names.index(name)
            table = table.set_column(column, name, pa.array(named, pa.string()))
    return table.replace_schema_metadata(None)


def _folder(source: str) -> Path:
    name, _, revision = _parts(source)
    wanted = f"{name}@{revision}" if revision else name
    return hub.download(wanted, "dataset", (*_FILES, *_COMPRESSED))


def _parts(source: str) -> tuple[str, str, str]:
    """OWNER/NAME[:CONFIG][@REVISION] as its three parts."""
    front, _, revision = source.partition("@")
    name, _, config = front.partition(":")
    if not hub.is_id(name):
        raise ConfigError(
            f"data.source: {source!r} is no hub name; write hub:OWNER/NAME[:CONFIG][@REVISION]"
        )
    return name, config, revision
