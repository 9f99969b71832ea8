"""The suite holds what has meaning: rules that a reader can't see being broken.

Each rule is a function from text to faults. Every one is shown a bad sample first and must object:
a checker that never objects holds nothing.
"""

from __future__ import annotations

import ast
import inspect
import re
import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import fencepost
from fencepost import cache, election, hotkeys, jobs, likes, lock, testing
from fencepost._core.script import read_contract
from fencepost.jobs import outbox
from support.require import require

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "fencepost"
PROTOCOLS = sorted(SOURCE.rglob("protocol.py"))
# What the explorer runs on its own server is no verb of a part.
LUA = [path for path in sorted(SOURCE.rglob("*.lua")) if path.parent.name != "testing"]
TESTS = [path for path in sorted((ROOT / "tests").rglob("*.py")) if path != Path(__file__)]
PAIRS = [
    (fencepost.Client, fencepost.AsyncClient),
    (likes.Likes, likes.AsyncLikes),
    (cache.Cache, cache.AsyncCache),
    (cache.Behind, cache.AsyncBehind),
    (lock.Lock, lock.AsyncLock),
    (lock.Lease, lock.AsyncLease),
    (lock.Locks, lock.AsyncLocks),
    (lock.Semaphore, lock.AsyncSemaphore),
    (lock.RWLock, lock.AsyncRWLock),
    (lock.RWSide, lock.AsyncRWSide),
    (lock.Leases, lock.AsyncLeases),
    (fencepost.Quorum, fencepost.AsyncQuorum),
    (lock.FencedScript, lock.AsyncFencedScript),
    (jobs.Jobs, jobs.AsyncJobs),
    (jobs.JobHandle, jobs.AsyncJobHandle),
    (jobs.SyncTask, jobs.AsyncTask),
    (jobs.SyncTiming, jobs.AsyncTiming),
    (jobs.DeadJobs, jobs.AsyncDead),
    (jobs.Worker, jobs.AsyncWorker),
    (testing.DueJobs, testing.AsyncDueJobs),
    (outbox.Relay, outbox.AsyncRelay),
    (election.Election, election.AsyncElection),
    (election.Term, election.AsyncTerm),
    (election.Lead, election.AsyncLead),
    (hotkeys.HotKeys, hotkeys.AsyncHotKeys),
]


def named(path: Path) -> str:
    return str(path.relative_to(ROOT))


def every(paths: list[Path]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("path", paths, ids=named)


# -- protocols touch the world only through the port ---------------------------------------------

WORLD = {
    *("time", "random", "asyncio", "secrets", "uuid", "threading", "socket", "selectors"),
    *("concurrent", "multiprocessing", "subprocess", "anyio", "trio", "uvloop"),
    *("redis", "valkey", "hiredis", "sqlalchemy", "aiosqlite", "psycopg", "httpx"),
}
OURS = {"wire", "client", "server", "campus", "cli", "sql"}


def protocol_faults(text: str) -> list[str]:
    """What a protocol does that the explorer could not see, or that a cancel would break."""
    tree = ast.parse(text)
    typing_only = {
        inner
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING")
        for inner in ast.walk(node)
    }
    return [
        f"line {node.lineno}: {fault}"
        for node in ast.walk(tree)
        if node not in typing_only
        for fault in (*_worldly(node), *_awaiting_cleanup(node))
    ]


def _worldly(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Import):
        modules = [alias.name for alias in node.names]
    elif isinstance(node, ast.ImportFrom):
        base = ("fencepost." if node.level else "") + (node.module or "")
        modules = [base, *(f"{base}.{alias.name}" for alias in node.names)]
    else:
        return
    for parts in (module.split(".") for module in modules):
        if parts[0] in WORLD or (parts[0] == "fencepost" and OURS.intersection(parts[1:2])):
            yield f"imports {'.'.join(parts)}"
            return


def _awaiting_cleanup(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Try | ast.TryStar):
        if _awaits(node.finalbody):
            yield "awaits in a finally: a closed coroutine must not await"
        for handler in node.handlers:
            caught = ast.unparse(handler.type) if handler.type else "everything"
            if re.search(r"everything|BaseException|GeneratorExit", caught) and _awaits(
                handler.body
            ):
                yield f"awaits after catching {caught}: clean up on (Exception, Cancelled)"


def _awaits(body: list[ast.stmt]) -> bool:
    suspending = ast.Await | ast.AsyncFor | ast.AsyncWith
    return any(isinstance(inner, suspending) for statement in body for inner in ast.walk(statement))


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("import time", "imports time"),
        ("from asyncio import sleep", "imports asyncio"),
        ("import redis.asyncio as r", "imports redis.asyncio"),
        ("from fencepost import wire", "imports fencepost.wire"),
        ("from ..wire import link", "imports fencepost.wire"),
        ("def f():\n    import uuid", "imports uuid"),
        ("async def f(io):\n    try: ...\n    finally: await io.run(1)", "awaits in a finally"),
        (
            "async def f(io):\n    try: ...\n    finally:\n        async with io: ...",
            "awaits in a fin",
        ),
        (
            "async def f(io):\n    try: ...\n    except BaseException: await io.run(1)",
            "BaseException",
        ),
        ("async def f(io):\n    try: ...\n    except: await io.run(1)", "everything"),
    ],
)
def test_protocol_rule_objects(text: str, fault: str) -> None:
    assert any(fault in found for found in protocol_faults(text))


