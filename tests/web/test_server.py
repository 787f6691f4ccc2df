"""The server itself, on a loopback port: what it serves, to whom, and what it tells."""

from __future__ import annotations

import json
import re
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("starlette", reason="the extra [web] is not installed")
pytest.importorskip("uvicorn", reason="the extra [web] is not installed")
websockets = pytest.importorskip("websockets", reason="the extra [web] is not installed")

from websockets.sync.client import connect  # noqa: E402

from weft.errors import InputError  # noqa: E402
from weft.web.prometheus import HELP  # noqa: E402
from weft.web.server import STATIC, Serving, is_loopback  # noqa: E402

MakeFolder = Callable[..., Path]
SECONDS = 60.0


@contextmanager
def served(folder: Path, token: str | None = None) -> Iterator[Serving]:
    serving = Serving(folder, "127.0.0.1", 0, token)
    thread = threading.Thread(target=serving.serve, daemon=True)
    thread.start()
    try:
        yield serving
    finally:
        serving.stop()
        thread.join(SECONDS)
        assert not thread.is_alive()


def get(url: str, **headers: str) -> tuple[int, str, Any]:
    try:
        with urllib.request.urlopen(
            urllib.request.Request(url, headers=headers), timeout=SECONDS
        ) as reply:
            return reply.status, reply.read().decode(), reply.headers
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode(), error.headers


def test_the_page_tells_what_is_there_and_what_comes(make_folder: MakeFolder) -> None:
    path = make_folder()
    with served(path.parent) as serving:
        status, page, headers = get(serving.url)
        assert (status, "<title>Weft</title>" in page) == (200, True)
        assert "default-src 'none'" in headers["Content-Security-Policy"]
        for file in STATIC.iterdir():
            assert get(f"{serving.url}static/{file.name}")[0] == 200
        for name in ("..%2f..%2fserver.py", "nothing.js", "..%2f__init__.py"):
            assert get(f"{serving.url}static/{name}")[0] == 404
        with connect(serving.url.replace("http", "ws") + "changes") as socket:
            parts = [message["part"] for message in hear(socket, "run")]
            assert parts[:5] == ["runs", "curves", "events", "fleet", "map"]
            assert parts[5:] == ["measured", "plan", "predicted", "run"]
            with (path / "events.jsonl").open("a") as file:
                file.write('{"step": 9, "kind": "device_joined", "device": "cloud"}\n')
            newest = hear(socket, "events")[-1]
            assert newest["value"]["rows"][-1]["device"] == "cloud"


def test_prometheus_reads_all_runs(make_folder: MakeFolder) -> None:
    path = make_folder()
    make_folder('runs/a "b"', "ended")
    with served(path.parent) as serving:
        status, text, headers = get(f"{serving.url}metrics")
    assert (status, headers["Content-Type"]) == (200, "text/plain; version=0.0.4; charset=utf-8")
    rows = [line for line in text.splitlines() if not line.startswith("# ")]
    sample = re.compile(r'(weft_\w+)\{(\w+="(?:[^"\\]|\\["\\n])*",?)+\} -?[0-9.e+-]+')
    assert all(sample.fullmatch(row) for row in rows)
    assert 'weft_run_minibatches_done{run="first"} 6' in rows
    assert 'weft_device_up{run="first",device="cloud"} 0' in rows
    assert 'weft_run_events_total{run="first",kind="device_lost"} 1' in rows
    assert 'weft_run_test{run="a \\"b\\"",metric="accuracy"} 0.5' in rows
    named = {line.split()[2] for line in text.splitlines() if line.startswith("# TYPE")}
    assert named == set(HELP)


def hear(socket: Any, part: str) -> list[dict[str, Any]]:
    """All messages up to the first about this part."""
    messages = []
    while not messages or messages[-1]["part"] != part:
        messages.append(json.loads(socket.recv(timeout=SECONDS)))
    return messages


def test_foreign_pages_and_names_are_refused(make_folder: MakeFolder) -> None:
    with served(make_folder().parent) as serving:
        assert get(serving.url, Origin="http://evil.example")[0] == 403
        assert get(serving.url, Host="evil.example")[0] == 403
        address = serving.url.replace("http", "ws") + "changes"
        with (
            pytest.raises(websockets.exceptions.InvalidStatus),
            connect(address, origin="http://evil.example"),
        ):
            pass
        question = urllib.request.Request(f"{serving.url}what-if", b'{"run": "../x", "change": {}}')
        with pytest.raises(urllib.error.HTTPError, match="404"):
            urllib.request.urlopen(question, timeout=SECONDS)
        long = urllib.request.Request(f"{serving.url}what-if", b" " * 100_000)
        with pytest.raises(urllib.error.HTTPError, match="413"):
            urllib.request.urlopen(long, timeout=SECONDS)


def test_with_a_token_nobody_comes_in_without_it(make_folder: MakeFolder) -> None:
    with served(make_folder().parent, token="secret") as serving:
        plain = serving.url.partition("?")[0]
        assert serving.url == f"{plain}?token=secret"
        assert get(plain)[0] == get(f"{plain}?token=guess")[0] == 403
        status, _, headers = get(serving.url)
        assert status == 200
        assert get(f"{plain}static/main.js")[0] == 403
        cookie = headers["Set-Cookie"].partition(";")[0]
        assert get(f"{plain}static/main.js", Cookie=cookie)[0] == 200
        assert "HttpOnly" in headers["Set-Cookie"]


def test_only_loopback_addresses_need_no_token() -> None:
    assert is_loopback("127.0.0.1")
    assert is_loopback("::1")
    assert is_loopback("localhost")
    assert not is_loopback("0.0.0.0")
    assert not is_loopback("192.0.2.7")
    assert not is_loopback("example.org")


def test_a_port_that_is_taken_is_said_in_words(make_folder: MakeFolder) -> None:
    with served(make_folder().parent) as serving:
        port = int(serving.url.rstrip("/").rsplit(":", 1)[1])
        with pytest.raises(InputError, match=f"cannot listen on 127.0.0.1, port {port}"):
            Serving(make_folder().parent, "127.0.0.1", port)
