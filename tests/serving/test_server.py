"""The server as a process: its contract towards Vertex, SageMaker and MLflow's clients."""

from __future__ import annotations

import gzip
import json
import signal
import socket
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

import processkit
from greenroom.serving import server
from greenroom.serving.endpoint import EndpointFolder, State, VariantSpec
from greenroom.serving.server import BODY_LIMIT, Settings


@pytest.fixture(scope="module")
def port(model: Path) -> Iterator[int]:
    """A running server."""
    port = processkit.free_port()
    process = processkit.python("-m", "greenroom.serving.server", str(model), "--port", str(port))
    try:
        processkit.until(lambda: processkit.answers(port), "the server is ready")
        yield port
    finally:
        process.terminate()
        process.communicate(timeout=30)


def _post(port: int, body: Any, path: str = "/invocations") -> tuple[int, Any]:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    status, _, answer = processkit.request(port, "POST", path, data)
    return status, answer


def test_ready(port: int) -> None:
    assert processkit.answers(port, "/ping")
    assert processkit.answers(port, "/health")


def test_the_four_spellings_give_one_answer(port: int) -> None:
    bodies = [
        {"instances": ["a dog", {"text": "where is paris"}]},
        {"inputs": ["a dog", "where is paris"]},
        {"dataframe_split": {"columns": ["text"], "data": [["a dog"], ["where is paris"]]}},
        {"dataframe_records": [{"text": "a dog"}, {"text": "where is paris"}]},
    ]
    results = [_post(port, body) for body in bodies]
    assert all(status == 200 for status, _ in results)
    labels = [[p["label"] for p in answer["predictions"]] for _, answer in results]
    assert labels[1:] == labels[:-1]
    first = results[0][1]["predictions"][0]
    assert set(first) == {"label", "score", "scores"}
    assert sum(first["scores"].values()) == pytest.approx(1.0)
    assert first["scores"][first["label"]] == first["score"]


def test_a_long_text_says_that_it_was_cut(port: int) -> None:
    status, answer = _post(port, {"instances": ["dog " * 500, "dog"]})
    assert status == 200
    assert answer["predictions"][0]["truncated"] is True
    assert "truncated" not in answer["predictions"][1]


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"null",
        b'{"instances": []}',
        b'{"instances": null}',
        b"[" * 200000,
        b'{"instances": [NaN]}',
        b"\xff",
        b'{"instances": {"a": 1}}',
        b"1" * 10000,
    ],
)
def test_a_bad_body_is_400_with_a_reason(port: int, body: bytes) -> None:
    status, answer = _post(port, body)
    assert status == 400
    assert answer["error"]


@pytest.mark.parametrize("bad", [None, 1, 1.5, False, [], {}, {"txt": "a"}, {"text": 3}])
def test_a_bad_instance_is_400_naming_its_index(port: int, bad: Any) -> None:
    status, answer = _post(port, {"instances": ["a", "b", bad, None]})
    assert (status, answer["index"]) == (400, 2)
    assert "instance 2" in answer["error"]


def test_lone_surrogates_and_controls_are_answered(port: int) -> None:
    body = b'{"instances": ["\\ud800", "\\u0000", "\\u200b\\u202e", "\\ud83d\\ude00"]}'
    status, answer = _post(port, body)
    assert status == 200
    assert len(answer["predictions"]) == 4


def test_ten_thousand_instances_are_answered_in_order(port: int) -> None:
    texts = ["a dog", "where is paris", "what is the big cat"]
    expected = [p["label"] for p in _post(port, {"instances": texts})[1]["predictions"]]
    status, answer = _post(port, {"instances": texts * 3334})
    assert status == 200
    assert [p["label"] for p in answer["predictions"]] == expected * 3334


def test_the_limit_of_the_body_is_413(port: int) -> None:
    room = BODY_LIMIT - len(b'{"instances": [""]}')
    assert _post(port, b'{"instances": ["%s"]}' % (b"a" * room))[0] == 200
    status, answer = _post(port, b'{"instances": ["%s"]}' % (b"a" * (room + 1)))
    assert status == 413
    assert str(BODY_LIMIT) in answer["error"]


def test_other_paths_and_methods_answer_json(port: int) -> None:
    assert processkit.request(port, "GET", "/nothing")[0] == 404
    assert processkit.request(port, "GET", "/invocations")[0] == 405


