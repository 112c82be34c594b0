"""What is set for UCX before MPI begins."""

from __future__ import annotations

import pytest

from deepiofs.engine.world import settings_of_ucx

_PIECES = ("UCX_TCP_TX_SEG_SIZE", "UCX_TCP_RX_SEG_SIZE")


def test_pieces_are_as_large_where_they_are_sent_as_where_they_are_received() -> None:
    added = settings_of_ucx({"PATH": "/bin", "UCX_TLS": "tcp"})
    assert added.keys() == set(_PIECES)
    assert len(set(added.values())) == 1


@pytest.mark.parametrize("theirs", _PIECES)
def test_who_sets_one_size_is_not_given_the_other(theirs: str) -> None:
    assert not settings_of_ucx({theirs: "16k"})
