# SPDX-License-Identifier: Apache-2.0
"""The option ``--gpus N|all``: how many ranks it asks for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gs_train.errors import InputError
from gs_train.rows.strands import N_STRANDS


def ranks_of(
    gpus: str | None, *, renderer: str, n_devices: int, environment: Mapping[str, str]
) -> int | None:
    """How many processes to start; None: this one does the work.

    Args:
        gpus: the option's value.
        renderer: ``cpu`` needs no device: a rank is a process then.
        n_devices: CUDA devices of this host.
        environment: of this process.

    Raises:
        InputError: the value is no number, there are not so many devices, rows have not so many
            owners, or this process is a rank already.
    """
    if gpus is None:
        return None
    if "WORLD_SIZE" in environment:
        raise InputError(
            "--gpus must be left out where torchrun starts the processes "
            f"(WORLD_SIZE={environment['WORLD_SIZE']}), got --gpus {gpus}"
        )
    if gpus != "all" and not (gpus.isdecimal() and int(gpus) >= 1):
        raise InputError(f"--gpus must be a number of at least 1, or all, got {gpus!r}")
    if renderer == "cpu":
        if gpus == "all":
            raise InputError("--gpus must be a number with --renderer cpu, got all")
        return _several(int(gpus))
    if n_devices == 0:
        raise InputError(
            f"--gpus needs CUDA devices, there are none here, got {gpus} "
            "(--renderer cpu works in as many processes)"
        )
    n_ranks = n_devices if gpus == "all" else int(gpus)
    if n_ranks > n_devices:
        raise InputError(
            f"--gpus must be at most {n_devices}, the CUDA devices of this machine, got {gpus}"
        )
    return _several(n_ranks)


def require_shareable(offload: str, renderer: str) -> None:
    """Check that several ranks can work so.

    Raises:
        InputError: they cannot.
    """
    if offload not in ("auto", "none", "best"):
        raise InputError(
            f"--offload {offload} is for one GPU: several (--gpus) take --offload none or best"
        )
    if renderer == "gsplat":
        raise InputError(
            "--renderer gsplat is for one GPU: several (--gpus) take --renderer raster"
        )


def without_gpus(arguments: Sequence[str]) -> list[str]:
    """The command line of a rank: the same without ``--gpus``."""
    kept: list[str] = []
    is_value = False
    for argument in arguments:
        if is_value:
            is_value = False
        elif argument == "--gpus":
            is_value = True
        elif not argument.startswith("--gpus="):
            kept.append(argument)
    return kept


def _several(n_ranks: int) -> int | None:
    if n_ranks > N_STRANDS:
        raise InputError(f"--gpus must be at most {N_STRANDS}, got {n_ranks}")
    return None if n_ranks == 1 else n_ranks
