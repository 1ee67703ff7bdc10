# SPDX-License-Identifier: Apache-2.0
import contextlib
import csv
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from gs_train.errors import InputError
from gs_train.runs.logs import RunLog


def rows(folder):
    with open(folder / "log.csv", newline="") as file:
        return list(csv.DictReader(file))


def events(folder):
    accumulator = EventAccumulator(str(folder / "tensorboard"))
    accumulator.Reload()
    return accumulator


def test_scalars_reach_both_logs_before_the_call_returns(tmp_path):
    log = RunLog(tmp_path)
    log.scalars(100, {"loss": 0.1 + 0.2, "n": torch.tensor(7)})
    assert rows(tmp_path) == [{"step": "100", "loss": repr(0.1 + 0.2), "n": "7.0"}]
    assert [e.step for e in events(tmp_path).Scalars("loss")] == [100]
    log.scalars(200, {"loss": 0.25, "n": 8})
    assert [float(row["loss"]) for row in rows(tmp_path)] == [0.1 + 0.2, 0.25]
    log.close()
    assert [e.value for e in events(tmp_path).Scalars("n")] == [7, 8]


def test_a_scalar_that_comes_later_gets_its_own_column(tmp_path):
    with RunLog(tmp_path, tensorboard=False) as log:
        log.scalars(1, {"loss": 1})
        log.scalars(2, {"psnr": 20})
        log.scalars(3, {"psnr": 21, "loss": 0.5})
    assert rows(tmp_path) == [
        {"step": "1", "loss": "1.0", "psnr": ""},
        {"step": "2", "loss": "", "psnr": "20.0"},
        {"step": "3", "loss": "0.5", "psnr": "21.0"},
    ]


def test_a_resumed_run_forgets_what_came_after_its_step_and_goes_on(tmp_path):
    with RunLog(tmp_path) as log:
        for step in (100, 200, 300):
            log.scalars(step, {"loss": step})
    with RunLog(tmp_path, resume_step=200) as log:
        assert [row["step"] for row in rows(tmp_path)] == ["100", "200"]
        log.scalars(300, {"loss": 1})
    assert [row["loss"] for row in rows(tmp_path)] == ["100.0", "200.0", "1.0"]
    values = [(e.step, e.value) for e in events(tmp_path).Scalars("loss")]
    assert values == [(100, 100), (200, 200), (300, 1)]


def test_a_line_that_a_killed_run_left_unfinished_is_dropped(tmp_path):
    (tmp_path / "log.csv").write_text("step,loss\n1,0.5\n2,0.2")
    RunLog(tmp_path, resume_step=10, tensorboard=False).close()
    assert rows(tmp_path) == [{"step": "1", "loss": "0.5"}]


@pytest.mark.parametrize(
    "content",
    [
        "",
        "garbage\n1\n",
        "step,loss\nx,1\n1,2,3\n",
        f"step,loss\n1,{'9' * 200_000}\n",
        f"step,{'l' * 200_000}\n1,2\n",
        f"step,loss\n{'9' * 5000},1\n",
    ],
)
def test_a_log_that_cannot_be_read_is_begun_anew(tmp_path, content):
    (tmp_path / "log.csv").write_text(content)
    with RunLog(tmp_path, resume_step=10, tensorboard=False) as log:
        log.scalars(11, {"loss": 1})
    assert rows(tmp_path) == [{"step": "11", "loss": "1.0"}]


def test_a_new_run_begins_a_new_log(tmp_path):
    for value in (1, 2):
        with RunLog(tmp_path) as log:
            log.scalars(value, {"loss": value})
    assert rows(tmp_path) == [{"step": "2", "loss": "2.0"}]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="the system has no /dev/full")
def test_a_full_disk_is_one_clear_error(tmp_path):
    log = RunLog(tmp_path, tensorboard=False)
    log.scalars(0, {"loss": 2.0})
    log._file.close()
    log._file = full = open("/dev/full", "a")  # noqa: SIM115 (closing it fails too)
    with pytest.raises(InputError, match=r"the disk became full while writing .*log\.csv"):
        log.scalars(1, {"loss": 1.0})
    log._file = None
    with contextlib.suppress(OSError):
        full.close()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="the system has no /dev/full")
def test_a_full_disk_while_closing_is_told_unless_something_worse_has_been(tmp_path):
    def use(error=None):
        with RunLog(tmp_path) as log:
            log._file.close()
            log._file = open("/dev/full", "a")  # noqa: SIM115 (the log closes it)
            log._file.write("left in the buffer")
            if error is not None:
                raise error

    with pytest.raises(InputError, match=r"the disk became full while writing .*log\.csv"):
        use()
    with pytest.raises(KeyError, match="worse"):
        use(KeyError("worse"))


def test_closing_twice_is_fine_and_using_it_then_is_not(tmp_path):
    log = RunLog(tmp_path)
    log.close()
    log.close()
    with pytest.raises(RuntimeError, match="must be open, it was closed"):
        log.scalars(1, {"loss": 1})


def test_tensorboard_is_imported_only_for_a_log_and_without_warnings(tmp_path):
    code = (
        "import sys; from gs_train.runs.logs import RunLog;"
        "assert 'tensorboard' not in sys.modules;"
        f"RunLog({str(tmp_path)!r}).close(); assert 'tensorboard' in sys.modules"
    )
    run = subprocess.run(
        [sys.executable, "-W", "always", "-c", code], capture_output=True, text=True, env=os.environ
    )
    assert (run.returncode, run.stdout, run.stderr) == (0, "", "")


@pytest.mark.parametrize("name", ["log.csv", "tensorboard"])
def test_a_log_that_is_removed_ends_alone_with_one_line(tmp_path, capsys, name):
    with RunLog(tmp_path) as log:
        log.scalars(1, {"loss": 2})
        path = tmp_path / name
        shutil.rmtree(path) if path.is_dir() else path.unlink()
        for step in (2, 3):
            log.scalars(step, {"loss": step})
    (line,) = capsys.readouterr().err.splitlines()
    assert line == f"{path} ends, it cannot be written: it was removed"
    if name == "log.csv":
        assert [e.step for e in events(tmp_path).Scalars("loss")] == [1, 2, 3]
    else:
        assert [row["step"] for row in rows(tmp_path)] == ["1", "2", "3"]


def test_a_log_that_is_no_file_ends_alone(tmp_path, capsys):
    (tmp_path / "log.csv").mkdir()
    with RunLog(tmp_path, resume_step=3) as log:
        log.scalars(4, {"loss": 2})
    assert [e.step for e in events(tmp_path).Scalars("loss")] == [4]
    said = capsys.readouterr().err
    assert f"{tmp_path}/log.csv begins anew, it cannot be read: Is a directory" in said
    assert f"{tmp_path}/log.csv ends, it cannot be written: Is a directory" in said
