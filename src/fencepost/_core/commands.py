"""Typed commands: what a protocol may ask of the server beside its scripts."""

from __future__ import annotations

from typing import Any

from fencepost._core.script import Call, Word


def _text_or_none(reply: Any) -> str | None:
    return None if reply is None else reply.decode()


def _texts(reply: Any) -> list[str | None]:
    return [None if item is None else item.decode() for item in reply]


def same(reply: Any) -> Any:
    """A reply as the server gave it."""
    return reply


# Arguments by position where it is hot: by name they cost a third of a call's making.


def hmget(key: str, *fields: str, only: str = "") -> Call[list[str | None]]:
    """The values of some fields of a hash, None where there is none."""
    return Call("hmget", ("HMGET", key, *fields), _texts, (key,), None, True, False, only)


def get(key: str) -> Call[bytes | None]:
    """The value of a key."""
    return Call("get", ("GET", key), same, (key,), None, True)


def get_text(key: str) -> Call[str | None]:
    """The value of a key as text."""
    return Call("get", ("GET", key), _text_or_none, (key,), None, True)


def delete(key: str) -> Call[int]:
    """Delete a key; twice is once."""
    return Call("delete", ("DEL", key), same, (key,), resend=True)


def _pairs(reply: Any) -> dict[str, str]:
    pairs = reply.items() if isinstance(reply, dict) else zip(reply[::2], reply[1::2], strict=True)
    return {field.decode(): value.decode() for field, value in pairs}


def hgetall(key: str) -> Call[dict[str, str]]:
    """All fields of a hash with their values."""
    return Call("hgetall", ("HGETALL", key), _pairs, (key,), resend=True)


def read(*words: Word) -> Call[Any]:
    """A command that changes nothing, its reply as the server gave it; re-sent when a reply is lost."""
    return Call(str(words[0]).lower(), words, same, resend=True)


def raw(*words: Word) -> Call[Any]:
    """Any command, its reply as the server gave it; never re-sent."""
    return Call(str(words[0]).lower(), words, same)
