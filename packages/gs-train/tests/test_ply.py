# SPDX-License-Identifier: Apache-2.0
import os
import shutil
import struct

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gs_train.errors import InputError
from gs_train.files.ply import load_ply, read_ply, write_ply

NAMES = ("means", "scales", "quats", "opacities", "sh0", "shN")


def random_rows(n, k=15, seed=0):
    generator = torch.Generator().manual_seed(seed)

    def values(*shape):
        return torch.randn(*shape, generator=generator)

    return {
        "means": values(n, 3),
        "scales": values(n, 3),
        "quats": values(n, 4),
        "opacities": values(n),
        "sh0": values(n, 1, 3),
        "shN": values(n, k, 3),
    }


def assert_same_bits(a, b):
    assert set(a) == set(b) == set(NAMES)
    for name in NAMES:
        assert a[name].dtype == b[name].dtype == torch.float32
        assert a[name].shape == b[name].shape
        assert torch.equal(
            a[name].contiguous().view(torch.int32), b[name].contiguous().view(torch.int32)
        ), name


def parse(path):
    """An independent reader for float32 files: a dict of lists by property name."""
    data = path.read_bytes()
    head, body = data.split(b"end_header\n", 1)
    lines = head.decode().splitlines()
    assert lines[:2] == ["ply", "format binary_little_endian 1.0"]
    n = int(lines[2].removeprefix("element vertex "))
    names = [line.removeprefix("property float ") for line in lines[3:]]
    assert len(body) == n * len(names) * 4
    rows = list(struct.iter_unpack(f"<{len(names)}f", body))
    return names, [dict(zip(names, row)) for row in rows]


def write_any(path, columns, *, order="<", before="", after=""):
    """A PLY file with the given columns: (name, numpy kind, values)."""
    words = {"f4": "float", "f8": "double", "u1": "uchar", "i4": "int"}
    table = np.empty(len(columns[0][2]), [(name, order + kind) for name, kind, _ in columns])
    for name, _, values in columns:
        table[name] = values
    kind = "binary_little_endian" if order == "<" else "binary_big_endian"
    head = f"ply\nformat {kind} 1.0\ncomment made by hand\n{before}element vertex {len(table)}\n"
    head += "".join(f"property {words[kind]} {name}\n" for name, kind, _ in columns)
    path.write_bytes((head + after + "end_header\n").encode() + table.tobytes())


def columns_of(rows, kind="f4"):
    rest = rows["shN"].permute(0, 2, 1).flatten(1)
    return [
        *((name, kind, rows["means"][:, i]) for i, name in enumerate("xyz")),
        *((f"f_dc_{i}", kind, rows["sh0"][:, 0, i]) for i in range(3)),
        *((f"f_rest_{i}", kind, rest[:, i]) for i in range(rest.shape[1])),
        ("opacity", kind, rows["opacities"]),
        *((f"scale_{i}", kind, rows["scales"][:, i]) for i in range(3)),
        *((f"rot_{i}", kind, rows["quats"][:, i]) for i in range(4)),
    ]


@pytest.mark.parametrize("k", [0, 3, 8, 15])
def test_inria_files_hold_every_value_under_its_name(tmp_path, k):
    rows = random_rows(5, k)
    assert write_ply(tmp_path / "a.ply", rows, chunk_rows=2) == 0
    names, parsed = parse(tmp_path / "a.ply")
    expected = ["x", "y", "z", "nx", "ny", "nz", "f_dc_0", "f_dc_1", "f_dc_2"]
    expected += [f"f_rest_{i}" for i in range(3 * k)]
    expected += ["opacity", "scale_0", "scale_1", "scale_2", "rot_0", "rot_1", "rot_2", "rot_3"]
    assert names == expected
    for i, row in enumerate(parsed):
        assert [row[name] for name in "xyz"] == rows["means"][i].tolist()
        assert row["nx"] == row["ny"] == row["nz"] == 0
        assert [row[f"f_dc_{c}"] for c in range(3)] == rows["sh0"][i, 0].tolist()
        for channel in range(3):
            for base in range(k):
                assert row[f"f_rest_{channel * k + base}"] == rows["shN"][i, base, channel]
        assert row["opacity"] == rows["opacities"][i]
        assert [row[f"scale_{j}"] for j in range(3)] == rows["scales"][i].tolist()
        assert [row[f"rot_{j}"] for j in range(4)] == rows["quats"][i].tolist()


