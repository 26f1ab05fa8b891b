"""Files behind a URI, by fsspec. Called by `sources`.

Each protocol's own library raises its own errors; here they become a `DataError` with the URI.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import fsspec

from greenroom.errors import DataError


def expand(uri: str) -> list[str]:
    """The URIs of the files that `uri`, which may be a glob, stands for, sorted."""
    with _wrapped(uri):
        filesystem, path = fsspec.core.url_to_fs(uri)
        if not any(mark in uri for mark in "*?["):
            exists = filesystem.isfile(path)
            found = [uri] if exists else []
        else:
            found = sorted(filesystem.unstrip_protocol(p) for p in filesystem.glob(path))
    if not found:
        raise DataError(f"data.source: no file at {uri!r}")
    return found


@contextlib.contextmanager
def open_binary(uri: str) -> Iterator[Any]:
    """The file at `uri`, open for reading bytes."""
    with _wrapped(uri), fsspec.open(uri, "rb") as file:
        yield file


@contextlib.contextmanager
def _wrapped(uri: str) -> Iterator[None]:
    protocol = uri.partition("://")[0]
    try:
        yield
    except DataError:
        raise
    except ImportError as error:
        raise DataError(
            f"data.source: {uri!r} needs a package that is not installed for {protocol}://: {error}"
        ) from error
    except ValueError as error:
        known = "s3, gs, abfs, https, file, memory"
        raise DataError(f"data.source: {uri!r}: {error}; protocols such as {known}") from error
    except Exception as error:  # botocore's, gcsfs's and aiohttp's errors have no common parent
        raise DataError(
            f"data.source: {uri!r} cannot be read: {type(error).__name__}: {error}"
        ) from error
