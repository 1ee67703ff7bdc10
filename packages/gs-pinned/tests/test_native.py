# SPDX-License-Identifier: Apache-2.0
"""The extension module itself: its version, what it links, and its examples."""

import doctest
import importlib
import importlib.metadata
import subprocess

import pytest

import gs_pinned
from gs_pinned import _core


def test_the_compiled_version_is_the_installed_one() -> None:
    assert gs_pinned.__version__ == importlib.metadata.version("gs-pinned")


def test_the_module_links_neither_torch_nor_the_driver() -> None:
    done = subprocess.run(["ldd", str(_core.__file__)], capture_output=True, text=True, check=True)
    libraries = {line.split()[0].split(".so")[0] for line in done.stdout.splitlines()}
    assert not {name for name in libraries if name.startswith(("libtorch", "libc10", "libcu"))}


@pytest.mark.parametrize("module", ["exchange", "table", "transfer"])
def test_the_examples_of_the_documentation_hold(module: str) -> None:
    results = doctest.testmod(importlib.import_module(f"gs_pinned.{module}"))
    assert results.attempted > 0
    assert results.failed == 0


def test_rows_must_lie_inside_their_memory() -> None:
    memory = _core.Memory(1 << 16, lock="none")
    memory.grow(4096, may_be_pageable=False)
    with pytest.raises(ValueError, match="rows must lie inside the memory of 4096 bytes, got 2 ro"):
        _core.Rows.of_memory(memory, first_byte=0, rows=2, row_bytes=4096, dtype="uint8")
    with pytest.raises(ValueError, match="rows need 131072 bytes, but 65536 were reserved"):
        memory.grow(1 << 17, may_be_pageable=False)
    with pytest.raises(ValueError, match="lock must be none, cuda or mlock, got glue"):
        _core.Memory(4096, lock="glue")


@pytest.mark.parametrize("text", ["lots", " -1", "-1", "+5"])
def test_a_limit_that_is_no_number_is_named(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    memory = _core.Memory(1 << 16, lock="mlock")
    monkeypatch.setenv("GS_PINNED_LIMIT_BYTES", text)
    with pytest.raises(ValueError, match="GS_PINNED_LIMIT_BYTES must be a whole number of bytes"):
        memory.grow(4096, may_be_pageable=True)
    assert memory.size == 0


def test_what_locking_was_refused_for_is_a_piece_of_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    memory = _core.Memory(1 << 24, lock="mlock")
    ends = [1 << 20, 4 << 20]
    for end in ends:
        memory.grow(end, may_be_pageable=False)
    assert memory.chunk_ends == ends
    monkeypatch.setenv("GS_PINNED_LIMIT_BYTES", str(_core.locked_bytes()))
    memory.grow(8 << 20, may_be_pageable=True)
    assert memory.chunk_ends == [*ends, 8 << 20]
    assert memory.locked_size == ends[-1]
    assert _core.Memory(1 << 20, lock="none").chunk_ends == [0]


def test_nothing_is_locked_after_all_this() -> None:
    memory = _core.Memory(1 << 16, lock="mlock")
    before = _core.locked_bytes()
    memory.grow(4096, may_be_pageable=False)
    assert _core.locked_bytes() == before + 4096
    del memory
    assert _core.locked_bytes() == before
