"""Fixtures that all tests share."""

from tests.lab import lab

__all__ = ["lab"]
