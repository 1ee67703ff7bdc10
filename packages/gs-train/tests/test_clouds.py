# SPDX-License-Identifier: Apache-2.0
"""Stores that begin from a cloud: the rows of a start in memory, or nothing."""

from __future__ import annotations

import dataclasses
import errno
import itertools
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from made_clouds import FIRST, hills, make_in_memory, make_store, rows_by_key, write_cloud
from numpy.typing import NDArray

from gs_pinned import BlockStore
from gs_train.blocks.block_planes import first_row_bytes
from gs_train.blocks.stored_rows import StoredRows
from gs_train.clouds.first_store import first_store
from gs_train.clouds.making import place_of_making
from gs_train.clouds.regions import GROUP, Spill, group_boxes
from gs_train.clouds.spacing import Groups, region_spacing
from gs_train.clouds.stored_scene import stored_scene
from gs_train.data import load_capture
from gs_train.errors import InputError
from gs_train.files.file_lock import folder_lock
from gs_train.machine.interrupt import Interrupted, StopRequest
from gs_train.options.config import FitConfig
from gs_train.rows.morton import morton_order
from gs_train.scene.neighbours import neighbour_spacing
from gs_train.scene.scene import Scene

N = 6000
LEAST_MEMORY = 3 * N  # in bytes: regions of a few points


@pytest.fixture(scope="module")
def cloud(tmp_path_factory: pytest.TempPathFactory) -> Path:
    points = hills(N, strays=8)
    points[17] = np.nan
    return write_cloud(tmp_path_factory.mktemp("cloud") / "cloud.ply", points)


@pytest.fixture(scope="module")
def expected(cloud: Path) -> dict[str, bytes]:
    make_in_memory(cloud, cloud.with_name("in memory"))
    return rows_by_key(cloud.with_name("in memory"))


# ---------------------------------------------------------------------- same rows


@pytest.mark.parametrize("memory", [LEAST_MEMORY, 100_000, 1 << 30])
@pytest.mark.parametrize("block_rows", [8, 1024])
def test_rows_are_those_of_a_start_in_memory(
    cloud: Path, expected: dict[str, bytes], tmp_path: Path, memory: int, block_rows: int
) -> None:
    first = dataclasses.replace(FIRST, block_rows=block_rows)
    assert make_store(cloud, tmp_path / "s", first, memory=memory) == N - 1
    assert rows_by_key(tmp_path / "s") == expected
    assert os.listdir(tmp_path) == ["s"]


@pytest.mark.parametrize("memory", [LEAST_MEMORY, 1 << 30])
@pytest.mark.parametrize("limit", [5, 100, 1999, N - 40, N - 2])
def test_clouds_are_thinned_to_the_cap_as_in_memory(
    cloud: Path, tmp_path: Path, memory: int, limit: int
) -> None:
    n = make_store(cloud, tmp_path / "s", memory=memory, limit=limit)
    make_in_memory(cloud, tmp_path / "m", limit=limit)
    assert n <= limit
    assert rows_by_key(tmp_path / "s") == rows_by_key(tmp_path / "m")


def test_lines_of_text_begin_the_same_rows(tmp_path: Path) -> None:
    path = write_cloud(tmp_path / "text.ply", hills(3000), as_text=True)
    make_store(path, tmp_path / "s", memory=60_000)
    make_in_memory(path, tmp_path / "m")
    assert rows_by_key(tmp_path / "s") == rows_by_key(tmp_path / "m")


