"""The mode in force, from what is mapped and locked."""

import pytest

from moewatch.domain.sample import LoadMode
from moewatch.linux.maps import parse_maps
from moewatch.server.argv import Options
from moewatch.server.loadmode import judge_load_mode
from tests.unit.server.fake_proc import FIXTURES

MODEL_BYTES = 37_991_808


@pytest.mark.parametrize(
    ("name", "locked_kib", "anon_kib", "asked", "mode"),
    [  # VmLck and RssAnon as they were when the maps were captured
        ("maps_cpu", 0, 84_572, None, LoadMode.MMAP),
        ("maps_mm", 37_088, 84_572, LoadMode.MMAP_MLOCK, LoadMode.MMAP_MLOCK),
        ("maps_mlock", 37_088, 121_700, LoadMode.MLOCK, LoadMode.MLOCK),
        ("maps_none", 0, 121_688, LoadMode.NONE, LoadMode.NONE),
        ("maps_none", 0, 122_096, LoadMode.DIO, LoadMode.DIO),
        ("maps_cpu", 64, 84_572, LoadMode.MMAP_MLOCK, LoadMode.MMAP),  # RLIMIT_MEMLOCK stopped it
        ("maps_mlock", 37_088, 121_700, LoadMode.MMAP, LoadMode.MLOCK),  # argv says otherwise: maps are right
        ("maps_none", 0, 4_000, None, LoadMode.UNKNOWN),  # not loaded yet
    ],
)
def test_real_maps(name: str, locked_kib: int, anon_kib: int, asked: LoadMode | None, mode: LoadMode) -> None:
    maps = parse_maps((FIXTURES / f"{name}.txt").read_bytes())
    judged = judge_load_mode(
        mapped_bytes=sum(mapping.length for mapping in maps if mapping.path.endswith(".gguf")),
        locked_bytes=locked_kib << 10,
        anon_bytes=anon_kib << 10,
        model_bytes=MODEL_BYTES,
        options=Options(load_mode=asked),
    )
    assert judged is mode


def test_hidden_maps_leave_it_unknown() -> None:
    options = Options(load_mode=LoadMode.NONE)
    judged = judge_load_mode(
        mapped_bytes=None, locked_bytes=0, anon_bytes=MODEL_BYTES, model_bytes=MODEL_BYTES, options=options
    )
    assert judged is LoadMode.UNKNOWN
