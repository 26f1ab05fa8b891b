"""Immutable, content-addressed data snapshots. Called by `steps`, training and tuning.

A snapshot is a folder named by its id: manifest.json, tokenizer.json and one Arrow file for each
split. The id is a digest of all that the content depends on, so asking again costs a hash of the
source's bytes. A folder appears in one rename: what exists is complete.
"""

from __future__ import annotations

import hashlib
import importlib.util
import logging
import os
import secrets
import shutil
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from greenroom import models, paths, tasks
from greenroom.data import sources, tokenizer
from greenroom.data.manifest import ENCODING_VERSION, Manifest
from greenroom.errors import ConfigError, DataError, NotFoundError, nearest
from greenroom.specs import DataSpec, Experiment, as_json

if TYPE_CHECKING:
    import pyarrow as pa

    from greenroom.data.build import Content

log = logging.getLogger(__name__)

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
        try:
            with pa.memory_map(str(self.path / f"{name}.arrow")) as file:
                return pa.ipc.open_file(file).read_all()
        except (OSError, pa.ArrowInvalid) as error:
            raise DataError(
                f"snapshot {self.id} is damaged ({error}); delete {self.path} and make it again "
                "with: mlflow run . -e data"
            ) from error


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
    from greenroom.data import build

    task, examples = build.load(experiment)
    if sources.digest(experiment.data) != source_digest:
        raise DataError(
            f"data.source: {sources.describe(experiment.data)!r} changed while it was read; "
            "run again when nothing writes to it"
        )
    content = build.build(build.Identity(wanted, source_digest), experiment, source, task, examples)
    for note in content.manifest.notes:
        log.warning("data: %s", note)
    _write(content)
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


# -- writing ----------------------------------------------------------------------------------


def _write(content: Content) -> None:
    """Fills a folder of its own and renames it; of two processes at once the first one wins."""
    import pyarrow as pa

    home, target = paths.snapshots(), paths.snapshots() / content.manifest.id
    home.mkdir(parents=True, exist_ok=True)
    _sweep(home)
    folder = home / f"{_WRITING}{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(4)}"
    folder.mkdir()
    if target.exists() and not (target / MANIFEST).is_file():  # damaged by hand
        os.rename(target, home / f"{_WRITING}{socket.gethostname()}-0-{secrets.token_hex(4)}")
    try:
        for name, rows in content.splits.items():
            with pa.ipc.new_file(str(folder / f"{name}.arrow"), rows.schema) as writer:
                writer.write_table(rows)
        content.tokenizer.save(str(folder / "tokenizer.json"), pretty=False)
        (folder / MANIFEST).write_text(content.manifest.to_json(), encoding="utf-8")
        os.rename(folder, target)
    except OSError:
        if not (target / MANIFEST).is_file():  # not the other process's doing
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
