"""A page served to this machine alone: read-only, one path with a random token, no file of the run."""

from __future__ import annotations

import re
import secrets
import threading
from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from anisoscope.errors import AnisoscopeError

HOSTS = ("127.0.0.1", "localhost", "[::1]")
"""Names that a request may ask for: others come from pages elsewhere that were pointed at this address."""


class PageServer:
    """Serves what ``page`` returns at ``http://127.0.0.1:PORT/TOKEN/`` and nothing else."""

    def __init__(self, page: Callable[[], str | None], *, port: int = 0) -> None:
        self.token = secrets.token_urlsafe(24)
        try:
            self._server = ThreadingHTTPServer(("127.0.0.1", port), _handler(page, f"/{self.token}/"))
        except OSError as error:
            raise AnisoscopeError(
                f"cannot listen on 127.0.0.1:{port}: {error.strerror or error}; choose another --port, or leave it out"
            ) from error
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.1,), daemon=True)

    @property
    def url(self) -> str:
        """Where the page is."""
        return f"http://127.0.0.1:{self._server.server_address[1]}/{self.token}/"

    def __enter__(self) -> PageServer:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._server.shutdown()
        self._server.server_close()


def _handler(page: Callable[[], str | None], path: str) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        server_version, sys_version = "anisoscope", ""
        timeout = 30

        def do_GET(self) -> None:
            self._answer(with_body=True)

        def do_HEAD(self) -> None:
            self._answer(with_body=False)

        def _answer(self, *, with_body: bool) -> None:
            host = (self.headers.get("Host") or "").rpartition(":")[0] or self.headers.get("Host") or ""
            asked = self.path.partition("?")[0]
            if host not in HOSTS or not secrets.compare_digest(asked.encode(), path.encode()):
                self.send_error(HTTPStatus.NOT_FOUND)
                return
            made = page()
            if made is None:
                self.send_error(HTTPStatus.SERVICE_UNAVAILABLE, "The run has no page yet; try again in a moment")
                return
            body = made.encode()
            self.send_response(HTTPStatus.OK)
            self.send_header("Content-Type", "text/html; charset=utf-8")
            self.send_header("Content-Length", str(len(body)))
            for name, value in _headers(made).items():
                self.send_header(name, value)
            self.end_headers()
            if with_body:
                self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """Say nothing: the terminal shows the run."""

    return Handler


def _headers(page: str) -> dict[str, str]:
    """The page's own policy once more, which a header can tighten: nobody may frame it."""
    found = re.search(r'http-equiv="Content-Security-Policy" content="([^"]*)"', page)
    policy = found.group(1) if found else "default-src 'none'"
    return {
        "Content-Security-Policy": f"{policy}; frame-ancestors 'none'",
        "X-Content-Type-Options": "nosniff",
        "Referrer-Policy": "no-referrer",
        "Cache-Control": "no-store",
    }
