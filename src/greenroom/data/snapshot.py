"""Immutable, content-addressed data snapshots. Called by `steps`, training and tuning.

A snapshot is a folder named by its id: manifest.json, tokenizer.json and one Arrow file for each
split. The id is a digest of all that the content depends on, so asking again costs a hash of the
source's bytes. A folder appears in one rename: what exists is complete.
"""

from __future__ import annotations

import datetime
import hashlib
import importlib.util
import logging
import os
import secrets
import shutil
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from greenroom import models, paths, tasks
from greenroom.data import sources, tokenizer
from greenroom.data.manifest import Manifest, TokenizerInfo
from greenroom.errors import ConfigError, DataError, NotFoundError, nearest
from greenroom.specs import DataSpec, Experiment, as_json

if TYPE_CHECKING:
    import pyarrow as pa

log = logging.getLogger(__name__)

ENCODING_VERSION = 1  # raised whenever the same inputs give other rows than before
MANIFEST = "manifest.json"
_WRITING = ".writing-"  # a folder that is being filled: .writing-HOST-PID-RANDOM


@dataclass(frozen=True)
class Snapshot:
    """A snapshot on this machine."""

    id: str
    path: Path
    manifest: Manifest

    @property
    def tokenizer_file(self) -> Path:
        """tokenizer.json: truncation at the manifest's max_length, no padding."""
        return self.path / "tokenizer.json"

    def split(self, name: str) -> pa.Table:
        """The rows of train, validation or test, memory-mapped.

        Columns: `id` int64 (the row in the source), `text`, `label` int32 (an index into
        manifest.labels), `input_ids` list<int32>, `truncated` bool, and the source's others.
        """
        import pyarrow as pa

        if name not in self.manifest.splits:
            raise DataError(
                f"snapshot {self.id} has no split {name!r}; {nearest(name, self.manifest.splits)}"
            )
        with pa.memory_map(str(self.path / f"{name}.arrow")) as file:
            return pa.ipc.open_file(file).read_all()


def snapshot_id(experiment: Experiment, model: str) -> str:
    """The id that `prepare` would give: 32 hexadecimal digits. Writes nothing."""
    return _id(experiment, models.resolve(model), sources.digest(experiment.data))


