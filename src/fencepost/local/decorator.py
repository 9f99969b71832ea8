"""Functions whose results are kept in a ``LocalCache``."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Hashable
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar, cast

if TYPE_CHECKING:
    from fencepost.local.cache import LocalCache

F = TypeVar("F", bound=Callable[..., Any])
_MISSING: Final[Any] = object()


class Cached(Protocol[F]):
    """A function whose results are cached."""

    __call__: F

    uncached: F

    def key(self, *args: Any, **kwargs: Any) -> Hashable:
        """The key of these arguments."""

    def invalidate(self, *args: Any, **kwargs: Any) -> bool:
        """Forget the result for these arguments; gives whether there was one."""


def decorate(
    cache: LocalCache[Any, Any],
    fn: Callable[..., Any],
    key: Callable[..., Hashable] | None,
    ttl: float | None,
) -> Any:
    """See ``LocalCache.cached``."""
    make, full = _keys(fn) if key is None else (_marked(fn, key), -1)
    get, load, aload = cache.get, cache.get_or_load, cache.aget_or_load

    if inspect.iscoroutinefunction(fn):

        @functools.wraps(fn)
        async def call_async(*args: Any, **kwargs: Any) -> Any:
            at = (fn, args) if len(args) == full and not kwargs else make(*args, **kwargs)
            found = get(at, _MISSING)
            if found is not _MISSING:
                return found
            return await aload(at, functools.partial(fn, *args, **kwargs), ttl=ttl)

        face: Any = call_async
    else:

        @functools.wraps(fn)
        def call(*args: Any, **kwargs: Any) -> Any:
            at = (fn, args) if len(args) == full and not kwargs else make(*args, **kwargs)
            found = get(at, _MISSING)
            if found is not _MISSING:
                return found
            return load(at, functools.partial(fn, *args, **kwargs), ttl=ttl)

        face = call
    face.key, face.uncached = make, fn
    face.invalidate = lambda *args, **kwargs: cache.delete(make(*args, **kwargs))
    return cast("Cached[Any]", face)


def _marked(fn: Callable[..., Any], key: Callable[..., Hashable]) -> Callable[..., Hashable]:
    """Keys of the user's making: functions that share a cache do not share them."""
    return lambda *args, **kwargs: (fn, key(*args, **kwargs))


def _keys(fn: Callable[..., Any]) -> tuple[Callable[..., Hashable], int]:
    """How a function's keys are made: its arguments as the signature binds them, defaults filled in.

    Binding takes microseconds, so calls that fit the signature as they are go round it. Also gives how
    many arguments make a call whole, with whose tuple as it is for a key; -1 is never.
    """
    signature = inspect.signature(fn)
    parameters = list(signature.parameters.values())
    fixed = all(one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD) for one in parameters)
    defaults = tuple(one.default for one in parameters if one.default is not one.empty)
    full = len(parameters) if fixed else -1
    least = full - len(defaults) if fixed else full + 1  # never between, where it is not fixed

    def bound(*args: Any, **kwargs: Any) -> Hashable:
        given = signature.bind(*args, **kwargs)
        given.apply_defaults()
        if fixed:
            return fn, tuple(given.arguments.values())
        rest = tuple(sorted(given.kwargs.items()))
        return (fn, given.args, rest)

    def make(*args: Any, **kwargs: Any) -> Hashable:
        if not kwargs:
            count = len(args)
            if count == full:
                return fn, args
            if least <= count < full:
                return fn, args + defaults[count - full :]
        return bound(*args, **kwargs)

    return make, full
