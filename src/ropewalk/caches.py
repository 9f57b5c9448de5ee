"""Everything the package remembers between calls. Every cache is a `Cache` or made by `cached`, so
that all can be listed and emptied.

A cache has a name and a bound. When it is full, its oldest entries are dropped. A cache whose
entries point into the memory of another cache's entries names that cache in `points_into`, and is
emptied when that cache is cleared, or is full and drops entries.
"""

from __future__ import annotations

import functools
import os
import threading
from collections.abc import Callable, Hashable
from typing import Any, NamedTuple, Protocol, TypeVar

Result = TypeVar("Result")


class CacheInfo(NamedTuple):
    """The size and the bounds of one cache; `bytes` is None where only entries are counted."""

    name: str
    entries: int
    most_entries: int
    bytes: int | None = None
    most_bytes: int | None = None


class _Registered(Protocol):
    """What `cache_infos` and `clear_caches` need of a cache."""

    def info(self) -> CacheInfo: ...

    def clear(self) -> None: ...


_CACHES: dict[str, _Registered] = {}


class Cache(dict):
    """A bounded dict: read it as any dict, write to it with `keep`, which drops the oldest entries
    where it is full.

    entries      how many entries it holds at most
    bytes        how many bytes it holds at most, as the sum of the sizes given to `keep`; a single
                 larger entry is kept too. None = no such bound
    points_into  another cache, into whose memory these entries point: this cache is emptied when
                 the other is cleared, or is full and drops entries

    The attribute `bytes` is the sum of the sizes now.
    """

    def __init__(
        self, name: str, *, entries: int, bytes: int | None = None, points_into: Cache | None = None
    ) -> None:
        """Make an empty cache, which `cache_infos` lists by `name`. `entries` and `bytes` are its
        bounds; `points_into` is the cache into whose memory its entries point.
        """
        super().__init__()
        self.name, self.most_entries, self.most_bytes = name, entries, bytes
        self.bytes = 0  # the sum of `_sizes`
        self._sizes: dict[Hashable, int] = {}
        self._dependents: list[Cache] = []  # caches whose `points_into` is this one
        self._lock = threading.Lock()
        if points_into is not None:
            points_into._dependents.append(self)
        _CACHES[name] = self  # for `cache_infos` and `clear_caches`

    def keep(self, key: Hashable, value: Any, size: int = 0) -> Any:
        """Store and return `value`, an entry of `size` bytes, as the newest; drop the oldest
        entries until the cache is within its bounds or holds `value` alone.
        """
        dropped = False
        with self._lock:
            self._put(key, value, size)
            while len(self) > 1 and self._is_full():
                self._drop(next(iter(self)))
                dropped = True
        if dropped:
            self._empty_dependent_caches()
        return value

    def newest(self, key: Hashable) -> Any:
        """Return the entry of `key`, which becomes the newest; None if there is none."""
        with self._lock:
            value = self.get(key)
            if value is not None:
                self._put(key, value, self._sizes[key])
            return value

    def clear(self) -> None:
        """Drop every entry; the next calls build them again."""
        with self._lock:
            super().clear()
            self._sizes.clear()
            self.bytes = 0
        self._empty_dependent_caches()

    def info(self) -> CacheInfo:
        """Return the size now, and the bounds."""
        return CacheInfo(
            self.name,
            len(self),
            self.most_entries,
            self.bytes if self.most_bytes else None,  # without a bound, `keep` gets no sizes
            self.most_bytes,
        )

    def _is_full(self) -> bool:
        return len(self) > self.most_entries or (
            self.most_bytes is not None and self.bytes > self.most_bytes
        )

    def _put(self, key: Hashable, value: Any, size: int) -> None:
        """Store an entry as the newest: the last one of the dict, which keeps the order of
        insertion.
        """
        self._drop(key)
        self[key], self._sizes[key] = value, size
        self.bytes += size

    def _drop(self, key: Hashable) -> None:
        self.pop(key, None)
        self.bytes -= self._sizes.pop(key, 0)

    def _empty_dependent_caches(self) -> None:
        for cache in self._dependents:
            cache.clear()


class _FunctionCache:
    """The results of one function, kept by `functools.lru_cache`."""

    def __init__(self, name: str, lru_cached_function: Any) -> None:
        self.name, self.clear = name, lru_cached_function.cache_clear
        self._function = lru_cached_function

    def info(self) -> CacheInfo:
        """Return the size now, and the bound."""
        size = self._function.cache_info()
        return CacheInfo(self.name, size.currsize, size.maxsize)


def cached(name: str, *, entries: int) -> Callable[[Callable[..., Result]], Callable[..., Result]]:
    """Return a decorator that keeps the results of the latest `entries` distinct calls of a
    function, in a cache that `cache_infos` lists by `name`.
    """

    def decorate(function: Callable[..., Result]) -> Callable[..., Result]:
        kept = functools.lru_cache(maxsize=entries)(function)
        _CACHES[name] = _FunctionCache(name, kept)
        return kept

    return decorate


def cache_infos() -> list[CacheInfo]:
    """Return the size and the bounds of every cache of the modules that are imported."""
    return [cache.info() for _, cache in sorted(_CACHES.items())]


def clear_caches() -> None:
    """Empty every cache of the package; results stay the same, the next calls are slower."""
    for cache in list(_CACHES.values()):
        cache.clear()


def _renew_locks() -> None:
    """Give every cache a new lock, in a forked child process."""
    # the parent may have forked while another thread held a lock
    for cache in _CACHES.values():
        if isinstance(cache, Cache):
            cache._lock = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_locks)
