# SPDX-License-Identifier: Apache-2.0
import errno
import os
import shutil

import pytest

from gs_train.atomic import replacing, require_free
from gs_train.errors import InputError


def write_then_raise(path, error):
    with replacing(path) as file:
        file.write(b"new")
        raise error


def test_the_file_appears_only_when_the_block_ends(tmp_path):
    path = tmp_path / "new" / "a.bin"
    with replacing(path) as file:
        file.write(b"12")
        assert not path.exists()
    assert path.read_bytes() == b"12"
    assert os.listdir(path.parent) == ["a.bin"]


def test_a_failing_block_leaves_the_old_file_and_nothing_else(tmp_path):
    path = tmp_path / "a.bin"
    path.write_bytes(b"old")
    with pytest.raises(KeyError):
        write_then_raise(path, KeyError("x"))
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["a.bin"]


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_a_disk_that_becomes_full_is_an_input_error(tmp_path, number):
    path = tmp_path / "a.bin"
    with pytest.raises(InputError, match=r"disk became full while writing .*a\.bin"):
        write_then_raise(path, OSError(number, os.strerror(number)))
    assert os.listdir(tmp_path) == []


def test_other_os_errors_stay_what_they_are(tmp_path):
    with pytest.raises(PermissionError), replacing(tmp_path / "a.bin"):
        raise PermissionError(errno.EACCES, "no")


def test_too_little_space_is_told_with_both_numbers(tmp_path, monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(10, 5, 5))
    require_free(tmp_path / "not" / "yet", 5, "it")
    with pytest.raises(InputError, match=r"must have 6 bytes free for it, got 5"):
        require_free(tmp_path, 6, "it")
