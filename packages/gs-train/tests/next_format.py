# SPDX-License-Identifier: Apache-2.0
"""Stores as a later version would write them."""

from __future__ import annotations

from pathlib import Path

from gs_pinned import _core


def make_of_version_2(store: Path) -> None:
    """The store's first page says version 2, and its checksum holds."""
    page = bytearray((store / "STORE").read_bytes())
    page[8:12] = (2).to_bytes(4, "little")
    page[-4:] = _core.crc32c(bytes(page[:-4])).to_bytes(4, "little")
    (store / "STORE").write_bytes(page)
