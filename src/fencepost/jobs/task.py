"""Tasks: functions that can be sent, each with its name, its options and its types."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable
from datetime import datetime
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeVar

import msgspec

from fencepost._core.keys import bounded
from fencepost.errors import Refused
from fencepost.jobs.options import MAX_DELAY, TaskOptions, delay_of, ms_of
from fencepost.jobs.protocol import New, ms
from fencepost.jobs.record import Unreadable, given_id, head, new_id, pack, unpack

if TYPE_CHECKING:
    from fencepost.jobs.schedule import Schedule

P = ParamSpec("P")
R = TypeVar("R")


class Message:
    """A job that was not sent yet, for ``add_many``."""

    __slots__ = ("new", "task")

    def __init__(self, task: Task[..., Any], new: New) -> None:
        self.task = task
        self.new = new


class Task(Generic[P, R]):
    """What both faces share of a task.

    Args:
        queue: Its queue; sends.
        function: What it runs.
        options: How.
        key: Makes the unique key of a job from its arguments.
        most: Bytes that arguments may take.
    """

    def __init__(
        self,
        queue: Any,
        function: Callable[P, Any],
        options: TaskOptions,
        key: Callable[..., str] | None,
        most: int,
    ) -> None:
        if not callable(function):
            raise Refused(f"a job is a function, got {function!r}")
        self.queue = queue
        self.function = function
        self.options = options
        self.name = str(options.name or getattr(function, "__name__", ""))
        self.is_async = inspect.iscoroutinefunction(function)
        if not self.name:
            raise Refused(f"{function!r} has no name: give one, name=…")
        if options.time_limit is not None and not self.is_async:
            raise Refused(
                f"{self.name} is a plain function and runs in a thread, which can't be stopped: "
                "leave time_limit out, or make it a coroutine function and let it await"
            )
        if options.debounce is not None and key is None:
            raise Refused(f"{self.name}: debounce needs a key, by which jobs are the same")
        self._key = key
        self._most = most
        window = {"pending": "p", "running": "r"}.get(str(options.unique))
        self._window = window or str(ms(float(options.unique)))
        self._head = self._head_with("-", "-")
        self._signature = inspect.signature(function)
        self._fit: _Fit | None = None
        self._plain = plain_arguments(self._signature)
        self.__name__ = self.name
        self.__doc__ = function.__doc__
        self.__wrapped__ = function

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Any:
        """Just run it, here and now: no queue, no retries."""
        return self.function(*args, **kwargs)

    def _head_with(self, window: str, key: str) -> bytes:
        one = self.options
        return head(one.lease, one.priority, one.crashes, window, key, one.result_ttl)

    def new(
        self,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        when: str = "",
        id: str = "",
        remember: float = 0.0,
    ) -> New:
        """The job of such arguments.

        Raises:
            Refused: They can't be stored, are too large, or are not the function's.
        """
        if kwargs or len(args) != self._plain:  # a plain call needs no look: most are
            try:
                self._signature.bind(*args, **kwargs)
            except TypeError as error:
                raise Refused(f"{self.name}: {error}") from None
        top = self._head
        if self._key is not None:
            key = self._key(*args, **kwargs)
            top = self._head_with(self._window, bounded(key))
        debounce = self.options.debounce
        if not when:
            when = f"+{ms(debounce)}" if debounce else "+0"
        body = pack(self.name, args, kwargs, self._most)
        kept = self.options.result_ttl > 0
        return New(id or new_id(), when, top + body, debounce is not None, remember, kept)

    def fit(
        self, args: list[Any], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Arguments as the function's annotations have them.

        Raises:
            Unreadable: They are not the function's.
        """
        fit = self._fit
        if fit is None:
            fit = self._fit = _Fit(self.function, self._signature)
        return fit(args, kwargs)

    @property
    def returns(self) -> Any:
        """The type that the function says it returns."""
        return _hints(self.function).get("return", Any)

    def message(self, *args: P.args, **kwargs: P.kwargs) -> Message:
        """A job of these arguments, for ``add_many``."""
        return Message(self, self.new(args, kwargs))

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r} of {self.queue.name!r}>"


