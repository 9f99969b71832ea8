"""A reply is lost, and the request is sent again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from fencepost.client import Client
from fencepost.errors import OutcomeUnknown
from fencepost.testing.lab.story import Column, Scene, Story, Verdict

if TYPE_CHECKING:
    from fencepost.testing.lab.stage import Stage
    from fencepost.testing.play import Play
    from fencepost.testing.simulated import SimPort

VERB = "INCRBY"


class Counter:
    """A counter behind a proxy that will cut the connection before one reply."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self.key = f"{stage.namespace}:count"
        self.proxy = stage.proxy

    def cut_reply(self) -> None:
        """from here on: the next reply to an increment is lost, its connection is cut"""
        self.proxy.fault("reply", VERB, "cut")

    async def world(self, io: SimPort) -> None:
        """What happens to the network."""
        await io.call(self.cut_reply)

    def value(self) -> int:
        """What the server holds."""
        return int(self.stage.redis.get(self.key) or 0)

    def picture(self) -> dict[str, str]:
        """The server, and what the proxy has seen."""
        return {
            "count": str(self.value()),
            f"{VERB}s that reached the server": str(self.proxy.count(VERB)),
        }


def _redis_py(stage: Stage, retries: bool) -> Scene:
    it = Counter(stage)
    options: dict[str, Any] = {} if retries else {"retry": Retry(NoBackoff(), 0)}
    client: Any = stage.keep(
        redis.Redis(unix_socket_path=unquote(it.proxy.url.removeprefix("unix://")), **options)
    )

    def incr() -> int | str:
        """redis.incr(count), once"""
        try:
            return int(client.incr(it.key))
        except redis.ConnectionError as error:
            return f"{type(error).__name__}: was it done or not?"

    async def app(io: SimPort) -> Any:
        answer = await io.call(incr)
        if isinstance(answer, str):  # an application that wants its click counted
            answer = await io.call(incr)
        return answer

    def judge(play: Play) -> Verdict:
        if it.value() == 1:
            return Verdict(True, "one click counted 1")
        who = (
            "the library sent it again by itself"
            if retries
            else "the error did not say, so it was sent again"
        )
        return Verdict(False, f"one click counted {it.value()}: {who}")

    return Scene(actors={"world": it.world, "app": app}, picture=it.picture, verdict=judge)


def _ours(stage: Stage) -> Scene:
    it = Counter(stage)
    client = stage.keep(Client.from_url(it.proxy.url, namespace=stage.namespace))

    def incr() -> int | str:
        """client.command("INCRBY", count, 1), once"""
        try:
            return int(client.command(VERB, it.key, 1))
        except OutcomeUnknown:
            return "OutcomeUnknown: read before you decide"

    def read() -> int:
        """client.command("GET", count): the remedy that the error names"""
        return int(client.command("GET", it.key) or 0)

    async def app(io: SimPort) -> Any:
        before = await io.call(read)
        answer = await io.call(incr)
        if isinstance(answer, str) and await io.call(read) == before:
            answer = await io.call(incr)
        return answer

    def judge(play: Play) -> Verdict:
        if it.value() == 1 and it.proxy.count(VERB) == 1:
            return Verdict(
                True,
                "one click counted 1: OutcomeUnknown is not Unavailable, and nothing was sent again",
            )
        return Verdict(False, f"one click counted {it.value()}")

    return Scene(actors={"world": it.world, "app": app}, picture=it.picture, verdict=judge)


STORY = Story(
    name="lost-reply",
    title="A reply is lost, and the request goes out again",
    sense=(
        "The server did it, and the connection broke before the reply: to the client that looks like a request that "
        "never arrived. Whoever sends it again, library or application, does it twice."
    ),
    columns=(
        Column(
            name="defaults",
            kind="usual",
            title="redis-py as it comes: it tries again",
            by="redis-py",
            schedule="world.cut_reply app.incr",
            scene=lambda stage: _redis_py(stage, retries=True),
        ),
        Column(
            name="no-retry",
            kind="fix",
            title="retries off; the application tries again",
            by="redis-py",
            schedule="world.cut_reply app.incr app.incr",
            scene=lambda stage: _redis_py(stage, retries=False),
        ),
        Column(
            name="fencepost",
            kind="ours",
            title="not sent and unknown are two errors",
            by="fencepost",
            schedule="world.cut_reply app.read app.incr app.read",
            scene=_ours,
        ),
    ),
)
