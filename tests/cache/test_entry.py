"""Stored entries: damaged ones are ``Unreadable`` at the door, and nothing fails behind it."""

from __future__ import annotations

import contextlib
import random

import pytest

from fencepost._core.codec import Codec
from fencepost.cache.entry import Header, Unreadable, decode, encode

CODEC: Codec[object] = Codec()
HEADER = Header("k", 1, 1, 1, False, "m", {"tag": "stamp"})
RAW = encode("t" * 22, "0" * 18 + "7", 10**12, HEADER, CODEC.encode({"a": [1, "b"]})[1])


def test_entry_is_read_back() -> None:
    stored = decode(RAW, "k", CODEC)
    assert stored.value == {"a": [1, "b"]}
    assert (stored.token, stored.revision, stored.fresh_until) == ("t" * 22, 7, 10**12)
    with pytest.raises(Unreadable, match="foreign"):
        decode(RAW, "another key", CODEC)


def test_token_that_is_no_text_is_corrupt() -> None:
    with pytest.raises(Unreadable, match="corrupt"):
        decode(RAW[:2] + b"\xff" * 22 + RAW[24:], "k", CODEC)


def test_damaged_entry_is_unreadable_or_whole() -> None:
    dice = random.Random(1)
    for _ in range(20_000):
        damaged = bytearray(RAW)
        for _ in range(dice.randint(1, 3)):
            where = dice.randrange(len(damaged))
            damaged[where : where + dice.randint(0, 2)] = dice.randbytes(dice.randint(0, 2))
        with contextlib.suppress(Unreadable):
            decode(bytes(damaged), "k", CODEC).shown("hit")
