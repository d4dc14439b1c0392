"""Whatever the bytes: a layout that holds together, or one sentence."""

from hypothesis import example, given
from hypothesis import strategies as st

from moewatch.domain.layout import ModelLayout, WeightClass
from moewatch.errors import UnusableFileError
from moewatch.modelfile.header import read_header
from moewatch.modelfile.layout import derive_layout
from moewatch.modelfile.quantisation import BLOCKS
from moewatch.modelfile.shards import Shard, check_shards
from tests.support.gguf_bytes import STRING, U16, BytesSource, array, header, string, tensor, text, u32, with_data

SMALL = with_data(
    header(
        [
            string("general.architecture", "llama"),
            string("general.name", "small"),
            u32("llama.block_count", 1),
            u32("llama.expert_count", 4),
            u32("llama.expert_used_count", 2),
            array("tokens", STRING, 3, text("a") + text("bc") + text("")),
            array("heads", U16, 2, bytes(4)),
        ],
        [tensor("token_embd.weight", (32, 4)), tensor("blk.0.ffn_up_exps.weight", (32, 2, 4), offset=256)],
    ),
    768,
)


def layout_of(content: bytes, chunk_bytes: int = 1 << 18) -> ModelLayout | None:
    """None when it is refused; any other exception fails the test."""
    source = BytesSource(content, chunk_bytes)
    try:
        shard = Shard(name=source.name, path="", size_bytes=source.size_bytes, mtime_ns=0, header=read_header(source))
        check_shards([shard])
        return derive_layout([shard])
    except UnusableFileError as error:
        assert str(error).isprintable()  # noqa: PT017 - what matters is that nothing else is raised
        return None


def check(layout: ModelLayout, size_bytes: int) -> None:
    summary = layout.summary
    end = 0
    for found in sorted(layout.tensors, key=lambda t: t.offset):
        assert found.size_bytes > 0
        assert found.offset >= max(end, layout.header_bytes[0])
        end = found.offset + found.size_bytes
        assert (found.n_expert > 0) == (found.weight_class is WeightClass.EXPERT)
        assert found.name.isprintable()
    assert end <= size_bytes
    total = (summary.dense_bytes or 0) + (summary.expert_bytes or 0) + summary.embedding_bytes
    assert total == sum(t.size_bytes for t in layout.tensors)
    assert (summary.active_bytes_per_token or 0) <= total
    assert summary.name.isprintable()
    assert layout.n_layer <= 4096


@given(st.binary(max_size=400))
def test_any_bytes(content: bytes) -> None:
    for start in (b"", b"GGUF\3\0\0\0"):
        layout = layout_of(start + content)
        if layout is not None:
            check(layout, len(start + content))


@given(st.lists(st.tuples(st.integers(0, len(SMALL) - 1), st.binary(min_size=1, max_size=9)), min_size=1, max_size=4))
def test_a_valid_file_with_bytes_overwritten(patches: list[tuple[int, bytes]]) -> None:
    content = bytearray(SMALL)
    for at, patch in patches:
        content[at : at + len(patch)] = patch
    layout = layout_of(bytes(content))
    if layout is not None:
        check(layout, len(content))


@given(st.integers(0, len(SMALL)), st.integers(0, len(SMALL)), st.binary(max_size=40))
def test_a_valid_file_with_a_piece_replaced(start: int, end: int, piece: bytes) -> None:
    content = SMALL[: min(start, end)] + piece + SMALL[max(start, end) :]
    layout = layout_of(content)
    if layout is not None:
        check(layout, len(content))


@given(st.integers(1, 600))
@example(1)
def test_the_size_of_the_chunks_changes_nothing(chunk_bytes: int) -> None:
    whole = layout_of(SMALL)
    assert whole is not None
    assert layout_of(SMALL, chunk_bytes) == whole


@given(
    st.lists(
        st.tuples(st.sampled_from(sorted(BLOCKS)), st.integers(1, 4), st.lists(st.integers(1, 9), max_size=3)),
        max_size=12,
    )
)
def test_tensors_of_any_type_and_shape_lie_where_they_were_put(shapes: list[tuple[int, int, list[int]]]) -> None:
    infos, expected, offset = [], [], 0
    for number, (kind, n_blocks, rest) in enumerate(shapes):
        _, block, block_bytes = BLOCKS[kind]
        infos.append(tensor(f"t{number}", (n_blocks * block, *rest), kind, offset))
        size = n_blocks * block_bytes
        for length in rest:
            size *= length
        expected.append((f"t{number}", offset, size))
        offset += size + -size % 32
    head = header([], infos)
    layout = layout_of(with_data(head, offset))
    assert layout is not None
    assert [(t.name, t.offset - layout.header_bytes[0], t.size_bytes) for t in layout.tensors] == expected


@given(st.lists(st.binary(max_size=30), max_size=60), st.integers(1, 100))
def test_strings_are_passed_over_exactly(strings: list[bytes], chunk_bytes: int) -> None:
    content = header([array("tokens", STRING, len(strings), b"".join(text(s) for s in strings)), u32("after", 7)])
    found = read_header(BytesSource(content, chunk_bytes))
    assert found.metadata == {"after": 7}
    assert found.array_lengths == {"tokens": len(strings)}