def open_snapshot(snapshot: str) -> Snapshot:
    """The snapshot with that id, which must be on this machine."""
    path = paths.snapshots() / snapshot
    file = path / MANIFEST
    try:
        manifest = Manifest.from_json(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise NotFoundError(
            f"no snapshot {snapshot!r} in {paths.snapshots()}; make it with: mlflow run . -e data"
        ) from None
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise DataError(f"{file} is damaged ({error}); delete {path} and make it again") from error
    return Snapshot(snapshot, path, manifest)


def prepare(experiment: Experiment, model: str) -> tuple[Snapshot, bool]:
    """The snapshot of the experiment's data for a model, and whether it was there already.

    Raises `DataError` or `ConfigError` for what cannot be used; nothing is left behind then.
    """
    source = models.resolve(model)
    _check_length(experiment.data, source)
    source_digest = sources.digest(experiment.data)
    wanted = _id(experiment, source, source_digest)
    if (paths.snapshots() / wanted / MANIFEST).is_file():
        return open_snapshot(wanted), True
    task = tasks.load_task(experiment.task)
    examples = _checked(task.load_examples(experiment.data), task)
    if experiment.task not in tasks.TASKS:
        _check_distinct(examples.table["text"].to_pylist(), task)
    if sources.digest(experiment.data) != source_digest:
        raise DataError(
            f"data.source: {sources.describe(experiment.data)!r} changed while it was read; "
            "run again when nothing writes to it"
        )
    encoded = _encode(examples, experiment, source, task)
    manifest = _manifest(wanted, source_digest, experiment, source, examples, encoded)
    for note in manifest.notes:
        log.warning("data: %s", note)
    _write(manifest, encoded)
    return open_snapshot(wanted), False


# -- identity ---------------------------------------------------------------------------------


def _id(experiment: Experiment, source: models.ModelSource, source_digest: str) -> str:
    data = experiment.data
    depends = {
        "version": ENCODING_VERSION,
        "source": source_digest,
        # All of [data] but where the bytes lie, which does not change what they say.
        "data": {k: v for k, v in vars(data).items() if k not in ("source", "format", "splits")},
        "splits": data.splits if data.splits.startswith("column:") else "",
        "tokenizer": tokenizer.digest(source, data.seed),
        "task": _task_identity(experiment.task),
    }
    return hashlib.sha256(as_json(depends).encode()).hexdigest()[:32]


def _task_identity(name: str) -> str:
    """A task's name, and for a user's task the digest of its file: editing it changes the data."""
    if name in tasks.TASKS:
        return name
    try:
        spec = importlib.util.find_spec(name.partition(":")[0])
    except (ImportError, ValueError):
        spec = None
    if spec is None or not spec.origin or not Path(spec.origin).is_file():
        tasks.load_task(name)  # raises what is wrong with the name
        return name
    return f"{name} {hashlib.sha256(Path(spec.origin).read_bytes()).hexdigest()}"


def _check_length(data: DataSpec, source: models.ModelSource) -> None:
    limit = source.max_length()
    if limit and data.max_length > limit:
        raise ConfigError(
            f"data.max_length: {data.max_length} tokens are more than the {limit} that "
            f"{source.source!r} takes"
        )


# -- content ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Encoded:
    splits: Mapping[str, pa.Table]
    labels: tuple[str, ...]
    tokenizer: Any
    pad_id: int
    notes: tuple[str, ...]


def _checked(examples: tasks.Examples, task: tasks.Task) -> tasks.Examples:
    """What a user's task returned, with an `id` for each row where it gave none."""
    import pyarrow as pa

    table = examples.table
    missing = [name for name in ("text", "label") if name not in table.column_names]
    if missing:
        raise DataError(
            f"task {task.name!r}: load_examples returned no column {' and '.join(missing)}, only "
            f"{', '.join(table.column_names)}"
        )
    if not table.num_rows:
        raise DataError(f"task {task.name!r}: load_examples returned no examples")
    if "id" not in table.column_names:
        table = table.append_column("id", pa.array(range(table.num_rows), pa.int64()))
    return tasks.Examples(table, examples.notes, examples.counts)


def _check_distinct(texts: list[str], task: tasks.Task) -> None:
    """A text that comes twice would be in train and in test: the built-in task drops it."""
    from greenroom.data.reconcile import normalised

    seen: set[str] = set()
    for text in texts:
        key = normalised(text)
        if key in seen:
            raise DataError(
                f"task {task.name!r}: load_examples returned the text {text[:60]!r} twice, which "
                "would leak into test; keep one (greenroom.data.reconcile.reconcile does)"
            )
        seen.add(key)


def _encode(
    examples: tasks.Examples, experiment: Experiment, source: models.ModelSource, task: tasks.Task
) -> _Encoded:
    import pyarrow as pa
    import pyarrow.compute as pc

    from greenroom.data import encode, split

    table, data = examples.table, experiment.data
    columns = table.column_names
    parts, notes = split.split(
        table["label"].to_pylist(),
        table["group"].to_pylist() if "group" in columns else None,
        table["split"].to_pylist() if "split" in columns else None,
        {"validation": data.validation_fraction, "test": data.test_fraction},
        data.seed,
    )
    where = pa.array(parts)
    raw = {name: table.filter(pc.equal(where, name)) for name in sources.SPLITS if name in parts}
    labels = encode.label_order(table["label"].to_pylist())
    words = tokenizer.load(source, raw["train"]["text"].to_pylist(), data.max_length)
    done = {name: encode.encode(rows, task, words, labels) for name, rows in raw.items()}
    return _Encoded(done, labels, words, tokenizer.pad_id(source, words), notes)


def _manifest(
    wanted: str,
    source_digest: str,
    experiment: Experiment,
    source: models.ModelSource,
    examples: tasks.Examples,
    encoded: _Encoded,
) -> Manifest:
    from greenroom.data.encode import figures

    infos = {name: figures(rows, encoded.labels) for name, rows in encoded.splits.items()}
    cut = sum(info.truncated for info in infos.values())
    limit = experiment.data.max_length
    total = sum(info.rows for info in infos.values())
    warning = (
        (f"{cut} of {total} texts are longer than {limit} tokens and were cut",) if cut else ()
    )
    return Manifest(
        id=wanted,
        source=sources.describe(experiment.data),
        source_digest=source_digest,
        labels=encoded.labels,
        splits=infos,
        tokenizer=TokenizerInfo(
            source.source,
            tokenizer.digest(source, experiment.data.seed),
            encoded.tokenizer.get_vocab_size(),
        ),
        max_length=limit,
        pad_id=encoded.pad_id,
        task=experiment.task,
        notes=(*examples.notes, *encoded.notes, *warning),
        counts=dict(examples.counts),
        encoding_version=ENCODING_VERSION,
        created=datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
    )


# -- writing ----------------------------------------------------------------------------------


def _write(manifest: Manifest, encoded: _Encoded) -> None:
    """Fills a folder of its own and renames it; of two processes at once the first one wins."""
    import pyarrow as pa

    home = paths.snapshots()
    home.mkdir(parents=True, exist_ok=True)
    _sweep(home)
    folder = home / f"{_WRITING}{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(4)}"
    folder.mkdir()
    try:
        for name, rows in encoded.splits.items():
            with pa.ipc.new_file(str(folder / f"{name}.arrow"), rows.schema) as writer:
                writer.write_table(rows)
        encoded.tokenizer.save(str(folder / "tokenizer.json"), pretty=False)
        (folder / MANIFEST).write_text(manifest.to_json(), encoding="utf-8")
        os.rename(folder, home / manifest.id)
    except OSError:
        if not (home / manifest.id / MANIFEST).is_file():  # not the other process's doing
            raise
    finally:
        shutil.rmtree(folder, ignore_errors=True)  # gone already after the rename


def _sweep(home: Path) -> None:
    """Removes what killed processes of this machine left half-filled."""
    for folder in home.glob(f"{_WRITING}*-*-*"):
        host, pid, _ = folder.name[len(_WRITING) :].rsplit("-", 2)
        if host != socket.gethostname():
            continue
        try:
            os.kill(int(pid), 0)
        except ProcessLookupError:
            shutil.rmtree(folder, ignore_errors=True)
        except PermissionError:  # it lives, as another user
            continue
