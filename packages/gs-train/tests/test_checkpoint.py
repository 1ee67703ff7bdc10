# SPDX-License-Identifier: Apache-2.0
import errno
import json
import os
import shutil
import subprocess
import sys
import textwrap
from itertools import pairwise

import pytest
import safetensors.torch
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gs_train.checkpoint import blocks, latest_checkpoint, load_checkpoint, save_checkpoint, writer
from gs_train.checkpoint.shards import write_shard
from gs_train.errors import InputError


def some_tensors(seed=0):
    generator = torch.Generator().manual_seed(seed)
    return {
        "means": torch.randn(50, 3, generator=generator),
        "shN": torch.randn(50, 15, 3, generator=generator),
        "opacities": torch.randn(50, generator=generator),
        "count": torch.tensor(7),
        "none": torch.empty(0, 3),
        "flags": torch.rand(50, generator=generator) > 0.5,
        "ids": torch.arange(50, dtype=torch.int32),
        "half": torch.randn(9, generator=generator).bfloat16(),
        "strided": torch.randn(6, 50, generator=generator).T,
    }


def assert_same(a, b):
    assert list(a) == list(b)
    for name in a:
        assert a[name].dtype == b[name].dtype
        assert a[name].shape == b[name].shape
        assert torch.equal(
            a[name].contiguous().reshape(-1).view(torch.uint8),
            b[name].contiguous().reshape(-1).view(torch.uint8),
        ), name


@pytest.mark.parametrize("max_shard_bytes", [1, 100, 1000, 4096, 1 << 30])
def test_tensors_and_state_come_back_bit_for_bit(tmp_path, max_shard_bytes):
    tensors = some_tensors()
    tensors["means"][3] = torch.tensor([float("nan"), -0.0, float("inf")])
    state = {"rng": [1, 2], "schedule": {"images": 12, "lr": 0.1 + 0.2}, "name": "Füchse"}
    path = save_checkpoint(
        tmp_path, step=300, tensors=tensors, state=state, max_shard_bytes=max_shard_bytes
    )
    assert path == tmp_path / "step_000300"
    loaded = load_checkpoint(path)
    assert loaded.step == 300
    assert loaded.state == state
    assert_same(loaded.tensors, tensors)


@settings(max_examples=60, deadline=None)
@given(
    rows=st.lists(st.integers(0, 40), max_size=6),
    widths=st.lists(st.integers(0, 5), min_size=6, max_size=6),
    limit=st.integers(1, 500),
)
def test_shards_are_filled_up_and_hold_every_row_once(rows, widths, limit):
    tensors = {str(i): torch.empty(n, w) for i, (n, w) in enumerate(zip(rows, widths))}
    plan = writer.plan_shards(tensors, limit)
    pieces = [piece for shard in plan for piece in shard]
    for name, tensor in tensors.items():
        mine = [(p.start, p.stop) for p in pieces if p.name == name]
        assert mine[0][0] == 0
        assert mine[-1][1] == len(tensor)
        assert all(a[1] == b[0] for a, b in pairwise(mine))
    for shard, after in zip(plan, [*plan[1:], []]):
        size = sum((p.stop - p.start) * tensors[p.name].shape[1] * 4 for p in shard)
        assert size <= limit or [p.stop - p.start for p in shard if tensors[p.name].numel()] == [1]
        assert len({p.name for p in shard}) == len(shard)
        if after:  # nothing more would have fitted
            assert size + tensors[after[0].name].shape[1] * 4 > limit


def test_the_shards_are_what_safetensors_reads(tmp_path):
    tensors = some_tensors()
    path = save_checkpoint(tmp_path, step=1, tensors=tensors, state={})
    assert_same(
        dict(sorted(safetensors.torch.load_file(path / "00000.safetensors").items())),
        dict(sorted(tensors.items())),
    )


def test_blocks_smaller_than_a_tensor_change_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(blocks, "BLOCK_BYTES", 64)
    tensors = some_tensors()
    path = save_checkpoint(tmp_path, step=1, tensors=tensors, state={})
    assert_same(load_checkpoint(path).tensors, tensors)
    assert_same(
        dict(sorted(safetensors.torch.load_file(path / "00000.safetensors").items())),
        dict(sorted(tensors.items())),
    )


def test_parameters_are_saved_as_their_values(tmp_path):
    weights = torch.nn.Parameter(torch.randn(4, 3))
    path = save_checkpoint(tmp_path, step=1, tensors={"w": weights}, state={}, max_shard_bytes=16)
    loaded = load_checkpoint(path).tensors["w"]
    assert torch.equal(loaded, weights)
    assert not loaded.requires_grad


