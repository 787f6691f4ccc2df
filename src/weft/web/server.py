"""Serves the page: files, a WebSocket that tells what changes, and the answers to "what if".

Who may use it: on a loopback address, pages of this server only (a foreign page in the same browser is
refused by its `Origin`, a foreign name by its `Host`). On another address everybody who has the token of the
URL. The first request brings it in the URL, all others in a cookie.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import ipaddress
import secrets
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from urllib.parse import urlsplit

import msgspec
import uvicorn
from starlette.applications import Starlette
from starlette.requests import HTTPConnection, Request
from starlette.responses import FileResponse, JSONResponse, PlainTextResponse, Response
from starlette.routing import Route, WebSocketRoute
from starlette.types import ASGIApp, Receive, Scope, Send
from starlette.websockets import WebSocket, WebSocketDisconnect

from weft.errors import InputError
from weft.web.feed import Feed
from weft.web.planner import Planner, Question
from weft.web.prometheus import exposition
from weft.web.what_if import Change

STATIC = Path(__file__).parent / "static"
KINDS = {
    ".html": "text/html", ".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml",
}  # fmt: skip
REFRESH_S = 0.4
MOST_BYTES = 64 << 10  # of a question
SEND_S = 20.0  # a page that takes nothing for so long is disconnected
COOKIE = "weft-token"
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "img-src 'self' data:; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}


class WhatIf(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A question of the page about a run."""

    run: str
    change: Change


class Guard:
    """Lets through who may use the page, and adds the headers."""

    def __init__(self, app: ASGIApp, host: str, token: str | None) -> None:
        self.app, self.host, self.token = app, host, token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self.app(scope, receive, send)
            return
        refusal = self._refusal(HTTPConnection(scope))
        if refusal is None:
            await self.app(scope, receive, send)
        elif scope["type"] == "http":
            await PlainTextResponse(refusal, 403, HEADERS)(scope, receive, send)
        else:
            await WebSocket(scope, receive, send).close(1008)

    def _refusal(self, asked: HTTPConnection) -> str | None:
        host, origin = asked.headers.get("host", ""), asked.headers.get("origin")
        if origin is not None and urlsplit(origin).netloc != host:
            return f"a page of {origin} may not use this one"
        if self.token is None:
            name = urlsplit(f"//{host}").hostname or ""
            return None if is_loopback(name) else f"{host} is not a name of this machine"
        brought = asked.query_params.get("token") or asked.cookies.get(COOKIE) or ""
        if hmac.compare_digest(brought.encode(), self.token.encode()):
            return None
        return "the URL needs its token: weft web has printed it"


