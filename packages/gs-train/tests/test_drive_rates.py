# SPDX-License-Identifier: Apache-2.0
"""A drive is measured with files that nobody finds, however the measuring ends."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from gs_train.sizing.drive_rates import DriveRates, measure_drive, place_of

RECORD = 10_000


def measured(folder: Path, seconds: float = 0.02) -> DriveRates:
    return measure_drive(folder, RECORD, seconds=seconds, threads=3)


def test_rates_are_above_nothing_and_no_file_is_left(tmp_path: Path) -> None:
    rates = measured(tmp_path / "not" / "there")
    assert rates.read > 0
    assert rates.write > 0
    assert f"measured in {tmp_path} with" in rates.source
    assert "in records of 12.0 KiB" in rates.source
    assert not any(tmp_path.iterdir())
    assert str(DriveRates(4e9, 2.1e9)) == "reads 4 GB/s, writes 2.1 GB/s"


def test_each_thread_moves_a_record_where_there_is_no_time(tmp_path: Path) -> None:
    rates = measured(tmp_path, 0.0)
    assert rates.read > 0 < rates.write


def test_a_drive_behind_the_page_cache_is_said_to_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(os, "O_DIRECT")
    assert measured(tmp_path).source.endswith("through the page cache")


@pytest.mark.parametrize("call", ["pwritev", "preadv"])
@pytest.mark.parametrize("error", [KeyboardInterrupt(), OSError(28, "No space left on device")])
def test_nothing_is_left_of_a_measuring_that_ends_early(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str, error: BaseException
) -> None:
    def fail(*_: Any) -> int:
        raise error

    monkeypatch.setattr(os, call, fail)
    with pytest.raises(type(error)):
        measured(tmp_path)
    assert not any(tmp_path.iterdir())


def test_a_drive_that_moves_a_part_is_not_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = os.preadv
    monkeypatch.setattr(os, "preadv", lambda file, to, at: whole(file, to, at) - 1)
    with pytest.raises(OSError, match="the drive moved less than 12288 bytes at once"):
        measured(tmp_path)


def test_a_place_that_takes_no_file_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert place_of(tmp_path / "file" / "store") == tmp_path / "file"
    with pytest.raises(OSError, match="Not a directory"):
        measured(tmp_path / "file" / "store")