def test_protocol_rule_allows_types_and_cleanup_of_errors() -> None:
    text = """
from typing import TYPE_CHECKING
from fencepost._core.port import Cancelled, Port
if TYPE_CHECKING:
    from asyncio import Task
async def f(io):
    try:
        await io.run(1)
    except (Exception, Cancelled):
        await io.run(2)
        raise
    finally:
        io.done = True
"""
    assert protocol_faults(text) == []


@every(PROTOCOLS)
def test_protocol_touches_the_world_only_through_the_port(path: Path) -> None:
    assert protocol_faults(path.read_text(encoding="utf-8")) == []


# -- a script is a sentence with a contract ------------------------------------------------------

CODE_LINES = 40


def script_faults(text: str) -> list[str]:
    """Where a script and its contract part, or where a reader would have to count keys."""
    try:
        contract = read_contract(text)
    except ValueError as error:
        return [str(error)]
    code = _code(text)
    ends = _opening_length(code)
    opening, below = code[:ends], code[ends:]
    faults = [] if contract.replies else ["its contract lists no reply"]
    if len(code) >= CODE_LINES:
        faults.append(f"{len(code)} lines of code; a sentence has under {CODE_LINES}")
    for word, names in (("KEYS", contract.keys), ("ARGV", contract.argv)):
        faults += [
            f"bare {found} below the opening: {line}"
            for line in below
            for found in _literal(word, line)
        ]
        repeats = bool(names) and names[-1].endswith("…")
        taken = {int(found[5:-1]) for line in opening for found in _literal(word, line)}
        listed = set(range(1, len(names) - repeats + 1))
        if taken != listed:
            faults.append(f"takes {word} {sorted(taken)}, but its contract lists {names}")
        if repeats != any(re.search(rf"#{word}|{word}\[(?!\d+\])", line) for line in code):
            faults.append(f"a name ending in … and a loop over {word} belong together")
    return faults + number_faults(text)


def number_faults(text: str) -> list[str]:
    """Lines where ``..`` may turn a large number into text: it keeps 14 digits, and two collide.

    ``string.format('%.0f', n)`` keeps them all.
    """
    number = r"(?:\w+_[mu]s|[mu]s|at|seq|sequence|fence|now\(\))"
    joined = rf"\.\.\s*{number}\b|\b{number}\s*\.\."
    computed = r"tonumber\(|'TIME'|now\(\)|INCR|math\.|[\w\])] [-+*/] [\w(]"
    return [
        f"a number is joined with '..': {line}"
        for line in _code(text)
        if re.search(r"(?<!\.)\.\.(?!\.)", line)
        and (re.search(joined, line) or re.search(computed, line))
    ]


def _code(text: str) -> list[str]:
    """The lines with something to run, without comments."""
    lines = (re.sub(r"(^|\s)--.*", "", line).strip() for line in text.splitlines())
    return [line for line in lines if line]


def _opening_length(code: list[str]) -> int:
    """How many first lines only give names to KEYS and ARGV."""
    value = r"(?:tonumber\()?(?:KEYS|ARGV)\[\d+\]\)?"
    naming = re.compile(rf"local \w+(?:, \w+)* = {value}(?:, {value})*$")
    return next((n for n, line in enumerate(code) if not naming.match(line)), len(code))


def _literal(word: str, line: str) -> list[str]:
    return re.findall(rf"{word}\[\d+\]", line)


GOOD_SCRIPT = """-- take: take it.
-- KEYS   lock {ns:lock:name}
-- ARGV   owner, ttl_ms
-- ->     1   taken
local lock = KEYS[1]
local owner, ttl_ms = ARGV[1], ARGV[2]

return redis.call('SET', lock, owner, 'PX', ttl_ms)
"""