class Pages:
    """The answers to requests."""

    def __init__(self, folder: Path, token: str | None) -> None:
        self.feed, self.planner, self.token = Feed(folder), Planner(), token
        self._changed = asyncio.Condition()
        self._listeners = 0
        self._looking = asyncio.Lock()

    async def index(self, request: Request) -> Response:
        response = FileResponse(STATIC / "index.html", headers=HEADERS)
        if self.token is not None:
            response.set_cookie(COOKIE, self.token, httponly=True, samesite="strict")
        return response

    async def static(self, request: Request) -> Response:
        """A file of the page. Its name is looked up, never used as a path."""
        files = {path.name: path for path in STATIC.iterdir() if path.suffix in KINDS}
        path = files.get(request.path_params["name"])
        if path is None:
            return PlainTextResponse("no such file", 404, HEADERS)
        return FileResponse(path, media_type=KINDS[path.suffix], headers=HEADERS)

    async def what_if(self, request: Request) -> Response:
        body = b""
        async for piece in request.stream():
            body += piece
            if len(body) > MOST_BYTES:
                return JSONResponse({"error": "the question is too long"}, 413, HEADERS)
        try:
            asked = msgspec.json.decode(body, type=WhatIf)
        except msgspec.MsgspecError as error:
            return JSONResponse({"error": str(error)}, 400, HEADERS)
        run = self.feed.runs.get(asked.run)
        if run is None or run.plan is None:
            return JSONResponse({"error": f"there is no run {asked.run!r}"}, 404, HEADERS)
        live = run.live
        strategy = live.strategy if live else run.plan.strategy
        question = Question(run.plan, asked.change, strategy, live.options if live else {})
        answer = await self.planner.ask(question)
        return Response(msgspec.json.encode(answer), 200, HEADERS, "application/json")

    async def metrics(self, request: Request) -> Response:
        await self._refresh()
        text = await asyncio.to_thread(exposition, list(self.feed.runs.values()))
        return PlainTextResponse(text, 200, HEADERS, "text/plain; version=0.0.4")

    async def _refresh(self) -> bool:
        async with self._looking:  # one look at a time
            return await asyncio.to_thread(self.feed.refresh)

    async def changes(self, page: WebSocket) -> None:
        """Tells a page of everything, then of what changes, until it goes."""
        await page.accept()
        self._listeners += 1
        listening = asyncio.ensure_future(self._until_gone(page))
        heard = 0
        try:
            while not listening.done():
                number = self.feed.number
                for message in self.feed.since(heard):
                    await asyncio.wait_for(page.send_text(message.decode()), SEND_S)
                heard = number
                async with self._changed:
                    with contextlib.suppress(asyncio.TimeoutError):
                        await asyncio.wait_for(self._changed.wait(), 1.0)
        except (WebSocketDisconnect, RuntimeError, OSError, asyncio.TimeoutError):
            pass  # the page is gone; it connects again if it wants
        finally:
            self._listeners -= 1
            listening.cancel()

    async def _until_gone(self, page: WebSocket) -> None:
        with contextlib.suppress(WebSocketDisconnect, RuntimeError):
            while True:
                await page.receive_text()

    async def look(self) -> None:
        """Looks at the folders again and again while a page is open."""
        while True:
            if self._listeners and await self._refresh():
                async with self._changed:
                    self._changed.notify_all()
            await asyncio.sleep(REFRESH_S)


def make_app(folder: Path, host: str = "127.0.0.1", token: str | None = None) -> ASGIApp:
    """The page of a folder as an ASGI application."""

    @contextlib.asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        looking = asyncio.ensure_future(pages.look())
        try:
            yield
        finally:
            looking.cancel()
            await pages.planner.close()

    pages = Pages(folder, token)
    routes = [
        Route("/", pages.index),
        Route("/static/{name}", pages.static),
        Route("/metrics", pages.metrics),
        Route("/what-if", pages.what_if, methods=["POST"]),
        WebSocketRoute("/changes", pages.changes),
    ]
    return Guard(Starlette(routes=routes, lifespan=lifespan), host, token)


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach the address."""
    if host == "localhost":
        return True
    with contextlib.suppress(ValueError):
        return ipaddress.ip_address(host).is_loopback
    return False


class Serving:
    """A server that is bound to its port but does not serve yet."""

    def __init__(self, folder: Path, host: str, port: int, token: str | None = None) -> None:
        self.token = token or (None if is_loopback(host) else secrets.token_urlsafe(16))
        try:
            family, kind, _, _, address = socket.getaddrinfo(
                host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
            )[0]
            self._socket = socket.socket(family, kind)
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            self._socket.bind(address)
            self._socket.listen()
        except OSError as error:
            raise InputError(
                f"cannot listen on {host}, port {port}: {error.strerror or error}; "
                "give another --port or --host"
            ) from None
        app = make_app(folder, host, self.token)
        self._server = uvicorn.Server(uvicorn.Config(app, log_level="warning", lifespan="on"))
        shown = f"[{host}]" if ":" in host else host
        self.url = f"http://{shown}:{self._socket.getsockname()[1]}/"
        if self.token:
            self.url += f"?token={self.token}"

    def serve(self) -> None:
        """Serves until Ctrl-C, or until `stop`."""
        self._server.run(sockets=[self._socket])

    def stop(self) -> None:
        """Ends `serve`, from another thread."""
        self._server.should_exit = True
