"""A web server of files in a dict: listings, ranges, ETags, and what servers do wrong, on demand."""

from __future__ import annotations

import hashlib
import html
import http.server
import re
import threading
import urllib.parse
from collections.abc import Mapping
from typing import Any

Request = http.server.BaseHTTPRequestHandler


class WebServer:
    """Serves `files` (path -> bytes) on loopback while it is entered.

    ranges, listings, tags: whether it has them. failing: status -> how many requests get it first. requests: what was
    asked for: (method, path, range).
    """

    def __init__(self, files: Mapping[bytes, bytes], host: str = "127.0.0.1") -> None:
        self.files = dict(files)
        self.ranges = self.listings = self.tags = True
        self.failing: dict[int, int] = {}
        self.requests: list[tuple[str, str, str | None]] = []
        self._server = http.server.ThreadingHTTPServer((host, 0), self._handler())
        self.url = f"http://{host}:{self._server.server_port}"

    def __enter__(self) -> WebServer:
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def _handler(self) -> type[http.server.BaseHTTPRequestHandler]:
        owner = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                owner.answer(self, body=True)

            def do_HEAD(self) -> None:
                owner.answer(self, body=False)

            def log_message(self, *_: Any) -> None:
                """Nobody reads it."""

        return Handler

    def answer(self, request: Request, body: bool) -> None:
        """One request."""
        span = request.headers.get("Range")
        self.requests.append((request.command, request.path, span))
        for status, left in self.failing.items():
            if left > 0:
                self.failing[status] -= 1
                self._send(request, status, {}, b"", body)
                return
        path = urllib.parse.unquote_to_bytes(request.path.partition("?")[0]).lstrip(b"/")
        if path in self.files:
            self._send_file(request, self.files[path], span, body)
        elif self.listings and (not path or path.endswith(b"/")):
            page = self._listing(path)
            self._send(request, 200, {"Content-Type": "text/html"}, page, body)
        else:
            self._send(request, 404, {}, b"", body)

    def _send_file(
        self, request: http.server.BaseHTTPRequestHandler, data: bytes, span: str | None, body: bool
    ) -> None:
        headers = {"Content-Type": "application/octet-stream"}
        if self.tags:
            headers["ETag"] = f'"{hashlib.md5(data).hexdigest()}"'
        match = re.fullmatch(r"bytes=(\d+)-(\d+)", span or "")
        if not match or not self.ranges:
            self._send(request, 200, headers, data, body)
        elif int(match[1]) >= len(data):
            self._send(request, 416, {"Content-Range": f"bytes */{len(data)}"}, b"", body)
        else:
            part = data[int(match[1]) : int(match[2]) + 1]
            headers["Content-Range"] = f"bytes {match[1]}-{int(match[1]) + len(part) - 1}/{len(data)}"
            self._send(request, 206, headers, part, body)

    def _send(self, request: Request, status: int, headers: dict[str, str], data: bytes, body: bool) -> None:
        request.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(data))}.items():
            request.send_header(name, value)
        request.end_headers()
        if body:
            request.wfile.write(data)

    def _listing(self, directory: bytes) -> bytes:
        """As Apache and nginx write them, with links that lead elsewhere."""
        below = {path[len(directory) :] for path in self.files if path.startswith(directory)}
        names = {path.partition(b"/")[0] + path.partition(b"/")[1] for path in below}
        links = [html.escape(urllib.parse.quote(name)) for name in sorted(names)]
        lines = [f'<a href="{link}">x</a>' for link in ["../", "?C=N;O=D", "http://elsewhere/", *links]]
        return "\n".join(["<html><body>", *lines, "</body></html>"]).encode()