def test_the_gsplat_layout_is_what_gsplat_writes(tmp_path):
    exporter = pytest.importorskip("gsplat.exporter")
    rows = random_rows(7)
    write_ply(tmp_path / "a.ply", rows, layout="gsplat", chunk_rows=3)
    assert (tmp_path / "a.ply").read_bytes() == exporter.export_splats(**rows, format="ply")


finite = st.floats(width=32, allow_nan=False, allow_infinity=False)


@settings(max_examples=40, deadline=None)
@given(
    data=st.data(),
    n=st.integers(0, 9),
    k=st.sampled_from([0, 3, 8, 15]),
    chunk_rows=st.integers(1, 10),
    layout=st.sampled_from(["inria", "gsplat"]),
)
def test_what_was_written_is_read_back_bit_for_bit(
    tmp_path_factory, data, n, k, chunk_rows, layout
):
    path = tmp_path_factory.mktemp("ply") / "a.ply"
    width = 14 + 3 * k
    values = data.draw(st.lists(finite, min_size=width, max_size=width))
    table = (
        torch.tensor(values).repeat(n, 1) * torch.tensor([(-1.0) ** i for i in range(n)])[:, None]
    )
    rows = {
        "means": table[:, :3],
        "scales": table[:, 3:6],
        "quats": table[:, 6:10],
        "opacities": table[:, 10],
        "sh0": table[:, 11:14].reshape(n, 1, 3),
        "shN": table[:, 14:].reshape(n, k, 3),
    }
    assert write_ply(path, rows, layout=layout, chunk_rows=chunk_rows) == 0
    assert_same_bits(load_ply(path, chunk_rows=4), rows)
    sizes = [len(chunk["means"]) for chunk in read_ply(path, chunk_rows)]
    assert sum(sizes) == n
    assert all(size == chunk_rows for size in sizes[:-1])


def test_chunks_numpy_arrays_and_one_mapping_give_the_same_file(tmp_path):
    rows = random_rows(10)
    write_ply(tmp_path / "whole.ply", rows)
    write_ply(tmp_path / "numpy.ply", {name: value.numpy() for name, value in rows.items()})
    chunks = (
        {name: value[a:b] for name, value in rows.items()} for a, b in ((0, 4), (4, 4), (4, 10))
    )
    write_ply(tmp_path / "chunks.ply", chunks, n_rows=10, chunk_rows=3)
    whole = (tmp_path / "whole.ply").read_bytes()
    assert (tmp_path / "numpy.ply").read_bytes() == whole
    assert (tmp_path / "chunks.ply").read_bytes() == whole


@pytest.mark.parametrize("n", [4, 10, 11, 100])
def test_rows_that_are_not_finite_are_left_out_and_counted(tmp_path, n):
    rows = random_rows(n, 3)
    bad = {"means": (0, 1), "shN": (1, 2, 0), "opacities": (1,), "quats": (2, 3)}
    for (name, index), value in zip(bad.items(), (np.nan, np.inf, np.nan, -np.inf)):
        rows[name][index] = value
    # 10, 11 and 100 rows lose a digit of the count (two for 100 -> 97), so the data moves.
    assert write_ply(tmp_path / "a.ply", rows, chunk_rows=2) == 3
    good = {name: value[3:] for name, value in rows.items()}
    assert_same_bits(load_ply(tmp_path / "a.ply"), good)
    write_ply(tmp_path / "good.ply", good)
    assert (tmp_path / "a.ply").read_bytes() == (tmp_path / "good.ply").read_bytes()


def test_a_file_without_any_finite_row_is_refused_and_not_written(tmp_path):
    rows = random_rows(3, 3)
    rows["scales"][:, 1] = np.inf
    with pytest.raises(InputError, match=r"a.ply must hold a finite Gaussian, got NaN .* all 3: "):
        write_ply(tmp_path / "a.ply", rows)
    assert not list(tmp_path.iterdir())


