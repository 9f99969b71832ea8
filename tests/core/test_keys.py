"""Keys: no id forges another's key, leaves its hash tag or collides."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from fencepost import Refused
from fencepost._core.keys import (
    escape,
    field_of,
    like_shard,
    shard_number,
    shorten,
    unescape,
    user_of,
)

ids = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=300)


@given(ids, ids)
@example("a b", "a%20b")
@example("{a}b", "a{b}")
@example("%", "%25")
@example("a~", "a")
def test_escape_is_injective(one: str, other: str) -> None:
    assert (escape(one) == escape(other)) == (one == other)


@given(ids)
def test_escaped_id_is_one_harmless_part_and_comes_back(part: str) -> None:
    escaped = escape(part)
    assert not set("{}:# ~\r\n\t\0") & set(escaped)
    assert unescape(escaped) == part
    assert escape(escaped) == escaped or "%" in escaped


@pytest.mark.parametrize("bad", ["", "\ud800", "a\udfffb", None, 5, b"bytes", ["a"]])
def test_id_that_names_nothing_is_refused(bad: Any) -> None:
    for build in (escape, shorten):
        with pytest.raises(Refused):
            build(bad)


@given(ids, ids)
@example("x" * 200, "x" * 201)
@example("é" * 100, "é" * 101)
def test_shortened_ids_do_not_collide(one: str, other: str) -> None:
    assert (shorten(one) == shorten(other)) == (one == other)


@given(st.text(st.characters(exclude_categories=["Cs"]), min_size=1), st.integers(1, 60))
def test_shortened_id_never_equals_a_short_one(part: str, limit: int) -> None:
    short = shorten(part, limit)
    if short == escape(part):
        assert "~" not in short
    else:
        assert "~" in short  # which escape never leaves
        assert len(short.encode()) <= 40 + 1 + 32


@given(ids)
def test_user_field_is_never_a_header_field(user: str) -> None:
    assert field_of(escape(user)).startswith("u")
    assert user_of(field_of(escape(user))) == escape(user)


def test_user_named_like_a_header_field_is_a_user() -> None:
    assert field_of(escape("#n")) != "#n"
    assert unescape(user_of(field_of(escape("#n")))) == "#n"


@given(ids, ids, ids, st.integers(0, 255))
def test_keys_of_a_shard_share_one_slot(namespace: str, name: str, item: str, number: int) -> None:
    shard = like_shard(namespace, name, number)
    built = [shard.opening, shard.due, shard.since]
    built += [shard.header(escape(item)), shard.journal(escape(item)), shard.tokens(escape(item))]
    assert {key[key.index("{") : key.index("}") + 1] for key in built} == {shard.tag}
    assert len(set(built)) == len(built)


def test_tag_of_an_unescaped_id_would_be_shared() -> None:
    """The negative control: what an id with braces does to a key that does not escape."""

    def tag(key: str) -> str:
        return key[key.index("{") + 1 : key.index("}")]

    assert tag("fp:{a}b{c}:n") == tag("fp:{a}:n")
    assert tag(f"fp:{{{escape('a}b{c')}}}:n") != tag("fp:{a}:n")


@given(ids, st.integers(1, 1024))
def test_shard_number_is_stable_and_in_range(item: str, shards: int) -> None:
    assert 0 <= shard_number(item, shards) < shards
    assert shard_number(item, shards) == shard_number(item, shards)


def test_shard_numbers_never_change() -> None:
    """These are on disk: another number would look for an item where it is not."""
    assert [shard_number(item, 256) for item in ("a", "42", "ünïcode")] == [67, 136, 170]