def test_the_newest_are_kept_and_leftovers_of_a_crash_removed(tmp_path):
    (tmp_path / "step_000001.tmp").mkdir()
    (tmp_path / "step_000001.tmp" / "00000.safetensors").write_bytes(b"half")
    (tmp_path / "notes.tmp").mkdir()
    (tmp_path / "mine.txt").write_text("not ours")
    for step in (100, 200, 300, 400):
        save_checkpoint(tmp_path, step=step, tensors={"a": torch.ones(1)}, state={}, keep=2)
    assert sorted(os.listdir(tmp_path)) == ["mine.txt", "notes.tmp", "step_000300", "step_000400"]
    save_checkpoint(tmp_path, step=500, tensors={}, state={}, keep=1)
    assert sorted(os.listdir(tmp_path)) == ["mine.txt", "notes.tmp", "step_000500"]
    assert load_checkpoint(tmp_path / "step_000500").tensors == {}


def test_the_latest_is_the_highest_step_that_is_complete(tmp_path):
    assert latest_checkpoint(tmp_path / "none") is None
    assert latest_checkpoint(tmp_path) is None
    for step in (999_999, 1_000_000):
        save_checkpoint(tmp_path, step=step, tensors={}, state={}, keep=5)
    (tmp_path / "step_2000000").mkdir()
    (tmp_path / "step_3000000.tmp").mkdir()
    assert latest_checkpoint(tmp_path) == tmp_path / "step_1000000"


def test_saving_a_step_again_never_touches_the_saved_one_before_the_new_is_whole(
    tmp_path, monkeypatch
):
    for value in range(4):
        save_checkpoint(tmp_path, step=5, tensors={}, state={"value": value}, keep=1)
        latest = latest_checkpoint(tmp_path)
        assert load_checkpoint(latest).state == {"value": value}
        assert os.listdir(tmp_path) == [latest.name]
    monkeypatch.setattr(writer, "write_shard", fail_with(RuntimeError("no")))
    with pytest.raises(RuntimeError, match="no"):
        save_checkpoint(tmp_path, step=5, tensors=some_tensors(), state={}, keep=1)
    assert load_checkpoint(latest_checkpoint(tmp_path)).state == {"value": 3}


def fail_with(error):
    def fail(*_, **__):
        raise error

    return fail


def test_a_disk_that_becomes_full_leaves_the_older_checkpoint_alone(tmp_path, monkeypatch):
    save_checkpoint(tmp_path, step=1, tensors=some_tensors(), state={})
    calls = []

    def write(path, tensors):
        calls.append(path)
        if len(calls) == 3:
            path.write_bytes(b"half")
            raise OSError(errno.ENOSPC, "No space left on device")
        return write_shard(path, tensors)

    monkeypatch.setattr(writer, "write_shard", write)
    with pytest.raises(InputError, match=r"disk became full while writing .*step_000002"):
        save_checkpoint(tmp_path, step=2, tensors=some_tensors(), state={}, max_shard_bytes=1000)
    assert os.listdir(tmp_path) == ["step_000001"]
    assert_same(load_checkpoint(tmp_path / "step_000001").tensors, some_tensors())


def test_a_disk_too_small_is_told_before_anything_is_written(tmp_path, monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(10, 5, 5))
    with pytest.raises(InputError, match="bytes free for the checkpoint of step 2, got 5"):
        save_checkpoint(tmp_path / "new", step=2, tensors=some_tensors(), state={})
    assert os.listdir(tmp_path) == []


def test_what_cannot_be_saved_is_refused_before_anything_is_written(tmp_path):
    with pytest.raises(TypeError, match="JSON"):
        save_checkpoint(tmp_path, step=1, tensors={}, state={"a": torch.ones(1)})
    with pytest.raises(ValueError, match=r"dtype must be one of .*, got torch.complex64"):
        save_checkpoint(tmp_path, step=1, tensors={"a": torch.ones(1) * 1j}, state={})
    for bad in ({"step": -1}, {"keep": 0}, {"max_shard_bytes": 0}):
        with pytest.raises(ValueError, match=r"must be at least 0, .* at least 1, got"):
            save_checkpoint(tmp_path, **{"step": 1, "tensors": {}, "state": {}, **bad})
    assert os.listdir(tmp_path) == []


def saved(folder):
    return save_checkpoint(
        folder, step=1, tensors=some_tensors(), state={"x": 1.5}, max_shard_bytes=2000
    )