def test_moving_the_data_up_works_across_blocks(tmp_path, monkeypatch):
    monkeypatch.setattr("gs_train.files.ply._MOVE_BYTES", 100)
    rows = random_rows(10, 0)
    rows["means"][4, 0] = np.nan
    assert write_ply(tmp_path / "a.ply", rows) == 1
    kept = torch.arange(10) != 4
    assert_same_bits(load_ply(tmp_path / "a.ply"), {name: v[kept] for name, v in rows.items()})


def test_a_transform_is_applied_to_each_chunk(tmp_path):
    rows = random_rows(5)

    def shifted(chunk):
        assert len(chunk["means"]) <= 2
        return {**chunk, "means": chunk["means"] + 1}

    write_ply(tmp_path / "a.ply", rows, transform=shifted, chunk_rows=2)
    assert_same_bits(load_ply(tmp_path / "a.ply"), {**rows, "means": rows["means"] + 1})


@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize("kind", ["f4", "f8"])
def test_any_order_type_and_company_of_properties_is_read(tmp_path, order, kind):
    rows = random_rows(6)
    columns = columns_of(rows, kind)[::-1]
    # As Nerfstudio and other tools write: normals, colours, an unused element in front.
    columns.insert(5, ("red", "u1", np.arange(6)))
    columns.insert(0, ("nx", "f4", np.zeros(6)))
    after = "element face 0\nproperty list uchar int vertex_indices\n"
    write_any(tmp_path / "a.ply", columns, order=order, before="obj_info x\n", after=after)
    assert_same_bits(load_ply(tmp_path / "a.ply", 4), rows)


def test_bytes_are_read_as_numbers(tmp_path):
    rows = {name: torch.floor(value.abs() * 50) for name, value in random_rows(4, 0).items()}
    write_any(tmp_path / "a.ply", columns_of(rows, "u1"))
    assert_same_bits(load_ply(tmp_path / "a.ply"), rows)


def test_an_element_in_front_of_the_vertices_is_skipped(tmp_path):
    rows = random_rows(2, 0)
    path = tmp_path / "a.ply"
    write_any(path, columns_of(rows), before="element camera 3\nproperty double f\n")
    head, body = path.read_bytes().split(b"end_header\n")
    path.write_bytes(head + b"end_header\n" + bytes(24) + body)
    assert_same_bits(load_ply(path), rows)


def damage(path, rows, kind):
    columns = columns_of(rows)
    if kind == "missing":
        columns = [column for column in columns if column[0] not in ("rot_3", "opacity")]
    elif kind == "rest":
        columns = [column for column in columns if column[0] != "f_rest_44"]
    elif kind == "gap":
        columns = [("f_rest_99" if c[0] == "f_rest_7" else c[0], *c[1:]) for c in columns]
    write_any(path, columns)
    data = path.read_bytes()
    match kind:
        case "truncated":
            path.write_bytes(data[:-1])
        case "header":
            path.write_bytes(data[:100])
        case "ascii":
            path.write_bytes(data.replace(b"binary_little_endian", b"ascii"))
        case "garbage":
            path.write_bytes(bytes(range(256)) * 20)
        case "word":
            path.write_bytes(data.replace(b"property float x", b"property quad x"))
        case "list":
            path.write_bytes(data.replace(b"property float x", b"property list int int x"))
        case "twice":
            path.write_bytes(data.replace(b"property float y", b"property float x"))
        case "no vertex":
            path.write_bytes(b"ply\nformat binary_little_endian 1.0\nend_header\n")
        case "no format":
            path.write_bytes(b"ply\nelement vertex 3\nend_header\n")
        case "empty":
            path.write_bytes(b"")
        case "endless":
            path.write_bytes(b"ply\n" + b"comment\n" * 5000)


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("missing", "lacks opacity, rot_3"),
        ("rest", "0, 9, 24 or 45 properties f_rest_0, .*, got 44"),
        ("gap", "got 45 with gaps in their numbers"),
        ("truncated", r"truncated: its header announces 3 rows \(.* bytes in all\), got"),
        ("header", "header does not end"),
        ("ascii", "its format is ascii"),
        ("garbage", "does not start with 'ply'"),
        ("word", "unknown header line 'property quad x'"),
        ("list", "element vertex has a list property"),
        ("twice", "element vertex: field 'x' occurs more than once"),
        ("no vertex", "has no vertex element"),
        ("no format", "names no format"),
        ("empty", "does not start with 'ply'"),
        ("endless", "header does not end"),
    ],
)
def test_a_file_that_cannot_be_read_is_named_with_the_reason_at_once(tmp_path, kind, reason):
    path = tmp_path / "bad.ply"
    damage(path, random_rows(3), kind)
    with pytest.raises(InputError, match=rf"bad\.ply.*{reason}"):
        read_ply(path)  # without asking for a chunk