def test_script_rule_accepts_a_good_script() -> None:
    assert script_faults(GOOD_SCRIPT) == []


@pytest.mark.parametrize(
    ("good", "bad", "fault"),
    [
        ("-- take: take it.\n", "", "opens with"),
        ("-- ->     1   taken\n", "", "no reply"),
        ("'SET', lock", "'SET', KEYS[1]", "bare KEYS[1]"),
        ("owner, 'PX'", "ARGV[1], 'PX'", "bare ARGV[1]"),
        ("owner, ttl_ms\n", "owner\n", "takes ARGV [1, 2]"),
        ("-- KEYS   lock {ns:lock:name}\n", "", "takes KEYS [1]"),
        ("owner, ttl_ms\n", "owner, ttl_ms, more…\n", "belong together"),
        ("return", "local n = 1\n" * 40 + "return", "lines of code"),
        ("lock, owner", "lock, owner .. ':' .. tonumber(ttl_ms)", "joined with '..'"),
        ("lock, owner", "lock, '1:' .. seq", "joined with '..'"),
        ("lock, owner", "lock, owner .. (a + 1)", "joined with '..'"),
    ],
)
def test_script_rule_objects(good: str, bad: str, fault: str) -> None:
    assert good in GOOD_SCRIPT
    assert any(fault in found for found in script_faults(GOOD_SCRIPT.replace(good, bad, 1)))


