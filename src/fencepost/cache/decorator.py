"""Keys from arguments, and functions whose results are cached by them.

A key is injective: equal keys mean equal arguments. Arguments are bound to the signature first, so
``f(1)``, ``f(x=1)`` and a default filled in are one key. Each value is written so that it can be
read back in only one way: texts that look like another kind get a mark, and what separates values
is escaped inside them. What can't be told apart for good (an object that is equal to nothing but
itself) is refused.
"""

from __future__ import annotations

import datetime
import decimal
import enum
import functools
import inspect
import string
import uuid
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final, ParamSpec, Protocol, TypeVar, cast

from fencepost.errors import Refused

if TYPE_CHECKING:
    from fencepost.cache.api import AsyncCache, Cache
    from fencepost.cache.entry import Entry

P = ParamSpec("P")
R = TypeVar("R")
KeyOf = Callable[..., str]
_PLAIN: Final = frozenset(string.ascii_letters + string.digits + "_.")
_APART: Final = ":/|,;= "
"""What may stand between two fields: values never hold it unescaped."""


class AsyncCached(Protocol[P, R]):
    """A coroutine function whose results are cached."""

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Awaitable[R]:
        """The cached result, or that of the function."""

    def key(self, *args: P.args, **kwargs: P.kwargs) -> str:
        """The key of these arguments."""

    def invalidate(self, *args: P.args, **kwargs: P.kwargs) -> Awaitable[None]:
        """Forget the result for these arguments."""

    def refresh(self, *args: P.args, **kwargs: P.kwargs) -> Awaitable[Entry[R]]:
        """Call the function now and publish its result."""

    uncached: Callable[P, Awaitable[R]]


class Cached(Protocol[P, R]):
    """A function whose results are cached."""

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """The cached result, or that of the function."""

    def key(self, *args: P.args, **kwargs: P.kwargs) -> str:
        """The key of these arguments."""

    def invalidate(self, *args: P.args, **kwargs: P.kwargs) -> None:
        """Forget the result for these arguments."""

    def refresh(self, *args: P.args, **kwargs: P.kwargs) -> Entry[R]:
        """Call the function now and publish its result."""

    uncached: Callable[P, R]


def part(value: Any) -> str:
    """One value as a part of a key; two different values never become the same part.

    Raises:
        Refused: Nothing tells it from another of its kind.
    """
    if value is None or value is True or value is False:
        return f"!{value}"
    if isinstance(value, enum.Enum):
        return f"!{type(value).__module__}.{type(value).__qualname__}.{value.name}"
    if isinstance(value, str):
        plain = _escape(value)
        # A text that begins like a number, or is empty, is marked: 42 is not "42".
        return f"'{plain}" if not plain or not (plain[0].isalpha() or plain[0] == "_") else plain
    kind = type(value)
    if kind is int:
        return str(value)
    if kind is float:
        return f"~{_escape(repr(value))}"
    if kind is bytes:
        return f"!b.{value.hex()}"
    if kind in (datetime.datetime, datetime.date, datetime.time):
        return f"!{kind.__name__}.{_escape(value.isoformat())}"
    if kind in (uuid.UUID, decimal.Decimal):
        return f"!{kind.__name__}.{_escape(str(value))}"
    if kind in (tuple, list):
        return (
            f"({','.join(map(part, value))})"
            if kind is tuple
            else f"[{','.join(map(part, value))}]"
        )
    if kind in (set, frozenset):
        return f"<{','.join(sorted(map(part, value)))}>"
    if isinstance(value, Mapping):
        items = sorted(f"{part(name)}={part(one)}" for name, one in value.items())
        return f"*({','.join(items)})"
    own = getattr(value, "__cache_key__", None)
    if callable(own) and not isinstance(value, type):
        return f"@{kind.__module__}.{kind.__qualname__}.{part(own())}"
    raise Refused(
        f"a {kind.__qualname__} can't be part of a key: nothing tells it from another one; "
        "give a template or a function as key, or let its class have __cache_key__()"
    )


def _escape(text: str) -> str:
    if text.isascii() and text.isalnum():
        return text
    return "".join(one if one in _PLAIN else f"%{ord(one):X}." for one in text)


