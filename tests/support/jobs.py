"""A queue of jobs under the hand: its place without a client, one call at a time, altered scripts."""

from __future__ import annotations

import dataclasses
from typing import Any

from fencepost._core.keys import job_keys
from fencepost._core.port import run_sync
from fencepost.jobs import protocol
from fencepost.jobs.protocol import Ack, Me, New, Place
from fencepost.jobs.record import head, pack
from fencepost.jobs.scripts import SCRIPTS, Added, Claim, Scripts, Turned


def altered(verb: str, old: str, new: str, scripts: Scripts = SCRIPTS) -> Scripts:
    """The scripts with one line of one of them changed: a guard taken out."""
    script = getattr(scripts, verb)
    assert script.plain.count(old) == 1, f"{verb}.lua has {script.plain.count(old)} × {old!r}"
    change = {verb: script.with_text(script.plain.replace(old, new))}
    return dataclasses.replace(scripts, **change)


def make_place(namespace: str = "t", name: str = "x", scripts: Scripts = SCRIPTS) -> Place:
    return Place(name, job_keys(namespace, name), scripts)


def a_record(
    *,
    lease: float = 20.0,
    priority: int = 5,
    crashes: int = 3,
    window: str = "-",
    key: str = "-",
    result_ttl: float = 600.0,
) -> bytes:
    return head(lease, priority, crashes, window, key, result_ttl) + pack("task", (1,), {}, 1000)


def a_job(id: str, when: str = "+0", **more: Any) -> New:
    """A job to add; what is no option of ``New`` is one of its record."""
    own = {name: more.pop(name) for name in ("moves", "remember", "kept") if name in more}
    return New(id, when, a_record(**more), **own)


class Bench:
    """One queue and a sync client."""

    def __init__(self, client: Any, scripts: Scripts = SCRIPTS, name: str = "x") -> None:
        self.client = client
        self.place = make_place(client.namespace, name, scripts)
        self.keys = self.place.keys
        self.io = client.port

    def run(self, call: Any) -> Any:
        return run_sync(self.io.run(call))

    def add(self, *jobs: New, again: bool = False) -> list[Added]:
        added: list[Added] = self.run(protocol.adding(self.place, jobs, again))
        return added

    def letters(self, *jobs: New) -> list[str]:
        return [one.verdict.value for one in self.add(*jobs)]

    def turn(self, me: Me, room: int = 10, *acks: Ack, limit: int = 0) -> Turned:
        answer = run_sync(protocol.turn(self.io, self.place, me, room, acks, limit))
        assert isinstance(answer, Turned)
        return answer

    def take(self, me: Me, room: int = 10, *acks: Ack, limit: int = 0) -> list[Claim]:
        return list(self.turn(me, room, *acks, limit=limit).claims)

    def state(self, job: str) -> str:
        return run_sync(protocol.look(self.io, self.place, job)).state

    def look(self, job: str) -> Any:
        return run_sync(protocol.look(self.io, self.place, job))

    def lapse(self, *jobs: str) -> None:
        """The leases of claims have ended."""
        for job in jobs:
            assert self.client.command("ZADD", self.keys.claimed, "XX", "CH", 1, job) == 1

    def come(self, *jobs: str) -> None:
        """The time of jobs has come."""
        for job in jobs:
            score = float(self.client.command("ZSCORE", self.keys.due, job))
            self.client.command("ZADD", self.keys.due, "XX", 1 + score % 1, job)

    def tokens(self) -> int:
        return int(self.client.command("LLEN", self.keys.wake))

    def left(self) -> set[str]:
        """What there is of the queue, by the last part of its keys, but for what is always there."""
        found = self.client.command("KEYS", f"*{self.client.namespace}:jobs:*")
        names = {key.decode().rpartition("}:")[2] for key in found}
        return names - {"q", "w", "k", "l", "t"}


def done(claim: Claim, value: bytes = b"\xc0", keep: int = 0) -> Ack:
    return Ack(claim.id, claim.epoch, "D", keep, value)


def says(claim: Claim, verdict: str, number: int = 0, text: str = "") -> Ack:
    return Ack(claim.id, claim.epoch, verdict, number, text)