@settings(max_examples=25, deadline=None)
@given(
    n=st.integers(4, 200),
    seed=st.integers(0, 99),
    memory=st.sampled_from([3000, 9000, 10**6]),
    limit=st.one_of(st.none(), st.integers(4, 200)),
)
def test_small_clouds_begin_the_same_rows(
    n: int, seed: int, memory: int, limit: int | None
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = write_cloud(Path(folder, "c.ply"), hills(n, seed))
        make_store(path, Path(folder, "s"), memory=memory, limit=limit)
        make_in_memory(path, Path(folder, "m"), limit=limit)
        assert rows_by_key(Path(folder, "s")) == rows_by_key(Path(folder, "m"))


def test_a_store_that_was_made_is_opened_and_its_boxes_hold_its_rows(
    cloud: Path, tmp_path: Path
) -> None:
    make_store(cloud, tmp_path / "s", memory=100_000)
    with StoredRows.open(tmp_path / "s", slots=8, host_blocks=8) as rows:
        assert (len(rows), rows.step) == (N - 1, 0)
        with BlockStore.open(tmp_path / "s", read_only=True) as store:
            for block in store.blocks:
                means = store.read([block], ["geometry"])["geometry"][:, :3]
                assert (rows.boxes.lower[block] <= means).all()
                assert (means <= rows.boxes.upper[block]).all()


def test_a_first_row_takes_little_of_the_drive(cloud: Path, tmp_path: Path) -> None:
    first = dataclasses.replace(FIRST, sh_degree=3, block_rows=1024)
    n = make_store(cloud, tmp_path / "s", first)
    with BlockStore.open(tmp_path / "s", read_only=True) as store:
        assert store.stats.live_bytes / n == pytest.approx(first_row_bytes(1024), rel=0.1)
    assert first_row_bytes(1024) <= 48


def test_files_of_regions_go_as_the_store_grows(
    cloud: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, left, one_at_a_time = Spill.take, [], threading.Lock()

    def take(self: Spill, region: int) -> object:
        with one_at_a_time:
            taken = before(self, region)
            paths = list((tmp_path / "s.making").glob("region-*"))
            left.append(sum(path.stat().st_size for path in paths))
        return taken

    monkeypatch.setattr(Spill, "take", take)
    make_store(cloud, tmp_path / "s", memory=40_000)
    assert len(left) > 20
    assert left == sorted(left, reverse=True)
    assert left[len(left) // 2] < 0.6 * 19 * N
    assert left[-1] == 0


def test_a_run_with_init_begins_the_rows_that_its_scene_has_in_memory(
    tiny_capture: Path, tmp_path: Path
) -> None:
    capture = load_capture(tiny_capture, cache_dir=tmp_path)
    scene = Scene.load(capture, torch.device("cpu"))
    path = write_cloud(tmp_path / "c.ply", hills(2000))
    config = FitConfig(data=tiny_capture, out=tmp_path / "run", init=path, sh_degree=1)
    adam = {"betas": FIRST.betas, "eps": FIRST.eps, "ceilings": FIRST.ceilings}
    options = {"memory": 50_000, "stop": StopRequest()}
    n = first_store(scene, config, path, tmp_path / "s", block_rows=64, **adam, **options)
    rows = scene.initial_rows(config, StopRequest())
    StoredRows.create(tmp_path / "m", rows, torch.arange(n).int(), block_rows=64, **adam)
    assert rows_by_key(tmp_path / "s") == rows_by_key(tmp_path / "m")


# ---------------------------------------------------------------------- neighbours


@settings(max_examples=60, deadline=None)
@given(
    n=st.integers(4, 3000),
    cuts=st.lists(st.floats(0, 1), max_size=6),
    seed=st.integers(0, 99),
    most=st.sampled_from([1, GROUP, 10 * GROUP]),
    grid=st.booleans(),
)
def test_spacings_of_regions_are_those_of_the_cloud(
    n: int, cuts: list[float], seed: int, most: int, grid: bool
) -> None:
    points = hills(n, seed)
    if grid:
        points = np.round(points / 8).astype(np.float32)
    points = points[morton_order(torch.from_numpy(points)).numpy()]
    ends = sorted({0, *(int(cut * n) for cut in cuts), n})
    regions = [points[a:b] for a, b in itertools.pairwise(ends)]
    groups = Groups([group_boxes(own) for own in regions])

    def read(region: int, which: NDArray[np.int64]) -> NDArray[np.float32]:
        return np.concatenate([regions[region][g * GROUP : (g + 1) * GROUP] for g in which])

    found = [region_spacing(k, own, groups, read, most) for k, own in enumerate(regions)]
    assert np.concatenate(found).tobytes() == neighbour_spacing(points).tobytes()


# ---------------------------------------------------------------------- nothing by half


@pytest.mark.parametrize(
    "stages",
    [["take"], pytest.param(["append", "sort", "set_spacing", "take"], marks=pytest.mark.long)],
)
def test_a_start_that_is_killed_leaves_no_store_and_the_next_one_clears_up(
    cloud: Path, expected: dict[str, bytes], tmp_path: Path, stages: list[str]
) -> None:
    for stage in stages:
        killed = subprocess.run(
            [sys.executable, "-c", _KILLED, str(cloud), str(tmp_path / "s"), stage],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
            check=False,
            capture_output=True,
        )
        assert killed.returncode == -signal.SIGKILL, killed.stderr
        assert os.listdir(tmp_path) == ["s.making"]
    make_store(cloud, tmp_path / "s")
    assert os.listdir(tmp_path) == ["s"]
    assert rows_by_key(tmp_path / "s") == expected


_KILLED = """
import os, signal, sys
from pathlib import Path
from made_clouds import make_store
from gs_train.clouds.regions import Spill
cloud, store, stage = sys.argv[1:]
before, calls = getattr(Spill, stage), []
def killing(*arguments):
    calls.append(None)
    if len(calls) == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    return before(*arguments)
setattr(Spill, stage, killing)
make_store(Path(cloud), Path(store), memory=100_000)
"""


@pytest.mark.parametrize("kills", [8, pytest.param(60, marks=pytest.mark.long)])
def test_a_start_that_is_killed_at_any_change_of_a_file_leaves_no_store_or_all_of_it(
    cloud: Path, expected: dict[str, bytes], tmp_path: Path, kills: int
) -> None:
    """Each start goes on in the folder that the killed one before it left."""
    ended = subprocess.run(
        [sys.executable, "-c", _KILLED_ANYWHERE, str(cloud), str(tmp_path / "s"), str(kills)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        check=False,
        capture_output=True,
        text=True,
    )
    assert ended.returncode == 0, ended.stderr
    assert int(ended.stdout) > kills // 2
    make_store(cloud, tmp_path / "s")
    assert os.listdir(tmp_path) == ["s"]
    assert rows_by_key(tmp_path / "s") == expected


_KILLED_ANYWHERE = """
import os, random, shutil, signal, sys
from pathlib import Path
from made_clouds import make_store, rows_by_key
from gs_pinned import BlockStore

cloud, store, kills = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
CHANGES = ("open", "os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.truncate")

def begin(left, put):
    # Kills itself at one of the calls of the store, or of the changes of files around it.
    create, made, n_calls = BlockStore.create, str(store), 0

    def count(*_):
        nonlocal n_calls
        n_calls += 1
        if n_calls == left:
            os.kill(os.getpid(), signal.SIGKILL)
        return 0

    def audit(event, arguments):
        if event in CHANGES and isinstance(arguments[0], (str, Path)):
            if str(arguments[0]).startswith(made):
                count()

    sys.addaudithook(audit)
    BlockStore.create = lambda *a, **o: create(*a, **{**o, "on_call": count})
    make_store(cloud, store, memory=100_000)
    os.write(put, str(n_calls).encode())

def start(left):
    get, put = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            begin(left, put)
            os._exit(0)
        finally:
            os._exit(3)
    os.close(put)
    said = os.fdopen(get).read()
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), said

status, n_calls = start(0)
assert status == 0, status
shutil.rmtree(store)
choice, n_killed = random.Random(5), 0
for _ in range(kills):
    status, _ = start(choice.randint(1, int(n_calls)))
    assert status in (0, -signal.SIGKILL), status
    n_killed += status != 0
    left = set(os.listdir(store.parent))
    assert left <= {"s", "s.making"}, left
    if "s" in left:
        # The rename has happened: the store is whole, whatever came after.
        assert len(rows_by_key(store)["key"]) > 0
        shutil.rmtree(store)
print(n_killed)
"""


@pytest.mark.parametrize("stage", ["append", "sort", "set_spacing", "take"])
def test_a_full_drive_leaves_nothing(
    cloud: Path, tmp_path: Path, stage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(tmp_path))

    monkeypatch.setattr(Spill, stage, full)
    with pytest.raises(OSError, match="No space left"):
        make_store(cloud, tmp_path / "s", memory=100_000)
    assert not os.listdir(tmp_path)


def test_a_drive_that_cannot_hold_the_store_is_found_at_the_beginning(
    cloud: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=50_000))
    with pytest.raises(InputError, match="free for a store of first rows, got 50,000"):
        make_store(cloud, tmp_path / "s")
    assert not os.listdir(tmp_path)


@pytest.mark.parametrize("pieces", [0, 2, 30])
def test_ctrl_c_leaves_nothing(cloud: Path, tmp_path: Path, pieces: int) -> None:
    class Pressed(StopRequest):
        checks = 0

        def check(self, work: str) -> None:
            self.checks += 1
            if self.checks > pieces:
                self.signal_number = signal.SIGINT
            super().check(work)

    with pytest.raises(Interrupted, match="nothing is left of it"):
        stored_scene(cloud, tmp_path / "s", FIRST, memory=100_000, stop=Pressed())
    assert not os.listdir(tmp_path)


# ---------------------------------------------------------------------- what is refused


def test_two_starts_of_one_store_at_once_are_refused(cloud: Path, tmp_path: Path) -> None:
    folder = place_of_making(tmp_path / "s")
    folder.mkdir()
    with folder_lock(folder), pytest.raises(InputError, match="another process makes this store"):
        make_store(cloud, tmp_path / "s")
    make_store(cloud, tmp_path / "s")


def test_a_folder_that_holds_something_is_refused(cloud: Path, tmp_path: Path) -> None:
    (tmp_path / "s").mkdir()
    (tmp_path / "s" / "photograph").touch()
    with pytest.raises(InputError, match="must be an empty folder or none yet"):
        make_store(cloud, tmp_path / "s")


def test_memory_that_is_too_small_is_refused_and_what_suffices_is_named(
    cloud: Path, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match=r"memory must be at least .* got 3,000 bytes") as refused:
        make_store(cloud, tmp_path / "s", memory=3000)
    least = int(str(refused.value).split("(")[1].split()[0].replace(",", ""))
    make_store(cloud, tmp_path / "s", memory=least + 20_000)


def test_points_in_few_places_are_refused_where_they_are_thinned(tmp_path: Path) -> None:
    points = np.repeat(np.eye(3, dtype=np.float32), 4, 0)
    with pytest.raises(InputError, match="must hold points in 4 places, got 3"):
        make_store(write_cloud(tmp_path / "c.ply", points), tmp_path / "s", limit=4)


def test_points_that_crowd_in_one_place_need_memory_together(tmp_path: Path) -> None:
    points = hills(3000)
    points[:2000] = points[0]
    path = write_cloud(tmp_path / "c.ply", points)
    with pytest.raises(InputError, match=r"points of .* as good as in one place"):
        make_store(path, tmp_path / "s", memory=100_000)
    make_store(path, tmp_path / "s", memory=500_000)
    make_in_memory(path, tmp_path / "m")
    assert rows_by_key(tmp_path / "s") == rows_by_key(tmp_path / "m")


@pytest.mark.parametrize(
    ("points", "said"),
    [
        (hills(3), "at least 4 points and at most 2,147,483,648, got 3"),
        (np.ones((5, 3), np.float32), "must not all coincide, got 5"),
        (np.full((5, 3), np.nan, np.float32), "at least 4 points .*, got 0"),
    ],
)
def test_clouds_that_cannot_be_started_from_are_refused(
    tmp_path: Path, points: NDArray[np.float32], said: str
) -> None:
    path = write_cloud(tmp_path / "c.ply", points)
    with pytest.raises(InputError, match=said):
        make_store(path, tmp_path / "s")
    assert os.listdir(tmp_path) == ["c.ply"]