def test_half_a_request_harms_nobody(port: int) -> None:
    with socket.create_connection(("127.0.0.1", port)) as half:
        half.sendall(b"POST /invocations HTTP/1.1\r\nHost: a\r\nContent-Length: 99\r\n\r\n{")
        half.shutdown(socket.SHUT_WR)
    with socket.create_connection(("127.0.0.1", port)) as noise:
        noise.sendall(b"\x16\x03\x01 no http\r\n\r\n")
    assert _post(port, {"instances": ["a dog"]})[0] == 200


def test_a_full_queue_is_503_with_retry_after(model: Path) -> None:
    port = processkit.free_port()
    options = ["--port", str(port), "--max-queue", "1", "--max-batch", "1"]
    process = processkit.python("-m", "greenroom.serving.server", str(model), *options)
    seen: list[tuple[int, Any]] = []

    def send(size: int) -> None:
        body = json.dumps({"instances": ["dog " * 200] * size}).encode()
        status, headers, _ = processkit.request(port, "POST", "/invocations", body)
        seen.append((status, headers.get("Retry-After")))

    try:
        processkit.until(lambda: processkit.answers(port), "the server is ready")
        for _ in range(10):  # a crowd may, on a slow machine, happen to come one by one
            crowd = [threading.Thread(target=send, args=(400,)) for _ in range(6)]
            for thread in crowd:
                thread.start()
            for thread in crowd:
                thread.join()
            if any(status == 503 for status, _ in seen):
                break
        assert {status for status, _ in seen} == {200, 503}
        assert all(after for status, after in seen if status == 503)
    finally:
        process.terminate()
        process.communicate(timeout=30)


def test_sigterm_answers_what_is_in_flight(model: Path) -> None:
    port = processkit.free_port()
    process = processkit.python("-m", "greenroom.serving.server", str(model), "--port", str(port))
    try:
        processkit.until(lambda: processkit.answers(port), "the server is ready")
        body = json.dumps({"instances": ["what is the big dog"] * 20_000}).encode()
        head = (
            b"POST /invocations HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\n"
            b"Content-Length: %d\r\n\r\n" % len(body)
        )
        with socket.create_connection(("127.0.0.1", port), timeout=60) as client:
            client.sendall(head)
            assert client.recv(1 << 16).startswith(b"HTTP/1.1 100")  # now it is in flight
            client.sendall(body[:-1])
            process.send_signal(signal.SIGTERM)
            processkit.until(lambda: _refuses(port), "no new connection is taken")
            client.sendall(body[-1:])
            answer = b"".join(iter(lambda: client.recv(1 << 16), b""))
        assert answer.startswith(b"HTTP/1.1 200")
        assert answer.count(b'"label"') == 20_000
        assert process.wait(timeout=30) == 0
    finally:
        process.kill()
        process.communicate(timeout=30)


def _refuses(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=5).close()
    except ConnectionRefusedError:
        return True
    return False


def test_it_ends_with_its_parent(model: Path, tmp_path: Path) -> None:
    options = ["--socket", str(tmp_path / "s.sock"), "--follow-stdin"]
    process = processkit.python(
        "-m", "greenroom.serving.server", str(model), *options, stdin=subprocess.PIPE
    )
    _, log = process.communicate(timeout=60)  # closes the pipe, as a killed parent does
    assert process.returncode == 0, log


@pytest.mark.parametrize("what", ["no model", "port taken"])
def test_what_cannot_be_served_ends_with_1(what: str, model: Path, tmp_path: Path) -> None:
    folder = tmp_path if what == "no model" else model
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1] if what == "port taken" else processkit.free_port()
        process = processkit.python(
            "-m", "greenroom.serving.server", str(folder), "--port", str(port)
        )
        _, log = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "cannot serve" in log
    assert "Traceback" not in log


def test_it_imports_only_what_it_needs(model: Path) -> None:
    program = (
        "import sys, asyncio, pathlib\n"
        "from greenroom.serving import server\n"
        "async def work():\n"
        f"    s = server.Server(server.Settings(pathlib.Path({str(model)!r})))\n"
        "    await s.load(); await s.close()\n"
        "asyncio.run(work())\n"
        "heavy = {'mlflow', 'transformers', 'pandas', 'pyarrow', 'datasets', 'sklearn', 'click'}\n"
        "print(sorted({n.partition('.')[0] for n in sys.modules} & heavy))"
    )
    process = processkit.python("-c", program, stdout=subprocess.PIPE)
    out, err = process.communicate(timeout=60)
    assert out.strip() == "[]", err