class Timing(Generic[P, R]):
    """What both faces share of a task that is to be sent at a time, or under an id."""

    def __init__(
        self, task: Task[P, R], when: str = "", id: str = "", remember: float = 0.0
    ) -> None:
        self.task = task
        self._when, self._id, self._remember = when, id, remember

    def message(self, *args: P.args, **kwargs: P.kwargs) -> Message:
        """A job of these arguments, for ``add_many``."""
        return Message(self.task, self._new(args, kwargs))

    def _new(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> New:
        return self.task.new(args, kwargs, self._when, self._id, self._remember)


def when_after(seconds: float, minutes: float, hours: float, days: float) -> str:
    """From now by the server's clock."""
    return f"+{ms(delay_of(seconds, minutes, hours, days))}"


def when_at(at: datetime) -> str:
    """At a moment; ``Refused`` without a zone."""
    return str(ms_of(at))


def naming(id: str, remember: float) -> tuple[str, float]:
    """An id that the caller chose, and for how long it is not used again."""
    if not isinstance(remember, int | float) or not 0 <= remember <= MAX_DELAY:
        raise Refused(f"remember is in seconds, 0 to {MAX_DELAY:g}, got {remember!r}")
    return given_id(id), remember


def _hints(function: Any) -> dict[str, Any]:
    try:
        return typing.get_type_hints(function)
    except Exception:  # a name that is not there at run time: nothing is known of it
        return {}


def plain_arguments(signature: inspect.Signature) -> int:
    """How many arguments a function takes, if it takes just those, by position; else -1."""
    some = signature.parameters.values()
    plain = all(
        one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD) and one.default is one.empty
        for one in some
    )
    return len(some) if plain else -1


class _Fit:
    """Arguments of the wire, checked against and converted to a function's annotations."""

    def __init__(self, function: Any, signature: inspect.Signature) -> None:
        hints = _hints(function)
        self._positional: list[Any] = []
        self._named: dict[str, Any] = {}
        self._rest: Any = None
        self._whole: dict[int, Any] = {}
        self._signature = signature
        for name, one in signature.parameters.items():
            type = hints.get(name, Any)
            if one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD):
                self._positional.append(type)
            elif one.kind is one.VAR_POSITIONAL:
                self._rest = type
            if one.kind in (one.KEYWORD_ONLY, one.POSITIONAL_OR_KEYWORD):
                self._named[name] = type
        self._plain = plain_arguments(signature)

    def __call__(
        self, args: list[Any], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        count = len(args)
        try:
            if kwargs or count != self._plain:
                self._signature.bind(*args, **kwargs)
            whole = self._whole.get(count)
            if whole is None:
                types = self._positional[:count]
                types += [self._rest] * (count - len(types))
                # One type an argument; made at run time, so no checker can know it.
                whole = self._whole[count] = tuple.__class_getitem__(tuple(types))
            fitted: tuple[Any, ...] = msgspec.convert(args, whole)
            if not kwargs:
                return fitted, kwargs
            return fitted, {
                name: msgspec.convert(value, self._named.get(name, Any))
                for name, value in kwargs.items()
            }
        except (TypeError, ValueError, msgspec.MsgspecError) as error:
            raise Unreadable(f"its arguments are not the function's: {error}") from None


class Tasks:
    """The tasks of a queue, by name."""

    def __init__(self) -> None:
        self.by_name: dict[str, Task[..., Any]] = {}
        self.schedules: list[Schedule] = []

    def add(self, task: Task[..., Any]) -> None:
        """Refuses a second one of a name."""
        if task.name in self.by_name:
            raise Refused(f"there is a task {task.name!r} already: give one another name=…")
        self.by_name[task.name] = task

    def read(self, record: bytes) -> tuple[Task[..., Any], tuple[Any, ...], dict[str, Any]]:
        """The task of a record and its arguments.

        Raises:
            Unreadable: There is none of this name here, or they are not its arguments.
        """
        name, args, kwargs = unpack(record)
        task = self.by_name.get(name)
        if task is None:
            raise Unreadable(f"there is no task {name!r} in this worker")
        return (task, *task.fit(args, kwargs))
