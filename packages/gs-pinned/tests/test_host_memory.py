# SPDX-License-Identifier: Apache-2.0
"""Memory that a process may still take."""

from pathlib import Path

import gs_pinned


def group(folder: Path, *, limit: str, used: int, cached: int = 0) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "memory.max").write_text(f"{limit}\n")
    (folder / "memory.current").write_text(f"{used}\n")
    stat = f"anon {used - cached}\nfile {cached}\ninactive_file {cached}\nactive_file 0\n"
    (folder / "memory.stat").write_text(stat)


def system(root: Path, own_group: str, available_kib: int = 1000) -> str:
    """A root folder with what the kernel says of a machine."""
    (root / "proc/self").mkdir(parents=True)
    meminfo = f"MemTotal: 9000 kB\nMemFree: 10 kB\nMemAvailable:    {available_kib} kB\n"
    (root / "proc/meminfo").write_text(meminfo)
    (root / "proc/self/cgroup").write_text(f"1:name=systemd:/x\n0::{own_group}\n")
    return str(root)


def test_without_a_limit_it_is_what_the_kernel_estimates(tmp_path: Path) -> None:
    assert gs_pinned.available_bytes(system(tmp_path, "/")) == 1000 * 1024
    group(tmp_path / "sys/fs/cgroup", limit="max", used=5)
    assert gs_pinned.available_bytes(str(tmp_path)) == 1000 * 1024


def test_a_containers_limit_counts_and_its_page_cache_makes_way(tmp_path: Path) -> None:
    root = system(tmp_path, "/")
    group(tmp_path / "sys/fs/cgroup", limit="5000", used=3000, cached=400)
    assert gs_pinned.available_bytes(root) == 2400
    group(tmp_path / "sys/fs/cgroup", limit="5000", used=6000)
    assert gs_pinned.available_bytes(root) == 0


def test_the_limits_of_all_groups_around_a_process_count(tmp_path: Path) -> None:
    root = system(tmp_path, "/user/run.scope")
    cgroups = tmp_path / "sys/fs/cgroup"
    group(cgroups / "user/run.scope", limit="max", used=100)
    group(cgroups / "user", limit="9000", used=8000)
    assert gs_pinned.available_bytes(root) == 1000
    group(cgroups / "user/run.scope", limit="300", used=100)
    assert gs_pinned.available_bytes(root) == 200


def test_here_it_is_more_than_nothing_and_less_than_there_is() -> None:
    assert 0 < gs_pinned.available_bytes() < 2**50
