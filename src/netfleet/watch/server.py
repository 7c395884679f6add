"""Serves the page over HTTP: GET only, and nothing that the page loads is from elsewhere."""

import gzip
import ipaddress
import json
import socket
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

from bokeh.util.paths import bokehjs_path

from netfleet.report.page import render
from netfleet.watch.figures import figures
from netfleet.watch.news import AXES, COLUMNS, Have, Query, Source

#: What the browser may load and do; styles because Bokeh writes some into the page.
POLICY = (
    "default-src 'none'; script-src 'self'; connect-src 'self'; img-src 'self' data:; style-src 'self' 'unsafe-inline'"
)
#: Seconds between two questions of a page.
INTERVAL = 1.0
_HTML, _SCRIPT, _JSON = "text/html; charset=utf-8", "text/javascript; charset=utf-8", "application/json"
#: From this number of bytes on an answer is compressed.
_LARGE = 2000
Answer = tuple[str, bytes]


class Pages:
    """What the page loads, from one source for all viewers."""

    def __init__(self, source: Source) -> None:
        self._source, self._asked_at = source, 0.0
        self._lock, self._drawing = threading.Lock(), threading.Lock()
        here = Path(__file__).parent
        bokeh = Path(bokehjs_path()) / "js" / "bokeh.min.js"
        self._fixed: Mapping[str, Answer] = {
            "/": (_HTML, render("watch.html", title="netfleet watch", columns=COLUMNS, axes=AXES).encode()),
            "/page.js": (_SCRIPT, (here / "page.js").read_bytes()),
            "/favicon.ico": ("image/x-icon", b""),
            "/bokeh.js": (_SCRIPT, bokeh.read_bytes()),
            "/figures.json": (_JSON, json.dumps(figures()).encode()),
        }
        self._packed = {path: gzip.compress(body, 6) for path, (_, body) in self._fixed.items()}

    @property
    def watched(self) -> bool:
        """Whether a page has asked lately."""
        return time.monotonic() - self._asked_at < 3 * INTERVAL

    def answer(self, path: str, query: str) -> Answer | None:
        """The type and content of what a path names; None if it names nothing."""
        if path in self._fixed:
            return self._fixed[path]
        if path == "/news.json":
            self._asked_at = time.monotonic()
            with self._lock:
                return _JSON, _encode(self._source.news(read_query(query)))
        if path == "/graph.json":
            with self._drawing:
                return _JSON, _encode(self._source.picture(parse_qs(query).get("id", [""])[0]))
        return None

    def packed(self, path: str, body: bytes) -> bytes:
        return self._packed.get(path) or gzip.compress(body, 1)


def _encode(record: object) -> bytes:
    return json.dumps(asdict(record), allow_nan=False).encode()  # type: ignore[call-overload]


def read_query(query: str) -> Query:
    """The query of a page; raises ValueError where it is none."""
    given = parse_qs(query)
    index = given.get("index", [""])[0]
    parts: dict[str, list[int]] = json.loads(given.get("have", ["{}"])[0])
    have = {name: Have(*map(int, part)) for name, part in parts.items()}
    return Query(given.get("series", [""])[0], max(int(index), 0) if index else None, have)


class Server(ThreadingHTTPServer):
    """Serves pages at a socket that listens."""

    daemon_threads = True

    def __init__(self, pages: Pages, listening: socket.socket) -> None:
        address = listening.getsockname()
        super().__init__(address[:2], _Handler, bind_and_activate=False)
        self.socket.close()
        self.socket, self.server_address = listening, address
        self.ended = False
        self.pages, self.loopback = pages, _is_loopback(address[0])

    def server_close(self) -> None:
        """Close the socket, and the connections that viewers keep when they ask the next time."""
        self.ended = True
        super().server_close()

    def handle_error(self, request: object, client_address: object) -> None:
        """A viewer that goes away in the middle of an answer is no error."""


def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class _Handler(BaseHTTPRequestHandler):
    server: Server
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        if self.server.ended:
            self.close_connection = True
            return None
        parts = urlsplit(self.path)
        if not self._is_for_us():
            return self._send(HTTPStatus.FORBIDDEN, "text/plain", b"this page is served to its own machine only")
        try:
            found = self.server.pages.answer(parts.path, parts.query)
        except (ValueError, TypeError, AttributeError):
            return self._send(HTTPStatus.BAD_REQUEST, "text/plain", b"this is not a query of the page")
        if found is None:
            return self._send(HTTPStatus.NOT_FOUND, "text/plain", b"there is nothing here")
        return self._send(HTTPStatus.OK, *found, path=parts.path)

    def _is_for_us(self) -> bool:
        """On loopback, no name of another site's that resolves to it."""
        name = urlsplit(f"//{self.headers.get('Host', '')}").hostname or ""
        return not self.server.loopback or _is_loopback(name)

    def _send(self, status: HTTPStatus, kind: str, body: bytes, path: str = "") -> None:
        packs = len(body) > _LARGE and "gzip" in self.headers.get("Accept-Encoding", "")
        content = self.server.pages.packed(path, body) if packs else body
        self.send_response(status)
        headers = {"Content-Type": kind, "Content-Length": str(len(content)), "Cache-Control": "no-store"}
        headers |= {"Content-Security-Policy": POLICY, "X-Content-Type-Options": "nosniff"}
        headers |= {"Content-Encoding": "gzip"} if packs else {}
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        """Questions of pages are not logged."""


def serve(server: Server, ended: Callable[[], bool]) -> None:
    """Serve until Ctrl-C, or until `ended` and the pages have seen the end."""
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.1}, daemon=True)
    thread.start()
    try:
        while not ended():
            time.sleep(0.2)
        if server.pages.watched:
            time.sleep(3 * INTERVAL)
    finally:
        server.shutdown()
        server.server_close()
