# SPDX-License-Identifier: Apache-2.0
"""The checksum of stores, by the processor's instruction and by the table."""

from hypothesis import given, settings
from hypothesis import strategies as st

from gs_pinned import _core


def test_the_checksum_is_crc32c() -> None:
    # RFC 3720, appendix B.4, and the check value of the catalogues.
    for data, expected in [
        (b"123456789", 0xE3069283),
        (bytes(32), 0x8A9136AA),
        (b"\xff" * 32, 0x62A8AB43),
        (bytes(range(32)), 0x46DD794E),
        (bytes(range(31, -1, -1)), 0x113FDB5C),
        (b"", 0),
    ]:
        assert _core.crc32c(data) == _core.crc32c(data, by_table=True) == expected


@settings(deadline=None)
@given(data=st.binary(max_size=10_000), cut=st.integers(0, 10_000))
def test_the_instruction_and_the_table_agree(data: bytes, cut: int) -> None:
    data = data * 3
    whole = _core.crc32c(data, by_table=True)
    assert _core.crc32c(data) == whole
    assert _core.crc32c(data[cut:], _core.crc32c(data[:cut])) == whole
