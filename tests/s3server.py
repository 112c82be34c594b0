"""An S3 server of a process of its own: moto's, with faults on demand.

Prints its port, and serves until its standard input ends. PUT `/_faults/KIND/COUNT` makes the next COUNT requests
for objects fail: KIND is a status (503), or `drop` (the connection is closed without an answer).
"""

from __future__ import annotations

import functools
import os
import socket
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

CREDENTIALS = {
    "AWS_ACCESS_KEY_ID": "testing",
    "AWS_SECRET_ACCESS_KEY": "testing",
    "AWS_DEFAULT_REGION": "us-east-1",
    "AWS_EC2_METADATA_DISABLED": "true",
}


class S3Server:
    """A running server; `environment` is what those that use it need. Context manager.

    prefix: of the command line, to run it elsewhere. folder: its files are the bucket `data` from the start.
    """

    def __init__(self, host: str = "127.0.0.1", prefix: Sequence[str] = (), folder: Path | None = None) -> None:
        self.process = subprocess.Popen(
            [*prefix, sys.executable, __file__, host, *([str(folder)] if folder else [])],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        assert self.process.stdout is not None
        self.url = f"http://{host}:{int(self.process.stdout.readline())}"
        self.environment = {**CREDENTIALS, "AWS_ENDPOINT_URL": self.url}

    @functools.cached_property
    def client(self) -> Any:
        """A client of boto3, to put objects there."""
        return _client(self.url)

    def fail(self, kind: int | str, count: int) -> None:
        """Let the next requests for objects fail."""
        request = urllib.request.Request(f"{self.url}/_faults/{kind}/{count}", method="PUT", data=b"")
        urllib.request.urlopen(request, timeout=10).close()

    def kill(self) -> None:
        """End it at once."""
        self.process.kill()
        self.process.wait()

    def __enter__(self) -> S3Server:
        return self

    def __exit__(self, *exc: object) -> None:
        self.kill()
        for stream in (self.process.stdin, self.process.stdout):
            assert stream is not None
            stream.close()


def _client(url: str) -> Any:
    import boto3

    return boto3.client(
        "s3",
        endpoint_url=url,
        aws_access_key_id="testing",
        aws_secret_access_key="testing",
        region_name="us-east-1",
    )


def upload(client: Any, bucket: str, files: Mapping[bytes, bytes]) -> None:
    """Make a bucket of some files."""
    client.create_bucket(Bucket=bucket)
    for path, data in files.items():
        client.put_object(Bucket=bucket, Key=path.decode(), Body=data)


class _Faults:
    """A WSGI application before another one."""

    def __init__(self, app: Callable[..., Iterable[bytes]]) -> None:
        self._app = app
        self._kind, self._left = "", 0
        self._lock = threading.Lock()

    def __call__(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        parts = environ["PATH_INFO"].split("/")
        if parts[1] == "_faults":
            self._kind, self._left = parts[2], int(parts[3])
            start_response("200 OK", [("Content-Length", "0")])
            return [b""]
        with self._lock:
            fails = self._left > 0 and len(parts) > 2 and environ["REQUEST_METHOD"] in ("GET", "HEAD")
            self._left -= fails
        if not fails:
            return self._app(environ, start_response)
        if self._kind == "drop":
            environ["werkzeug.socket"].shutdown(socket.SHUT_RDWR)
        start_response(f"{self._kind if self._kind.isdigit() else 500} Fault", [("Content-Length", "0")])
        return [b""]


def main() -> None:
    from moto.server import DomainDispatcherApplication, create_backend_app
    from werkzeug.serving import make_server

    os.environ.update(CREDENTIALS)
    server = make_server(sys.argv[1], 0, _Faults(DomainDispatcherApplication(create_backend_app)), threaded=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    if len(sys.argv) > 2:
        root = Path(sys.argv[2])
        files = {os.fsencode(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}
        upload(_client(f"http://{sys.argv[1]}:{server.port}"), "data", files)
    print(server.port, flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main()
