"""A Hugging Face hub on loopback: enough of its HTTP API for the unmodified client.

Serves repositories from a dictionary, at one commit each, and remembers what was asked for. The
routes are those of huggingface_hub's `repo_info`, `list_repo_tree` and `hf_hub_download`.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

COMMIT = "c0ffee00" * 5
_INFO = re.compile(r"/api/(models|datasets)/([\w./-]+?)/revision/(\w+)")
_TREE = re.compile(r"/api/(models|datasets)/([\w./-]+?)/tree/(\w+)")
_FILE = re.compile(r"/(datasets/)?([\w-]+/[\w.-]+)/resolve/(\w+)/(.+)")


@dataclass
class Hub:
    """The files of each repository (`models/owner/name` or `datasets/owner/name`)."""

    repositories: dict[str, dict[str, bytes]]
    url: str = ""
    asked: list[str] = field(default_factory=list)

    def answer(self, path: str) -> tuple[int, dict[str, str], bytes]:
        """Status, headers and body."""
        path = path.partition("?")[0]
        if match := _INFO.fullmatch(path):
            files = self.repositories.get(f"{match[1]}/{match[2]}")
            if files is None or match[3] not in ("main", COMMIT):
                return 404, {"X-Error-Code": "RepoNotFound"}, b"{}"
            info = {"id": match[2], "sha": COMMIT, "siblings": [{"rfilename": f} for f in files]}
            return 200, {"Content-Type": "application/json"}, json.dumps(info).encode()
        if match := _TREE.fullmatch(path):
            files = self.repositories.get(f"{match[1]}/{match[2]}", {})
            tree = [
                {"type": "file", "path": f, "size": len(body), "oid": _tag(body)}
                for f, body in files.items()
            ]
            return 200, {"Content-Type": "application/json"}, json.dumps(tree).encode()
        if match := _FILE.fullmatch(path):
            kind = "datasets" if match[1] else "models"
            body = self.repositories.get(f"{kind}/{match[2]}", {}).get(match[4])
            if body is not None:
                return 200, {"X-Repo-Commit": COMMIT, "ETag": f'"{_tag(body)}"'}, body
        return 404, {"X-Error-Code": "EntryNotFound"}, b"{}"


def _tag(body: bytes) -> str:
    """The name that git gives to these bytes."""
    return hashlib.sha1(b"blob %d\0" % len(body) + body).hexdigest()


@contextlib.contextmanager
def serving(repositories: dict[str, dict[str, bytes]]) -> Iterator[Hub]:
    """The hub, listening on a free port until the block ends."""
    hub = Hub(repositories)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_HEAD(self) -> None:
            self.reply(body=False)

        def do_GET(self) -> None:
            self.reply(body=True)

        def reply(self, *, body: bool) -> None:
            hub.asked.append(f"{self.command} {self.path}")
            status, headers, content = hub.answer(self.path)
            self.send_response(status)
            for name, value in {**headers, "Content-Length": str(len(content))}.items():
                self.send_header(name, value)
            self.end_headers()
            if body:
                self.wfile.write(content)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    hub.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