def test_a_missing_file_is_an_input_error(tmp_path):
    with pytest.raises(InputError, match=r"none\.ply must be a readable PLY file: No such file"):
        load_ply(tmp_path / "none.ply")


def test_a_full_disk_is_told_before_anything_is_written(tmp_path, monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(10, 5, 5))
    with pytest.raises(InputError, match=r"bytes free for a\.ply \(3 Gaussians\), got 5"):
        write_ply(tmp_path / "a.ply", random_rows(3))
    assert os.listdir(tmp_path) == []


def without(rows, name):
    return {key: value for key, value in rows.items() if key != name}


@pytest.mark.parametrize(
    ("change", "options", "message"),
    [
        (lambda r: without(r, "quats"), {}, r"quats must have shape \(3, 4\), got None"),
        (lambda r: without(r, "means"), {}, "rows must have 'means'"),
        (lambda r: without(r, "shN"), {}, "shN must be .N, K, 3. with K = 0, 3, 8 or 15, got None"),
        (lambda r: {**r, "shN": r["shN"][:, :7]}, {}, r"shN must be .* got \(3, 7, 3\)"),
        (lambda r: {**r, "scales": r["scales"][:2]}, {}, r"scales must have shape \(3, 3\)"),
        (lambda r: {**r, "opacities": r["sh0"]}, {}, r"opacities must have shape \(3,\)"),
        (lambda r: r, {"layout": "obj"}, "layout must be 'inria' or 'gsplat', got 'obj'"),
        (lambda r: r, {"chunk_rows": 0}, "chunk_rows must be at least 1, got 0"),
        (lambda r: [r], {}, "n_rows must be given"),
        (lambda r: [], {"n_rows": 0}, "at least one chunk"),
        (lambda r: [r], {"n_rows": 4}, "rows must add up to n_rows 4, got 3"),
        (lambda r: [r, random_rows(1, 8)], {"n_rows": 4}, r"shN must have shape \(1, 15, 3\)"),
    ],
)
def test_rows_that_make_no_file_leave_the_old_one(tmp_path, change, options, message):
    path = tmp_path / "a.ply"
    path.write_bytes(b"old")
    with pytest.raises(ValueError, match=message):
        write_ply(path, change(random_rows(3)), **options)
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["a.ply"]


def test_memory_is_bounded_by_the_chunk(tmp_path):
    import tracemalloc

    chunk = {name: value.numpy() for name, value in random_rows(1000).items()}
    tracemalloc.start()  # numpy reports its buffers to it
    write_ply(tmp_path / "a.ply", (chunk for _ in range(50)), n_rows=50_000, chunk_rows=1000)
    _, written = tracemalloc.get_traced_memory()
    tracemalloc.reset_peak()
    assert sum(len(rows["means"]) for rows in read_ply(tmp_path / "a.ply", 1000)) == 50_000
    _, read = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    # A chunk is 248 kB of file; four of them, against the file's 12.4 MB.
    assert written < 1_000_000
    assert read < 1_000_000


@pytest.mark.gpu
def test_rows_on_the_device_give_the_same_file(tmp_path):
    rows = random_rows(100)
    write_ply(tmp_path / "cpu.ply", rows)
    write_ply(
        tmp_path / "cuda.ply", {name: value.cuda() for name, value in rows.items()}, chunk_rows=7
    )
    assert (tmp_path / "cuda.ply").read_bytes() == (tmp_path / "cpu.ply").read_bytes()
