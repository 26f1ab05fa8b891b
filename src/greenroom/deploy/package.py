"""The model folder of a version on this machine: fetched once, whole or not at all, and checked.

Called by `rollout`.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
import tempfile
from hashlib import sha256
from pathlib import Path

from greenroom import paths, versions
from greenroom.errors import NotFoundError
from greenroom.versions import Version

log = logging.getLogger(__name__)

MANIFEST = "package.json"  # file -> sha256, written when the files came


def fetch(version: Version) -> Path:
    """The version's model folder, below GREENROOM_HOME; a damaged copy is fetched anew.

    Two processes at once do no harm: each writes a folder of its own and renames it.
    """
    folder = _packages() / versions.package_key(version)
    if _is_whole(folder):
        return folder
    if folder.exists():
        log.warning("%s does not match its digests; it is fetched again", folder)
    _packages().mkdir(mode=0o700, parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=_packages(), prefix=".new-") as scratch:
        new = versions.model_folder(version, Path(scratch))
        digests = _digests(new)
        (new / MANIFEST).write_text(json.dumps(digests, indent=1), encoding="utf-8")
        _put(new, folder, Path(scratch))
    return folder


def _put(new: Path, folder: Path, scratch: Path) -> None:
    if folder.exists() and not _is_whole(folder):
        os.replace(folder, scratch / "damaged")
    try:
        os.rename(new, folder)
    except OSError:
        if not _is_whole(folder):  # else another process was faster, with the same files
            raise
        shutil.rmtree(new)


def _packages() -> Path:
    # No endpoint's name starts with a dot, so the folder cannot be one.
    return paths.endpoints() / ".packages"


def _is_whole(folder: Path) -> bool:
    try:
        expected = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):
        return False
    return bool(expected == _digests(folder))


def _digests(folder: Path) -> dict[str, str]:
    return {
        path.relative_to(folder).as_posix(): _digest(path)
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name != MANIFEST
    }


def _digest(path: Path) -> str:
    digest = sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def open_model(source: str) -> Path:
    """The model folder that `greenroom serve` was given: a folder, or models:/NAME/VERSION (the
    version's number, a stage or @alias)."""
    if not source.startswith("models:/"):
        folder = Path(source).absolute()
        if not folder.is_dir():
            raise NotFoundError(f"no folder {folder}; write one, or models:/NAME/VERSION")
        return folder
    name, at, alias = source[len("models:/") :].partition("@")
    if at:
        version = versions.desired(name, alias=alias)
    else:
        name, _, which = name.rpartition("/")
        if which in ("Staging", "Production"):
            version = versions.desired(name, stage=which)
        else:
            version = versions.latest(name) if which == "latest" else versions.get(name, which)
    if version is None:
        raise NotFoundError(f"{source} selects no version")
    return fetch(version)
