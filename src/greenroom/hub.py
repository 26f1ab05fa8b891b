"""Whether the Hugging Face hub can be asked, and copies of what it holds.

Called by `models` and `data.sources`. Its client retries a dead network for 23 s and more, so the
question is decided once, early, by one short connection.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import re
import socket
import threading
import urllib.parse
import urllib.request
from collections.abc import Sequence
from pathlib import Path

from greenroom import paths
from greenroom.errors import NotFoundError, RetryableError, UserError

TIMEOUT_S = 3.0  # a hub that does not take a connection in this time would not serve files either
_OFFLINE = ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE", "TRANSFORMERS_OFFLINE")
_ID = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")


def is_id(text: str) -> bool:
    """Whether `text` has the form of a hub id: `name` or `owner/name`, perhaps `@REVISION`."""
    return _ID.fullmatch(text.partition("@")[0]) is not None


def unreachable() -> str:
    """Why the hub cannot be asked, as a clause; "" when it can."""
    for variable in _OFFLINE:
        if os.environ.get(variable, "").upper() in ("1", "ON", "YES", "TRUE"):
            return f"{variable} is set"
    return _connection_problem(os.environ.get("HF_ENDPOINT") or "https://huggingface.co")


@functools.lru_cache(maxsize=8)
def _connection_problem(endpoint: str) -> str:
    url = urllib.parse.urlsplit(endpoint)
    proxy = urllib.request.getproxies().get(url.scheme, "")
    if proxy and not urllib.request.proxy_bypass(url.hostname or ""):
        url = urllib.parse.urlsplit(proxy if "://" in proxy else f"http://{proxy}")
    host, port = url.hostname or "", url.port or (443 if url.scheme == "https" else 80)
    answers: list[str] = []

    def connect() -> None:
        try:
            socket.create_connection((host, port), timeout=TIMEOUT_S).close()
            answers.append("")
        except OSError as error:
            answers.append(f"{host}:{port} cannot be reached ({error})")

    # In a thread, because name resolution has no time limit of its own.
    thread = threading.Thread(target=connect, daemon=True)
    thread.start()
    thread.join(TIMEOUT_S)
    return answers[0] if answers else f"{host}:{port} does not answer within {TIMEOUT_S:g} s"


def download(source: str, what: str, patterns: Sequence[str]) -> Path:
    """The folder with a hub repository's files; its name is the commit they are of.

    `source` is ID or ID@REVISION, `what` model or dataset. A whole copy that is in the hub's cache
    is taken as it is, so that the same work gives the same result tomorrow; name another revision
    to move on. Without a network a copy is taken even if its download was cut short.
    """
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

    repo, _, revision = source.partition("@")

    def fetch(*, cached: bool) -> Path:
        return Path(
            snapshot_download(
                repo,
                repo_type=what,
                revision=revision or None,
                allow_patterns=list(patterns),
                local_files_only=cached,
            )
        )

    here = None
    with contextlib.suppress(LocalEntryNotFoundError):
        here = fetch(cached=True)
    if here is not None and _mark(here, patterns).is_file():
        return here
    problem = unreachable()
    if here is not None and problem:
        return here
    if problem:
        raise UserError(
            f"{what} {source!r} is no file or folder here, is not in the hub's cache, and cannot "
            f"be downloaded: {problem}"
        )
    try:
        here = fetch(cached=False)
    except (HfHubHTTPError, LocalEntryNotFoundError, OSError) as error:
        # The client wraps an answer of the hub in the complaint that nothing is cached.
        response = getattr(error, "response", None) or getattr(error.__cause__, "response", None)
        if getattr(response, "status_code", 0) in (401, 403, 404):
            raise NotFoundError(
                f"the hub has no {what} {source!r} that may be read here; check the name and the "
                "revision, and log in with `hf auth login` if it is private"
            ) from error
        raise RetryableError(f"downloading {what} {source!r} failed: {error}") from error
    mark = _mark(here, patterns)
    mark.parent.mkdir(parents=True, exist_ok=True)
    mark.touch()
    return here


def _mark(folder: Path, patterns: Sequence[str]) -> Path:
    """The file that says that all of `patterns` was downloaded into the hub cache's `folder`.

    Older clients (0.34, for one) hand over a folder whose download was cut short, silently.
    """
    key = hashlib.sha256("\0".join([str(folder), *patterns]).encode()).hexdigest()
    return paths.home() / "hub" / key[:32]
