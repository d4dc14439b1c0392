"""What people type and read: sizes, durations, shares."""

import pytest

from moewatch.units import GIB, MB, S, format_duration, format_mb, format_percent, parse_duration_ns, parse_size, shares


@pytest.mark.parametrize(
    ("ratio", "shown"),
    [(None, "–"), (0.0, "0"), (0.001, "<1"), (0.72, "72"), (0.999, "99"), (1.0, "100")],  # noqa: RUF001 - the dash of the design
)
def test_never_all_for_less_and_never_nothing_for_more(ratio: float | None, shown: str) -> None:
    assert format_percent(ratio) == shown


@pytest.mark.parametrize(
    ("text", "size"), [("32G", 32 * GIB), ("32GiB", 32 * GIB), ("1.5 gb", 1500 * MB), ("7", 7), ("0.5G", GIB // 2)]
)
def test_sizes(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "-1G", "1e9", "G", "1X", "nan", "1" * 19])
def test_what_is_no_size_or_duration_is_refused_with_an_example(text: str) -> None:
    for parse in (parse_size, parse_duration_ns):
        with pytest.raises(ValueError, match="write for instance"):
            parse(text)


def test_durations() -> None:
    assert [parse_duration_ns(text) for text in ("1", "0.5s", "200ms", "5m")] == [S, S // 2, S // 5, 300 * S]
    assert [format_duration(each * S) for each in (42, 192, 6130)] == ["42 s", "3:12", "1:42:10"]
    assert format_duration(400 * 10**6) == "0.4 s"


def test_one_decimal_below_ten() -> None:
    assert [format_mb(each * MB) for each in (0, 0.01, 4.2, 9.96, 1270)] == ["0", "0", "4.2", "10", "1,270"]


def test_shares_always_add_up() -> None:
    assert shares([1, 1, 1], 10) == [4, 3, 3]
    assert shares([8.16, 95.96], 1041) == [82, 959]
    assert shares([0, 0], 5) == [0, 0], "there is nothing to deal out"
