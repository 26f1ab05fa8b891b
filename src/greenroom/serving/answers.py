"""Answers that are no predictions, as JSON, whoever finds the mistake: us or aiohttp. Shared by
`server` and `front`.
"""

from __future__ import annotations

import logging

from aiohttp import web
from aiohttp.typedefs import Handler

from greenroom.serving import protocol

log = logging.getLogger("greenroom.serving")


def error(
    status: int, message: str, *, index: int | None = None, retry_after: int = 0
) -> web.Response:
    """`{"error": message}`, with the index of the bad instance where one is to blame."""
    headers = {"Retry-After": str(retry_after)} if retry_after else None
    body = protocol.error(message, index)
    return web.Response(status=status, body=body, headers=headers, content_type="application/json")


@web.middleware
async def as_json(request: web.Request, handler: Handler) -> web.StreamResponse:
    """aiohttp's own answers (404, 405, 413) as JSON, and a bug as 500 with its trace in the log."""
    try:
        return await handler(request)
    except web.HTTPException as problem:
        if problem.status == 413:
            limit = request.client_max_size
            return error(413, f"the body is larger than the limit of {limit} bytes")
        return error(problem.status, f"{request.method} {request.path}: {problem.reason}")
    except web.RequestPayloadError:
        return error(400, "the body is not what its Content-Encoding or Transfer-Encoding says")
    except ConnectionResetError:  # nobody is left to read this
        return error(400, "the body did not come whole")
    except Exception:  # a bug here or in a model must be an answer too, not a cut connection
        log.exception("%s %s failed", request.method, request.path)
        return error(500, "the model failed on this request; the server's log says how")


def quiet() -> None:
    """Keeps aiohttp from logging a trace, which quotes the client, of all that is no HTTP.

    What goes wrong in a handler is logged by `as_json`.
    """
    logging.getLogger("aiohttp.server").setLevel(logging.CRITICAL)