def key_maker(fn: Callable[..., Any], key: str | KeyOf | None) -> Callable[..., str]:
    """How keys of a function are made.

    Raises:
        Refused: The template names no parameter of it, or can't tell two calls apart.
    """
    signature = inspect.signature(fn)
    if callable(key):
        return key

    def bound(args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        try:
            given = signature.bind(*args, **kwargs)
        except TypeError as error:
            raise TypeError(f"{fn.__qualname__}: {error}") from None
        given.apply_defaults()
        return given.arguments

    if key is None:
        names = tuple(signature.parameters)
        head = f"{fn.__module__}.{fn.__qualname__}"

        def whole(*args: Any, **kwargs: Any) -> str:
            values = bound(args, kwargs)
            return f"{head}({','.join(f'{name}={part(values[name])}' for name in names)})"

        return whole

    fields = _fields(fn, key, signature)

    def filled(*args: Any, **kwargs: Any) -> str:
        values = bound(args, kwargs)
        return "".join(text + (part(values[name]) if name else "") for text, name in fields)

    return filled


def _fields(
    fn: Callable[..., Any], template: str, signature: inspect.Signature
) -> list[tuple[str, str]]:
    fields = []
    for text, name, spec, conversion in string.Formatter().parse(template):
        if name is None:
            fields.append((text, ""))
            continue
        if spec or conversion or name not in signature.parameters:
            raise Refused(
                f"the key template {template!r} of {fn.__qualname__} holds {{{name}}}; a field is the "
                f"bare name of a parameter: {', '.join(signature.parameters)}"
            )
        if fields and not any(one in _APART for one in text):
            raise Refused(
                f"in the key template {template!r} nothing parts {{{name}}} from the field before it, "
                f"so two calls could share a key; put one of {_APART!r} between them"
            )
        fields.append((text, name))
    if not template or not any(name for _, name in fields):
        takes = [name for name in signature.parameters if name not in ("self", "cls")]
        if takes or not template:
            raise Refused(
                f"the key template {template!r} of {fn.__qualname__} names none of its parameters, so "
                "all calls would share one result"
            )
    return fields


def _tagger(
    tags: Iterable[str] | Callable[..., Iterable[str]],
) -> Callable[..., Iterable[str]]:
    if callable(tags):
        return tags
    fixed = tuple(tags)
    return lambda *args, **kwargs: fixed


def decorate_async(
    cache: AsyncCache[Any],
    key: str | KeyOf | None,
    tags: Iterable[str] | Callable[..., Iterable[str]],
    ttl: float | None,
    stale: float | None,
) -> Callable[[Callable[P, Awaitable[R]]], AsyncCached[P, R]]:
    """See ``AsyncCache.cached``."""
    tagged = _tagger(tags)

    def decorate(fn: Callable[P, Awaitable[R]]) -> AsyncCached[P, R]:
        if not inspect.iscoroutinefunction(fn):
            raise Refused(f"{fn!r} is no coroutine function: use the sync client's cache for it")
        make = key_maker(fn, key)

        @functools.wraps(fn)
        async def call(*args: P.args, **kwargs: P.kwargs) -> Any:
            return await cache.get(
                make(*args, **kwargs),
                functools.partial(fn, *args, **kwargs),
                tags=tagged(*args, **kwargs),
                ttl=ttl,
                stale=stale,
            )

        async def invalidate(*args: P.args, **kwargs: P.kwargs) -> None:
            await cache.invalidate(make(*args, **kwargs))

        async def refresh(*args: P.args, **kwargs: P.kwargs) -> Entry[Any]:
            return await cache.refresh(
                make(*args, **kwargs),
                functools.partial(fn, *args, **kwargs),
                tags=tagged(*args, **kwargs),
                ttl=ttl,
            )

        face: Any = call
        face.key, face.invalidate, face.refresh, face.uncached = make, invalidate, refresh, fn
        return cast("AsyncCached[P, R]", face)

    return decorate


def decorate_sync(
    cache: Cache[Any],
    key: str | KeyOf | None,
    tags: Iterable[str] | Callable[..., Iterable[str]],
    ttl: float | None,
    stale: float | None,
) -> Callable[[Callable[P, R]], Cached[P, R]]:
    """See ``AsyncCache.cached``."""
    tagged = _tagger(tags)

    def decorate(fn: Callable[P, R]) -> Cached[P, R]:
        if inspect.iscoroutinefunction(fn):
            raise Refused(f"{fn!r} is a coroutine function: use the async client's cache for it")
        make = key_maker(fn, key)

        @functools.wraps(fn)
        def call(*args: P.args, **kwargs: P.kwargs) -> Any:
            return cache.get(
                make(*args, **kwargs),
                functools.partial(fn, *args, **kwargs),
                tags=tagged(*args, **kwargs),
                ttl=ttl,
                stale=stale,
            )

        def invalidate(*args: P.args, **kwargs: P.kwargs) -> None:
            cache.invalidate(make(*args, **kwargs))

        def refresh(*args: P.args, **kwargs: P.kwargs) -> Entry[Any]:
            return cache.refresh(
                make(*args, **kwargs),
                functools.partial(fn, *args, **kwargs),
                tags=tagged(*args, **kwargs),
                ttl=ttl,
            )

        face: Any = call
        face.key, face.invalidate, face.refresh, face.uncached = make, invalidate, refresh, fn
        return cast("Cached[P, R]", face)

    return decorate