def test_any_flipped_bit_of_any_file_is_found(tmp_path):
    path = saved(tmp_path)
    files = sorted(path.iterdir())
    assert len(files) > 3
    for file in files:
        good = file.read_bytes()
        # Head, middle and end: lengths and JSON headers as well as data.
        for position in {0, 7, 8, 9, 30, len(good) // 2, len(good) - 1} & set(range(len(good))):
            bad = bytearray(good)
            bad[position] ^= 4
            file.write_bytes(bad)
            with pytest.raises(InputError, match=rf"{file.name}.*(damaged|must have)|version"):
                load_checkpoint(path)
        file.write_bytes(good)
    assert_same(load_checkpoint(path).tensors, some_tensors())


@pytest.mark.parametrize("change", ["shorter", "longer", "gone"])
def test_a_shard_of_another_size_is_named_with_both_sizes(tmp_path, change):
    path = saved(tmp_path)
    shard = path / "00001.safetensors"
    data = shard.read_bytes()
    if change == "gone":
        shard.unlink()
    else:
        shard.write_bytes(data[:-1] if change == "shorter" else data + b"x")
    with pytest.raises(InputError, match=rf"00001\.safetensors must have {len(data):,} bytes, got"):
        load_checkpoint(path)


def test_another_format_version_is_refused_with_both_versions(tmp_path):
    path = saved(tmp_path)
    manifest = json.loads((path / "manifest.json").read_text())
    manifest["version"] = 7
    (path / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(
        InputError, match="must have checkpoint format version 1 or 2, got version 7"
    ):
        load_checkpoint(path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "is damaged"),
        ("[]", "must have the format 'gs-train checkpoint'"),
        ('{"format": "other"}', "must have the format 'gs-train checkpoint'"),
        (None, "must be a checkpoint folder: .*No such file"),
    ],
)
def test_a_folder_that_is_no_checkpoint_is_refused(tmp_path, text, message):
    if text is not None:
        (tmp_path / "manifest.json").write_text(text)
    with pytest.raises(InputError, match=message):
        load_checkpoint(tmp_path)


KILLED = """
    # Saves steps 1, 2 and, in a forked child, 3; each child is killed at its own n-th write, sync,
    # rename or removal.
    import os, signal, sys, zlib
    from pathlib import Path
    import torch
    from gs_train.checkpoint import save_checkpoint

    CALLS = [(os, "fsync"), (os, "rename"), (os, "unlink"), (os, "rmdir"), (zlib, "crc32")]

    def save(folder, step):
        tensors = {"a": torch.full((40, 4), float(step)), "b": torch.arange(100) * step}
        limits = {"keep": 2, "max_shard_bytes": 500}
        save_checkpoint(folder, step=step, tensors=tensors, state={"step": step}, **limits)

    def child(folder, deadline):
        calls = 0
        def counted(real):
            def call(*args, **options):
                nonlocal calls
                calls += 1
                if calls == deadline:
                    os.kill(os.getpid(), signal.SIGKILL)
                return real(*args, **options)
            return call
        for module, name in CALLS:
            setattr(module, name, counted(getattr(module, name)))
        save(folder, 3)

    for deadline in range(1, 1000):
        folder = Path(sys.argv[1], str(deadline))
        save(folder, 1)
        save(folder, 2)
        if (pid := os.fork()) == 0:
            try:
                child(folder, deadline)
            finally:
                os._exit(0)
        if os.waitpid(pid, 0)[1] == 0:
            break
    print(deadline)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_kill_at_any_moment_leaves_only_complete_checkpoints(tmp_path):
    run = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(KILLED), str(tmp_path)],
        capture_output=True,
        text=True,
        check=True,
    )
    n_moments = int(run.stdout)
    assert n_moments > 20
    latest_steps = []
    for deadline in range(1, n_moments + 1):
        folder = tmp_path / str(deadline)
        complete = [path for path in folder.iterdir() if not path.name.endswith(".tmp")]
        assert 2 <= len(complete) <= 3
        for path in complete:
            loaded = load_checkpoint(path)
            assert loaded.state == {"step": loaded.step}
            assert torch.equal(loaded.tensors["a"], torch.full((40, 4), float(loaded.step)))
            assert torch.equal(loaded.tensors["b"], torch.arange(100) * loaded.step)
        latest_steps.append(load_checkpoint(latest_checkpoint(folder)).step)
        # The next save cleans up and succeeds.
        save_checkpoint(folder, step=4, tensors={}, state={}, keep=2)
        assert sorted(os.listdir(folder))[-1] == "step_000004"
        assert len(os.listdir(folder)) == 2
    assert set(latest_steps) == {2, 3}
    assert latest_steps == sorted(latest_steps)


@pytest.mark.gpu
def test_tensors_travel_between_devices(tmp_path):
    tensors = some_tensors()
    path = save_checkpoint(
        tmp_path, step=1, tensors={k: v.cuda() for k, v in tensors.items()}, state={}
    )
    assert_same(load_checkpoint(path).tensors, tensors)
    on_device = load_checkpoint(path, "cuda").tensors
    assert all(value.device.type == "cuda" for value in on_device.values())
    assert_same({k: v.cpu() for k, v in on_device.items()}, tensors)
