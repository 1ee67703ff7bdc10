# SPDX-License-Identifier: Apache-2.0
"""Work goes on when nobody reads any more what it says."""

import errno
import io
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from gs_train.files.atomic import replacing
from gs_train.machine.output import Output

SCRIPT = """
import sys
from gs_train.machine.output import outliving_readers
with outliving_readers():
    for _ in range(3):
        print("said", flush=True)
        sys.stderr.write("told\\n")
    open({path!r}, "w").write("done")
"""


@pytest.mark.parametrize("how", ["broken", "closed"])
def test_output_that_nobody_reads_ends_nothing(tmp_path: Path, how: str) -> None:
    done = tmp_path / "done"
    command = [sys.executable, "-c", SCRIPT.format(path=str(done))]
    if how == "closed":
        command = ["sh", "-c", 'exec "$@" >&- 2>&-', "sh", *command]
    reader, writer = os.pipe()
    os.close(reader)
    ended = subprocess.run(command, stdout=writer, stderr=writer, check=False)
    os.close(writer)
    assert ended.returncode == 0
    assert done.read_text() == "done"


def test_output_keeps_what_else_a_stream_has(capsys: pytest.CaptureFixture[str]) -> None:
    output = Output(sys.stdout)
    assert output.write("a line\n") == 7
    output.flush()
    assert capsys.readouterr().out == "a line\n"
    assert output.encoding == sys.stdout.encoding


def test_a_line_of_another_thread_does_not_come_between() -> None:
    written = io.StringIO()
    output = Output(written)
    output.write("step 3 of 4")
    other = threading.Thread(target=print, args=("error: a rank is gone",), kwargs={"file": output})
    other.start()
    other.join()
    output.write("\nstep 4")
    assert written.getvalue() == "error: a rank is gone\nstep 3 of 4\n"
    output.flush()
    assert written.getvalue().endswith("\nstep 4")


def test_what_has_no_end_of_line_is_written_at_the_end() -> None:
    script = "from gs_train.machine.output import outliving_readers\n"
    script += "with outliving_readers(): print('12', end='')"
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, check=True)
    assert ran.stdout == b"12"


def test_a_write_that_fails_names_its_file(tmp_path: Path) -> None:
    path = tmp_path / "file"
    with pytest.raises(OSError, match="error") as failed, replacing(path):
        raise OSError(errno.EIO, "an error of the disk")
    assert failed.value.filename == str(path)
