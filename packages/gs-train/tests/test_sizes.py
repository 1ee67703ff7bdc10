# SPDX-License-Identifier: Apache-2.0
import pytest

from gs_train.errors import InputError
from gs_train.sizes import format_bytes, parse_bytes


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