def test_settings_come_from_the_clouds_environment() -> None:
    vertex = {
        "AIP_HTTP_PORT": "7080",
        "AIP_HEALTH_ROUTE": "/v1/health",
        "AIP_PREDICT_ROUTE": "/v1/predict",
    }
    got = server.parse(["folder"], vertex)
    assert (got.host, got.port) == ("0.0.0.0", 7080)
    assert (got.health_route, got.predict_route) == ("/v1/health", "/v1/predict")
    sagemaker = server.parse([], {})
    assert (sagemaker.host, sagemaker.port) == ("0.0.0.0", 8080)
    assert str(sagemaker.folder) == "/opt/ml/model"
    assert server.parse(["folder"], {}) == Settings(Path("folder"))


def test_vertex_routes_answer(model: Path) -> None:
    port = processkit.free_port()
    process = processkit.python(
        "-m",
        "greenroom.serving.server",
        str(model),
        "--host",
        "127.0.0.1",
        env=processkit.env(
            AIP_HTTP_PORT=str(port), AIP_HEALTH_ROUTE="/v1/h", AIP_PREDICT_ROUTE="/v1/p:predict"
        ),
    )
    try:
        processkit.until(lambda: processkit.answers(port, "/v1/h"), "the server is ready")
        assert _post(port, {"instances": ["a dog"]}, "/v1/p:predict")[0] == 200
    finally:
        process.terminate()
        process.communicate(timeout=30)


@pytest.fixture(scope="module", params=["server", "front"])
def place(request: pytest.FixtureRequest, model: Path) -> Iterator[tuple[int, Path]]:
    """The port and the log of a server, and of an endpoint's front before it."""
    with tempfile.TemporaryDirectory(prefix="gr-") as short:
        root = Path(short)
        if request.param == "server":
            port, log = processkit.free_port(), root / "log.txt"
            command = ["-m", "greenroom.serving.server", str(model), "--port", str(port)]
            with log.open("w") as file, processkit.python(*command, stderr=file) as process:
                processkit.until(lambda: processkit.answers(port), "the server is ready")
                yield port, log
                process.terminate()
            return
        spec = VariantSpec("m", "1", "models:/m-1", str(model), threads=1)
        folder = EndpointFolder(root / "web")
        folder.make()
        folder.write_state(State("web", live=spec))
        command = ["-m", "greenroom.serving.front", str(folder.path)]
        assert processkit.python(*command, stderr=None).wait(60) == 0
        state = folder.state()
        assert state is not None
        processkit.until(lambda: processkit.answers(state.port), "the endpoint is ready")
        yield state.port, folder.log
        psutil.Process(state.pid).terminate()
        processkit.until(lambda: (folder.state() or state).pid == 0, "the front ends")


def test_every_refusal_is_json_and_leaves_no_trace_in_the_log(place: tuple[int, Path]) -> None:
    port, log = place
    before = log.read_text()
    for method, path, status in (("GET", "/no", 404), ("GET", "/invocations", 405)):
        got, _, answer = processkit.request(port, method, path)
        assert (got, bool(answer["error"])) == (status, True)
    body = b'{"instances": ["a dog"]}'
    head = b"POST /invocations HTTP/1.1\r\nHost: a\r\nConnection: close\r\n"
    coded = head + b"Content-Encoding: gzip\r\n"
    said = _raw(port, coded + b"Content-Length: %d\r\n\r\n%s" % (len(body), body))
    assert said.startswith(b"HTTP/1.1 400")
    assert b'{"error": "the body is not what its Content-Encoding' in said
    packed = gzip.compress(body)
    said = _raw(port, coded + b"Content-Length: %d\r\n\r\n%s" % (len(packed), packed))
    assert said.startswith(b"HTTP/1.1 200")
    for noise in (b"\x16\x03\x01 secret\r\n\r\n", b"GET / HTTP/1.1\r\nse cret: 1\r\n\r\n"):
        assert b" 400 " in _raw(port, noise)
    assert b" 400 " in _raw(port, head + b"Transfer-Encoding: chunked\r\n\r\nsecret\r\n")
    for _ in range(3):
        with socket.create_connection(("127.0.0.1", port)) as half:
            half.sendall(b"POST /invocations HTTP/1.1\r\nHost: a\r\nContent-Length: 99\r\n\r\n{")
    assert _post(port, {"instances": ["a dog"]})[0] == 200
    assert log.read_text() == before


def _raw(port: int, request: bytes) -> bytes:
    """What comes back for these bytes, up to the end of the connection."""
    with socket.create_connection(("127.0.0.1", port), timeout=10) as client:
        client.sendall(request)
        return b"".join(iter(lambda: client.recv(1 << 16), b""))
