"""How each library is used to refresh an entry once; run in the library's own environment.

Nothing of fencepost is imported here, and no library before it is asked for.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from typing import Any

Load = Callable[[], Coroutine[Any, Any, Any]]
THREADS = 512


class Cashews:
    """``lock=True``, its guard against a stampede; the lock lasts as long as the value would."""

    def __init__(self, path: str, ttl: float, lease: float) -> None:
        cashews: Any = import_module("cashews")
        pickles: Any = import_module("cashews.picklers")
        settings: Any = import_module("cashews.wrapper.backend_settings")
        # Its own factory; only the scheme of a unix socket has no name there.
        fabric = settings._redis_fabric  # noqa: SLF001
        kind = pickles.PicklerType.DEFAULT
        settings.register_backend("unix", fabric, pass_uri=True, pickler=kind)
        self.cache = cashews.Cache()
        self.cache.setup(f"unix://{path}", max_connections=10_000)
        self.load: Load
        self.ttl = ttl

    async def open(self) -> None:
        await self.cache.init()

        @self.cache(ttl=self.ttl, key="b:{key}", lock=True)  # type: ignore[untyped-decorator]
        async def plain(key: str) -> Any:
            return await self.load()

        self._plain = plain

    async def get(self, key: str, load: Load) -> Any:
        self.load = load
        return await self._plain(key)

    async def get_many(self, keys: list[str]) -> Any:
        return await self.cache.get_many(*(f"b:{key}" for key in keys))

    async def set(self, key: str, value: Any) -> None:
        await self.cache.set(f"b:{key}", value, expire=self.ttl)

    async def peek(self, key: str) -> Any:
        return await self.cache.get(f"b:{key}")

    async def forget(self, key: str) -> None:
        await self.cache.delete(f"b:{key}")


class AioCache:
    """``RedLock`` around get and set, as its documentation shows."""

    def __init__(self, path: str, ttl: float, lease: float) -> None:
        redis: Any = import_module("redis.asyncio")
        aiocache: Any = import_module("aiocache")
        serializers: Any = import_module("aiocache.serializers")
        self.cache = aiocache.RedisCache(serializer=serializers.JsonSerializer())
        self.cache.client = redis.Redis(unix_socket_path=path, max_connections=10_000)
        self.ttl, self.lease = ttl, lease
        self.red_lock: Any = import_module("aiocache.lock").RedLock

    async def open(self) -> None:
        pass

    async def get(self, key: str, load: Load) -> Any:
        value = await self.cache.get(key)
        if value is not None:
            return value
        async with self.red_lock(self.cache, key, lease=self.lease):
            value = await self.cache.get(key)
            if value is None:
                value = await load()
                await self.cache.set(key, value, ttl=self.ttl)
        return value

    async def get_many(self, keys: list[str]) -> Any:
        return await self.cache.multi_get(keys)

    async def set(self, key: str, value: Any) -> None:
        await self.cache.set(key, value, ttl=self.ttl)

    async def peek(self, key: str) -> Any:
        return await self.cache.get(key)

    async def forget(self, key: str) -> None:
        await self.cache.delete(key)


class RedisPy:
    """redis-py's own ``Lock`` around get and set."""

    def __init__(self, path: str, ttl: float, lease: float) -> None:
        redis: Any = import_module("redis.asyncio")
        self.client = redis.Redis(
            unix_socket_path=path, max_connections=10_000, decode_responses=True
        )
        self.ttl, self.lease = int(ttl), lease

    async def open(self) -> None:
        pass

    async def get(self, key: str, load: Load) -> Any:
        value = await self.client.get(key)
        if value is not None:
            return value
        async with self.client.lock(f"lock:{key}", timeout=self.lease):
            value = await self.client.get(key)
            if value is None:
                value = await load()
                await self.client.set(key, value, ex=self.ttl)
        return value

    async def peek(self, key: str) -> Any:
        return await self.client.get(key)

    async def forget(self, key: str) -> None:
        await self.client.delete(key)


