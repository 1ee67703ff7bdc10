# SPDX-License-Identifier: Apache-2.0
import errno
import fcntl
import os
import shutil

import pytest

from gs_train.errors import InputError
from gs_train.files.atomic import replacing, require_free


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


def test_a_name_for_a_temporary_file_cannot_be_foreseen(tmp_path):
    victim = tmp_path / "victim"
    victim.write_bytes(b"mine")
    (tmp_path / ".a.bin.tmp").symlink_to(victim)
    names = []
    for _ in range(2):
        with replacing(tmp_path / "a.bin") as file:
            names += [n for n in os.listdir(tmp_path) if n.startswith(".gs-train-")]
            file.write(b"new")
    assert len(set(names)) == 2
    assert victim.read_bytes() == b"mine"
    assert (tmp_path / "a.bin").read_bytes() == b"new"


def test_the_longest_name_that_a_file_may_have_can_be_written(tmp_path):
    with replacing(tmp_path / ("x" * 255)) as file:
        file.write(b"new")
    assert [len(name) for name in os.listdir(tmp_path)] == [255]


def test_what_a_crash_left_goes_and_what_another_writes_stays(tmp_path):
    stale, other = (tmp_path / f".gs-train-{k * 16}.tmp" for k in "01")
    stale.write_bytes(b"half")
    with open(other, "wb") as writing:
        fcntl.flock(writing, fcntl.LOCK_EX)
        with replacing(tmp_path / "a.bin") as file:
            file.write(b"new")
        assert sorted(os.listdir(tmp_path)) == sorted([other.name, "a.bin"])


def test_two_writers_of_one_file_do_not_meet(tmp_path):
    path = tmp_path / "a.bin"
    with replacing(path) as first:
        first.write(b"first")
        with replacing(path) as second:
            second.write(b"second")
        assert path.read_bytes() == b"second"
    assert path.read_bytes() == b"first"
    assert os.listdir(tmp_path) == ["a.bin"]


def test_a_new_file_has_the_permissions_of_any_other(tmp_path):
    with replacing(tmp_path / "a.bin") as file:
        file.write(b"new")
    (tmp_path / "b.bin").write_bytes(b"new")
    assert (tmp_path / "a.bin").stat().st_mode == (tmp_path / "b.bin").stat().st_mode
