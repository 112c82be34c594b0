"""Servers that mounts read from."""

from __future__ import annotations

from tests.contracts.conftest import s3

__all__ = ["s3"]