class FastApiCache:
    """Its decorator, called as a function; it has no lock."""

    def __init__(self, path: str, ttl: float, lease: float) -> None:
        redis: Any = import_module("redis.asyncio")
        facade: Any = import_module("fastapi_cache")
        backends: Any = import_module("fastapi_cache.backends.redis")
        decorator: Any = import_module("fastapi_cache.decorator")
        self.facade = facade.FastAPICache
        self.client = redis.Redis(unix_socket_path=path, max_connections=10_000)
        self.backend = backends.RedisBackend(self.client)
        self.decorate, self.ttl = decorator.cache, ttl
        self.load: Load

    async def open(self) -> None:
        self.facade.reset()
        self.facade.init(
            self.backend, prefix="b", key_builder=lambda fn, space, *, args, **_: f"b:{args[0]}"
        )

        @self.decorate(expire=int(self.ttl) or 1)  # type: ignore[untyped-decorator]
        async def plain(key: str) -> Any:
            return await self.load()

        self._plain = plain

    async def get(self, key: str, load: Load) -> Any:
        self.load = load
        return await self._plain(key)

    async def peek(self, key: str) -> Any:
        coder: Any = import_module("fastapi_cache.coder").JsonCoder
        raw = await self.backend.get(f"b:{key}")
        return None if raw is None else coder.decode(raw)

    async def forget(self, key: str) -> None:
        await self.backend.clear(key=f"b:{key}")


class Threaded(ABC):
    """A library for threads: each call is a thread's."""

    def __init__(self) -> None:
        self.threads = ThreadPoolExecutor(THREADS)

    async def open(self) -> None:
        return  # threads connect when they first ask

    async def get(self, key: str, load: Load) -> Any:
        loop = asyncio.get_running_loop()

        def create() -> Any:
            return asyncio.run_coroutine_threadsafe(load(), loop).result()

        return await loop.run_in_executor(self.threads, self.get_here, key, create)

    @abstractmethod
    def get_here(self, key: str, create: Callable[[], Any]) -> Any:
        """Read through the cache, in this thread."""


class Dogpile(Threaded):
    """A region with a distributed lock."""

    def __init__(self, path: str, ttl: float, lease: float) -> None:
        super().__init__()
        cache: Any = import_module("dogpile.cache")
        self.nothing: Any = import_module("dogpile.cache.api").NO_VALUE
        self.region = cache.make_region().configure(
            "dogpile.cache.redis",
            expiration_time=ttl,
            arguments={
                "url": f"unix://{path}",
                "distributed_lock": True,
                "lock_timeout": lease,
                "redis_expiration_time": int(ttl * 2) + 1,
                "thread_local_lock": False,
                "connection_kwargs": {"max_connections": 10_000},
            },
        )

    def get_here(self, key: str, create: Callable[[], Any]) -> Any:
        return self.region.get_or_create(key, create)

    async def get_many(self, keys: list[str]) -> Any:
        return await asyncio.to_thread(self.region.get_multi, keys)

    async def set(self, key: str, value: Any) -> None:
        await asyncio.to_thread(self.region.set, key, value)

    async def peek(self, key: str) -> Any:
        value = await asyncio.to_thread(self.region.get, key)
        return None if value is self.nothing else value

    async def forget(self, key: str) -> None:
        await asyncio.to_thread(self.region.delete, key)


class DjangoRedis(Threaded):
    """``cache.lock`` around get and set: Django's own ``get_or_set`` has no lock."""

    def __init__(self, path: str, ttl: float, lease: float) -> None:
        super().__init__()
        conf: Any = import_module("django.conf")
        options = {"CONNECTION_POOL_KWARGS": {"max_connections": 10_000}}
        place = {
            "BACKEND": "django_redis.cache.RedisCache",
            "LOCATION": f"unix://{path}",
            "OPTIONS": options,
        }
        if not conf.settings.configured:
            conf.settings.configure(CACHES={"default": place})
        self.cache: Any = import_module("django.core.cache").cache
        self.ttl, self.lease = ttl, lease

    def get_here(self, key: str, create: Callable[[], Any]) -> Any:
        value = self.cache.get(key)
        if value is not None:
            return value
        with self.cache.lock(f"lock:{key}", timeout=self.lease):
            value = self.cache.get(key)
            if value is None:
                value = create()
                self.cache.set(key, value, timeout=self.ttl)
        return value

    async def get_many(self, keys: list[str]) -> Any:
        return await asyncio.to_thread(self.cache.get_many, keys)

    async def set(self, key: str, value: Any) -> None:
        await asyncio.to_thread(self.cache.set, key, value, self.ttl)

    async def peek(self, key: str) -> Any:
        return await asyncio.to_thread(self.cache.get, key)

    async def forget(self, key: str) -> None:
        await asyncio.to_thread(self.cache.delete, key)


ADAPTERS: dict[str, Any] = {
    "cashews": Cashews,
    "aiocache": AioCache,
    "fastapi-cache2": FastApiCache,
    "redis-py": RedisPy,
    "dogpile.cache": Dogpile,
    "django-redis": DjangoRedis,
}
