"""Servers that sources are read from."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.s3server import S3Server


@pytest.fixture(scope="session")
def s3() -> Iterator[S3Server]:
    """An S3 server for the whole session."""
    with S3Server() as server:
        yield server
