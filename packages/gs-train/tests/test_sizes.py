# SPDX-License-Identifier: Apache-2.0
import pytest

from gs_train.errors import InputError
from gs_train.sizes import format_bytes, parse_bytes, parse_count


@pytest.mark.parametrize(
    ("text", "n"),
    [
        ("4GiB", 4 << 30),
        ("500MB", 500_000_000),
        ("123456", 123456),
        ("1.5 ki", 1536),
        ("2t", 2 * 10**12),
    ],
)
def test_sizes_are_read_as_people_write_them(text: str, n: int) -> None:
    assert parse_bytes(text, option="--image-cache") == n


@pytest.mark.parametrize("text", ["", "GiB", "-1GiB", "4 gigs", "1e9"])
def test_anything_else_names_the_option(text: str) -> None:
    with pytest.raises(InputError, match="--image-cache must be a size such as 4GiB"):
        parse_bytes(text, option="--image-cache")


def test_sizes_are_written_with_the_largest_fitting_unit() -> None:
    assert [format_bytes(n) for n in (0, 1023, 2048, 3 << 29, 5 << 40)] == [
        "0 B",
        "1023 B",
        "2.0 KiB",
        "1.5 GiB",
        "5.0 TiB",
    ]


@pytest.mark.parametrize(
    ("text", "n"),
    [("30k", 30_000), ("1.5M", 1_500_000), ("7", 7), ("2b", 2 * 10**9), ("30_000", 30_000)],
)
def test_counts_are_read_as_people_write_them(text: str, n: int) -> None:
    assert parse_count(text) == n


@pytest.mark.parametrize("text", ["", "k", "many", "1.5", "0.1234k", "1e6", "30 GiB"])
def test_a_count_is_a_whole_number(text: str) -> None:
    with pytest.raises(ValueError, match="it must be a whole number such as 30000, 30k or"):
        parse_count(text)
