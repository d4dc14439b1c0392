"""The limit that counts, what fits beside it, and who is named when memory was taken."""

from typing import Any

import pytest
from msgspec.structs import replace

from moewatch.analysis.memory import GrowthBook, derive_memory, update, who_took
from moewatch.analysis.window import Window
from moewatch.domain.frame import Growth, Memory, Residency
from moewatch.domain.sample import MemoryReading, OtherProcess
from moewatch.units import GIB, MIB, S
from tests.support.situations import cgroup, header, sample, scan, window

SCANNED = Residency(backend="cachestat")


def test_the_machine_is_the_limit_without_a_cgroup() -> None:
    memory = derive_memory(window(), SCANNED)
    assert (memory.limit_bytes, memory.limit_scope) == (round(31.2 * GIB), "host")
    assert memory.available_bytes == 20 * GIB
    assert memory.other_cache_bytes == 1 * GIB  # 20 cached, 19 of them the model's


def test_a_cgroup_limit_below_ram_counts_and_is_named() -> None:
    of = header(memory_limit_bytes=24 * GIB, memory_limit_scope="docker-ab12.scope")
    memory = derive_memory(window(lambda _: {"cgroup": cgroup()}, of=of), SCANNED)
    assert (memory.limit_bytes, memory.limit_scope) == (24 * GIB, "docker-ab12.scope")
    assert memory.available_bytes == 20 * GIB  # 1 free, 20 of droppable cache, but the machine has no more than 20
    assert memory.other_cache_bytes == 1 * GIB


def test_a_limit_above_ram_is_none() -> None:
    memory = derive_memory(window(lambda _: {"cgroup": cgroup(limit_bytes=1 << 60)}), SCANNED)
    assert memory.limit_scope == "host"


def test_a_lifted_limit_is_not_taken_from_the_header() -> None:
    of = header(memory_limit_bytes=24 * GIB, memory_limit_scope="x.scope")
    memory = derive_memory(window(lambda _: {"cgroup": cgroup(limit_bytes=None)}, of=of), SCANNED)
    assert memory.limit_scope == "host"


def test_unknown_stays_unknown() -> None:
    bare = {"process": None, "memory": None, "residency": None, "vm": None}
    memory = derive_memory(window(lambda _: bare), Residency())
    figures = (memory.available_bytes, memory.target_anon_bytes, memory.model_resident_bytes, memory.other_cache_bytes)
    assert figures == (None, None, None, None)


def firefox(anon_gib: float) -> OtherProcess:
    return OtherProcess(pid=77, name="firefox", anon_bytes=round(anon_gib * GIB))


def squeezed(model_after_gib: float = 13.0, firefox_after_gib: float = 6.3) -> tuple[Window, GrowthBook]:
    """A model of 19 GiB in memory; at 10 s firefox grows and the model shrinks."""
    found, book = Window(header=header()), GrowthBook()
    for t in range(31):
        late = t >= 10
        changes: dict[str, Any] = {
            "residency": scan(resident_bytes=round((model_after_gib if late else 19.0) * GIB)),
            "others": (firefox(firefox_after_gib if late else 0.3),),
        }
        one = sample(t * S, **changes)
        found, book = found.pushed(one), update(book, one)
    return found, book


def test_who_grew_since_when() -> None:
    found, book = squeezed()
    memory = derive_memory(found, SCANNED, book)
    (growth,) = memory.grew
    assert (growth.name, growth.pid) == ("firefox", 77)
    assert growth.bytes == pytest.approx(6.0 * GIB, rel=0.01)
    assert growth.since_ns == 9 * S  # the last time it was small
    assert memory.model_lost_bytes == 6 * GIB


@pytest.mark.parametrize(
    ("model_after_gib", "named"),
    [(13.0, True), (14.1, True), (12.0, True), (15.0, False), (10.0, False), (19.0, False)],
)
def test_a_cause_is_named_only_when_growth_and_loss_match(*, model_after_gib: float, named: bool) -> None:
    found, book = squeezed(model_after_gib=model_after_gib)
    took = who_took(derive_memory(found, SCANNED, book))
    assert (took is not None) is named


def test_everyday_growth_is_not_listed() -> None:
    found, book = squeezed(firefox_after_gib=0.3 + 200 / 1024)
    assert derive_memory(found, SCANNED, book).grew == ()


def test_two_that_grew_together_explain_a_loss() -> None:
    each = Growth(pid=1, name="a", bytes=3 * GIB, since_ns=0)
    memory = Memory(grew=(each, replace(each, pid=2, name="b")), model_lost_bytes=6 * GIB)
    took = who_took(memory)
    assert took is not None
    assert took.name == "a"


def test_the_book_remembers_the_most() -> None:
    book = GrowthBook()
    for t, resident in enumerate((5, 9, 7)):
        book = update(book, sample(t * S, residency=scan(resident_bytes=resident * GIB)))
    assert book.most_resident_bytes == 9 * GIB
    assert update(book, sample(9 * S, residency=None)) == book


def test_swap_and_free_come_from_meminfo() -> None:
    reading = MemoryReading(available_bytes=1, free_bytes=2, cached_bytes=3, swap_used_bytes=512 * MIB)
    memory = derive_memory(window(lambda _: {"memory": reading}), SCANNED)
    assert (memory.free_bytes, memory.swap_used_bytes, memory.other_cache_bytes) == (2, 512 * MIB, 0)