@every([path for path in LUA if not path.name.startswith("_")])
def test_script_keeps_its_contract(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert script_faults(text) == []
    contract = read_contract(text)
    assert contract.verb == path.stem
    for name in contract.needs:
        homes = (path.parent, path.parent.parent, SOURCE / "journal")
        assert any((home / f"_{name}.lua").exists() for home in homes), f"needs {name}"


@every([path for path in LUA if path.name.startswith("_")])
def test_snippet_takes_what_it_needs_as_parameters(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert number_faults(text) == []
    assert not re.search(r"\b(KEYS|ARGV)\b", "\n".join(_code(text)))


# -- tests do not wait for time to pass ----------------------------------------------------------

SLEEP = re.compile(r"(?<![\w.])(?:(?:time|asyncio|anyio|trio)\.)?sleep\((?!0\))")


def sleep_faults(text: str) -> list[str]:
    """Sleeps in a test: slow when they are long, flaky when they are short.

    Where time itself is what is tested, a comment ``# time itself: …`` stands beside or above.
    """
    lines = text.splitlines()
    return [
        f"line {n + 1}: {line.strip()}"
        for n, line in enumerate(lines)
        if SLEEP.search(line) and "# time itself:" not in line + lines[max(n - 1, 0)]
    ]


@pytest.mark.parametrize("line", ["time.sleep(1)", "    await asyncio.sleep(0.1)", "sleep(2)"])
def test_sleep_rule_objects(line: str) -> None:
    assert sleep_faults(f"x = 1\n{line}\n")
    assert not sleep_faults(f"# time itself: a lease runs out\n{line}\n")


def test_sleep_rule_allows_giving_way_and_the_port() -> None:
    assert sleep_faults("await asyncio.sleep(0)\nawait io.sleep(5)\nserver.sleep()") == []


@every(TESTS)
def test_tests_do_not_sleep(path: Path) -> None:
    assert sleep_faults(path.read_text(encoding="utf-8")) == []


# -- public faces come in pairs ------------------------------------------------------------------

ASYNC_NAMES = {"aclose": "close", "__aenter__": "__enter__", "__aexit__": "__exit__"}
SPECIAL = {"__init__", *ASYNC_NAMES, *ASYNC_NAMES.values()}


def face(cls: type) -> dict[str, list[tuple[str, str, str]]]:
    """A class's public methods, under the names of the sync face, each with its parameters."""
    methods: dict[str, list[tuple[str, str, str]]] = {}
    for name in dir(cls):
        method: Any = inspect.getattr_static(cls, name)
        method = getattr(method, "__func__", method)
        if name.startswith("_") and name not in SPECIAL:
            continue
        if isinstance(method, property):
            methods[name] = []
        elif inspect.isfunction(method):
            parameters = inspect.signature(method).parameters.values()
            methods[ASYNC_NAMES.get(name, name)] = [
                (p.name, p.kind.name, repr(p.default)) for p in parameters
            ]
    return methods


def pair_faults(sync: type, asynchronous: type) -> list[str]:
    """What one of two faces has and the other has not, or takes otherwise."""
    ours, theirs = face(sync), face(asynchronous)
    faults = [f"only one of them has {name}" for name in sorted(ours.keys() ^ theirs.keys())]
    return faults + [
        f"{name} takes {ours[name]} and {theirs[name]}"
        for name in sorted(ours.keys() & theirs.keys())
        if ours[name] != theirs[name]
    ]


class _Sync:
    def get(self, key: str, *, wait: float = 1) -> None: ...
    def close(self) -> None: ...


class _Async:
    async def get(self, key: str, *, wait: float = 1) -> None: ...
    async def aclose(self) -> None: ...


class _Renamed(_Async):
    async def get(self, name: str, *, wait: float = 1) -> None: ...


class _OtherDefault(_Async):
    async def get(self, key: str, *, wait: float = 2) -> None: ...


class _More(_Async):
    async def peek(self) -> None: ...


@pytest.mark.parametrize("bad", [_Renamed, _OtherDefault, _More])
def test_pair_rule_objects(bad: type) -> None:
    assert pair_faults(_Sync, _Async) == []
    assert pair_faults(_Sync, bad)


@pytest.mark.parametrize(("sync", "asynchronous"), PAIRS, ids=lambda cls: cls.__name__)
def test_faces_of_a_pair_have_the_same_methods_and_parameters(
    sync: type, asynchronous: type
) -> None:
    assert pair_faults(sync, asynchronous) == []
    assert len(face(sync)) > 1  # they were looked at


# -- nothing of one machine is in the repository -------------------------------------------------

PLACES = re.compile(
    r"(?<![\w.\-/])/(?:work|opt/(?:pypi|wheels))(?![\w-])|(?<![\w.\-])/(?:root|home/\w+|Users/\w+)/"
    r"|(?<!\w)/tmp/dev\b|file:///"
    r"|(?:pypi|pythonhosted|npmjs)\.(?:org|com)|--(?:extra-)?index-url \S|--find-links \S"
)


def place_faults(text: str) -> list[str]:
    """Paths of somebody's machine, and host names of package registries (a mirror has others)."""
    return [
        f"line {n}: {found[0]}"
        for n, line in enumerate(text.splitlines(), 1)
        if (found := PLACES.search(line))
    ]


@pytest.mark.parametrize(
    "line",
    [
        "see " + "/" + "work/main/x",
        "cd /" + "home/ann/src",
        "--extra-index" + "-url x",
        "https://files.python" + "hosted.org/x",
        "registry.npm" + "js.org",
        "file:" + "///x",
    ],
)
def test_place_rule_objects(line: str) -> None:
    assert place_faults(line)


def test_place_rule_allows_words_that_look_alike() -> None:
    assert (
        place_faults("GET /api/work/1, ./work/x, https://example.org/work, /tmp/x, a/root/b") == []
    )


def tracked() -> list[Path]:
    git = shutil.which("git")
    inside = git is not None and (ROOT / ".git").exists()
    require("git", inside)
    listing = subprocess.run(
        ["git", "-c", "safe.directory=*", "ls-files", "-z"],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    )
    return [ROOT / name for name in listing.stdout.split("\0") if name]


def test_no_tracked_file_names_a_machine_or_a_registry() -> None:
    faults = {}
    for path in tracked():
        if not path.is_file() or path == Path(__file__):
            continue
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue  # a picture, say
        if found := place_faults(text):
            faults[named(path)] = found
    assert faults == {}


# -- pages name tests that there are ---------------------------------------------------------------

NAMED = re.compile(r"\btest_[a-z0-9_]+\b(?!\.py|_?…)")


def missing_tests(page: str, tests: str) -> list[str]:
    """Tests that a page names, and that there are not."""
    there = set(re.findall(r"def (test_\w+)", tests))
    files = {path.stem for path in TESTS} | {"test_tidy"}
    return sorted(set(NAMED.findall(page)) - there - files)


def test_pages_name_tests_that_there_are() -> None:
    tests = "\n".join(path.read_text(encoding="utf-8") for path in TESTS)
    assert missing_tests("`test_that_is_not_there` and `test_r1_…`", tests) == [
        "test_that_is_not_there"
    ]
    folders = (ROOT / "docs", ROOT / "tests")
    pages = [
        page for folder in folders for page in folder.rglob("*.md") if page.name != "testing.md"
    ]
    found = {named(page): missing_tests(page.read_text(encoding="utf-8"), tests) for page in pages}
    assert {page: names for page, names in found.items() if names} == {}


def test_rules_were_shown_the_files_they_are_for() -> None:
    assert PROTOCOLS
    assert LUA
    assert len(TESTS) > 3
