"""Every cache has a bound that holds, can be listed and can be emptied; results never depend on
what is cached.
"""

import copy
import gc
import os
import pickle
import random
import re
import subprocess
import sys
import threading
import weakref
from dataclasses import dataclass

import pytest
import torch

import ropewalk as rw
from ropewalk import caches, frequencies
from ropewalk.caches import Cache, cache_infos, cached
from ropewalk.spec import spec_of
from test_architecture import FILES, SOURCE, short_name


@pytest.fixture
def named(monkeypatch):
    """A registry of its own, so that a test's caches do not stay in the package's list."""
    monkeypatch.setattr(caches, "_CACHES", {})
    return caches._CACHES


class TestCache:
    def test_the_oldest_entries_are_dropped_first(self, named):
        cache = Cache("numbers", entries=3)
        for i in range(5):
            assert cache.keep(i, str(i)) == str(i)
        assert list(cache.items()) == [(2, "2"), (3, "3"), (4, "4")]

    def test_bytes_are_bounded_and_exactly_the_bound_is_within_it(self, named):
        cache = Cache("numbers", entries=100, bytes=10)
        for name, size in (("a", 4), ("b", 4), ("c", 2)):
            cache.keep(name, name, size)
        assert (list(cache), cache.bytes) == (["a", "b", "c"], 10)
        # "a" becomes the newest entry, so "b" is now the oldest
        assert cache.newest("a") == "a"
        cache.keep("d", "d", 1)
        assert (list(cache), cache.bytes) == (["c", "a", "d"], 7)

    def test_one_value_larger_than_the_bound_is_still_kept(self, named):
        cache = Cache("numbers", entries=100, bytes=10)
        cache.keep("small", 1, 3)
        cache.keep("huge", 2, 1000)
        assert dict(cache) == {"huge": 2}

    def test_replacing_an_entry_counts_its_new_size_alone(self, named):
        cache = Cache("numbers", entries=100, bytes=10)
        cache.keep("a", 1, 4)
        cache.keep("a", 2, 7)
        assert (dict(cache), cache.bytes) == ({"a": 2}, 7)

    def test_a_cache_that_points_into_another_is_emptied_when_that_one_drops_an_entry(self, named):
        owner = Cache("owner", entries=2)
        pointers = Cache("pointers", entries=10, points_into=owner)
        owner.keep("a", 1)
        pointers.keep("to a", 1)
        owner.keep("b", 2)
        assert dict(pointers) == {"to a": 1}
        owner.keep("c", 3)
        assert dict(pointers) == {}
        pointers.keep("to b", 2)
        owner.clear()
        assert dict(pointers) == {}

    def test_every_cache_is_listed_with_its_bounds_and_emptied(self, named):
        cache = Cache("b", entries=5, bytes=100)
        cache.keep(1, 1, 30)

        @cached("a", entries=2)
        def double(x):
            return 2 * x

        assert [double(x) for x in (1, 2, 3)] == [2, 4, 6]
        assert cache_infos() == [("a", 2, 2, None, None), ("b", 1, 5, 30, 100)]
        caches.clear_caches()
        assert [(info.name, info.entries) for info in cache_infos()] == [("a", 0), ("b", 0)]

    def test_threads_keep_a_cache_within_its_bounds(self, named):
        cache = Cache("numbers", entries=50, bytes=300)

        def work(seed):
            draw = random.Random(seed)
            for _ in range(2000):
                cache.keep(draw.randrange(200), 0, draw.randrange(10))
                cache.newest(draw.randrange(200))

        threads = [threading.Thread(target=work, args=(seed,)) for seed in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(cache) <= 50
        assert cache.bytes == sum(cache._sizes.values()) <= 300
        assert cache.keys() == cache._sizes.keys()


@pytest.mark.parametrize("path", FILES, ids=short_name)
def test_no_module_keeps_a_cache_of_its_own(path):
    """Only `caches.py` and the command line use the caches of functools, so `clear_caches` empties
    every cache of the packages but those of the command line, which ends after one command.
    """
    text = path.read_text(encoding="utf-8")
    free = path == SOURCE / "ropewalk" / "caches.py" or "ropewalk_cli" in path.parts
    assert free or not re.search(
        r"lru_cache|functools\.cache\b|from functools import .*\bcache\b", text
    )


def test_specs_are_dropped_with_their_last_reference():
    spec = rw.RopeSpec(6, theta=12_345.0)
    fingerprint, dropped = spec.fingerprint, weakref.ref(spec)
    assert spec_of(fingerprint) is spec
    del spec
    gc.collect()
    assert dropped() is None
    assert spec_of(fingerprint) == rw.RopeSpec(6, theta=12_345.0)


@dataclass(frozen=True)
class _Mine(frequencies.Scaling):
    """A scaling that is not ropewalk's, so its spec cannot be rebuilt from its fingerprint."""

    name = "mine"

    def _radians(self, dim, theta, length, ops):
        return torch.linspace(1, 0.1, dim // 2, dtype=torch.float64)


@pytest.mark.parametrize(
    "again",
    [copy.copy, copy.deepcopy, lambda rope: pickle.loads(pickle.dumps(rope))],  # noqa: S301
)
def test_a_copied_rope_with_a_scaling_of_ones_own_works_after_the_first_is_gone(again):
    rope = rw.Rope(rw.RopeSpec(8, scaling=_Mine()))
    copied, dropped = again(rope), weakref.ref(rope)
    del rope
    gc.collect()
    assert dropped() is None
    angle = torch.arange(2, dtype=torch.float64)[:, None] * torch.linspace(
        1, 0.1, 4, dtype=torch.float64
    )
    torch.testing.assert_close(copied.cos_sin(torch.arange(2))[0], angle.cos().float())


MANY_CALLS = """
import gc, os, sys, torch
import ropewalk as rw
from ropewalk.caches import cache_infos
from ropewalk.table import TABLES

def resident_bytes():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

TABLES.most_bytes = 8 << 20
plain = rw.Rope(rw.RopeSpec(4))
dynamic = rw.Rope(rw.RopeSpec(4, scaling=rw.frequencies.Dynamic(factor=2.0, original_length=8)))
one = torch.ones(1, 1, 1, 4)

def call(i):
    if i % 3 == 0:  # another spec
        rw.Rope(rw.RopeSpec(4, theta=2.0 + i))(one, one)
    elif i % 3 == 1:  # another length
        dynamic(one, one, length=9 + i)
    else:  # another shape and offset
        q = torch.ones(1, 1 + i % 7, 1 + i % 97, 4)
        plain(q, q[:, :1].clone(), offset=i)

first, last = map(int, sys.argv[1:])
for i in range(first):
    call(i)
gc.collect()
before = resident_bytes()
for i in range(first, last):
    call(i)
gc.collect()
for info in cache_infos():
    assert info.entries <= info.most_entries, info
    assert info.bytes is None or info.bytes <= info.most_bytes, info
print(resident_bytes() - before)
"""


@pytest.mark.skipif(
    not os.path.exists("/proc/self/statm"), reason="reads the memory of the process from /proc"
)
@pytest.mark.slow
def test_many_specs_lengths_and_shapes_stay_within_the_bounds(full):
    """Once the caches are full, further calls take hardly more memory; this is measured in another
    process, without the tests' type checks.

    A cache has at most 4,096 entries, so the calls before the measurement fill all of them.
    """
    calls = (5_000, 50_000) if full else (4_200, 9_000)
    command = [sys.executable, "-c", MANY_CALLS, *map(str, calls)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    # up to 8 MiB of tables; with --full, up to 24 MiB more for the allocator
    assert int(done.stdout) < ((8 + 24) << 20 if full else 8 << 20)
