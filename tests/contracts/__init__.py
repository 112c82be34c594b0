"""Suites that every implementation of an interface passes, and every double of it."""

import pytest

pytest.register_assert_rewrite("tests.contracts.peers", "tests.contracts.sources")
