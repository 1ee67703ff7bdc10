# SPDX-License-Identifier: Apache-2.0
"""The noise of Markov chain Monte Carlo: its definition, what is refused, and the kernel."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import raster_noise as oracle
import torch
from raster_device import DEVICE, assert_same_bits, bits
from torch import Tensor

import gs_raster
from gs_raster import CudaError, perturb

ROUNDING = 2.0**-24
"""Half a unit in the last place of a float32 number, as a share of the number."""

SOURCE = {"seed": 2**63 + 12_345, "purpose": 6, "step": 31}


def made_rows(n: int, seed: int = 0) -> dict[str, Tensor]:
    """Needles and discs of all sizes, turned anyhow, from opaque to faint."""
    generator = torch.Generator().manual_seed(seed)
    return {
        "means": torch.randn(n, 3, generator=generator),
        "scales": torch.randn(n, 3, generator=generator) - 2.0,
        "quats": torch.randn(n, 4, generator=generator) * 3.0,
        "opacities": torch.randn(n, generator=generator) * 4.0 - 4.0,
    }


def made_keys(n: int, seed: int = 1) -> Tensor:
    return torch.randint(2**31 - 1, (n,), generator=torch.Generator().manual_seed(seed)).int()


def moved(rows: dict[str, Tensor], keys: Tensor, **other: Any) -> Tensor:
    """Means with noise, of rows that may lie on the CPU."""
    on_device = {name: values.to(DEVICE, copy=True) for name, values in rows.items()}
    perturb(**on_device, keys=keys.to(DEVICE), **{"size": 1.0, **SOURCE, **other})  # type: ignore[arg-type]
    return on_device["means"]


@pytest.mark.parametrize(
    ("counter", "key", "expected"),
    [
        ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
        (
            (0xFFFFFFFF, 0xFFFFFFFF, 0xFFFFFFFF, 0xFFFFFFFF),
            (0xFFFFFFFF, 0xFFFFFFFF),
            (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD),
        ),
        (
            (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
            (0xA4093822, 0x299F31D0),
            (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
        ),
    ],
)
def test_the_definition_has_the_published_bits(
    counter: tuple[int, ...], key: tuple[int, int], expected: tuple[int, ...]
) -> None:
    assert oracle.philox(np.array([counter], np.uint64), key).tolist() == [list(expected)]


CHECKED = [
    ({"means": [1.0]}, TypeError, "means must be a torch tensor, got list"),
    ({"means": torch.zeros(4, 3).double()}, TypeError, "means must be float32, got float64"),
    ({"means": torch.zeros(1, 3).expand(4, 3)}, ValueError, "means must have rows that do not ove"),
    ({"scales": torch.zeros(4, 2)}, ValueError, r"scales must have shape \(any, 3\), got \(4, 2\)"),
    ({"quats": torch.zeros(4, 4).T}, ValueError, "quats must have contiguous rows, got strides"),
    ({"quats": torch.zeros(4, 4, device="meta")}, ValueError, "quats must be on .*, got meta"),
]
REFUSED = [
    (
        {"opacities": torch.zeros(5)},
        ValueError,
        "opacities must have as many rows as means, 4, got 5",
    ),
    ({"keys": torch.zeros(4).long()}, TypeError, "keys must be int32, got int64"),
    ({"keys": torch.zeros(3).int()}, ValueError, r"keys must have shape \(4\), got \(3,\)"),
    ({"size": "1"}, TypeError, "size must be a number, got '1'"),
    ({"size": -1.0}, ValueError, "size must be at least 0 and finite in float32, got -1.0"),
    ({"size": 1e39}, ValueError, "size must be at least 0 and finite in float32, got 1e"),
    ({"size": float("nan")}, ValueError, "size must be .*, got nan"),
    ({"seed": 2**64}, ValueError, r"seed must be at least 0 and below 2\^64, got 18446744073709"),
    ({"seed": 1.0}, TypeError, "seed must be a whole number, got 1.0"),
    ({"step": -1}, ValueError, r"step must be at least 0 and below 2\^32, got -1"),
    ({"purpose": 2**32}, ValueError, r"purpose must be at least 0 and below 2\^32, got 42949672"),
]


def arguments(device: torch.device | str) -> dict[str, Any]:
    rows = {name: values.to(device) for name, values in made_rows(4).items()}
    return {**rows, "keys": torch.zeros(4, device=device).int(), "size": 1.0, **SOURCE}


@pytest.mark.parametrize(("other", "error", "message"), CHECKED)
def test_rows_are_checked(other: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        perturb(**arguments("cpu") | other)


def test_rows_on_the_cpu_are_refused() -> None:
    error: type[Exception] = CudaError
    message = r"has no CUDA. Reinstall it where nvcc is on the PATH"
    if gs_raster.build_info()["cuda_toolkit"] is not None:
        error, message = ValueError, "means must be on a CUDA device, got the CPU"
    with pytest.raises(error, match=message):
        perturb(**arguments("cpu"))


@pytest.mark.gpu
@pytest.mark.parametrize(("other", "error", "message"), REFUSED)
def test_what_is_refused_changes_nothing(
    other: dict[str, Any], error: type[Exception], message: str
) -> None:
    other = {n: v.to(DEVICE) if isinstance(v, Tensor) else v for n, v in other.items()}
    given = arguments(DEVICE)
    with pytest.raises(error, match=message):
        perturb(**given | other)
    assert torch.equal(given["means"].cpu(), made_rows(4)["means"])


@pytest.mark.gpu
def test_keys_are_looked_at_where_it_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GS_CHECK_INDEX", "1")
    rows, keys = made_rows(4), torch.tensor([3, 3, -2, 0]).int()
    with pytest.raises(IndexError, match="keys must be at least 0, got -2"):
        moved(rows, keys)
    moved(rows, keys.abs())  # equal ones are allowed


@pytest.mark.gpu
@pytest.mark.parametrize(
    "source",
    [
        SOURCE,
        {"seed": 0, "purpose": 0, "step": 0},
        {"seed": 2**64 - 1, "purpose": 2**32 - 1, "step": 2**32 - 1},
    ],
)
def test_random_numbers_are_those_of_the_definition(source: dict[str, int]) -> None:
    n = 20_000
    rows = {
        "means": torch.zeros(n, 3),
        "scales": torch.zeros(n, 3),
        "quats": torch.tensor([[1.0, 0.0, 0.0, 0.0]]).repeat(n, 1),
        "opacities": torch.full((n,), -30.0),
    }
    keys = made_keys(n)
    keys[:2] = torch.tensor([0, 2**31 - 1])
    found = moved(rows, keys, **source).double().cpu().numpy()
    exact = {name: values.double().numpy() for name, values in rows.items()}
    expected = oracle.offsets(exact, keys.numpy(), size=1.0, **source)
    assert abs(np.std(expected / (1.0 / (1.0 + np.exp(-0.5)))) - 1.0) < 0.01
    # Seven roundings make a normal number, seven the share of the noise and the products.
    assert (np.abs(found - expected) <= 16 * ROUNDING * np.abs(expected)).all()


@pytest.mark.gpu
def test_offsets_are_those_of_the_definition() -> None:
    rows, keys = made_rows(20_000), made_keys(20_000)
    rows["quats"][7] = 0.0
    found = moved(rows, keys, size=0.5).double().cpu().numpy()
    exact = {name: values.double().numpy() for name, values in rows.items()}
    expected = oracle.offsets(exact, keys.numpy(), size=0.5, **SOURCE)
    # The exponent has some roundings of its own size. Products with a rotation have roundings of
    # the largest term.
    exponent = oracle.exponents(exact["opacities"])
    largest = np.exp(2.0 * exact["scales"].max(1)) * np.linalg.norm(
        oracle.normals(keys.numpy(), **SOURCE), axis=1
    )
    amount = 0.5 / (1.0 + np.exp(-exponent))
    bound = ROUNDING * (64.0 + 6.0 * np.abs(exponent)) * (amount * largest)
    after = exact["means"] + expected
    error = np.abs(found - after)
    assert (error <= bound[:, None] + 2.0 * ROUNDING * np.abs(after)).all()
    assert np.median(np.abs(expected[exponent > 0])) > 1e-3
    assert np.array_equal(found[exponent < -90], exact["means"][exponent < -90])


@pytest.mark.gpu
def test_bits_depend_on_the_row_alone() -> None:
    rows, keys = made_rows(1000), made_keys(1000)
    whole = moved(rows, keys)
    order = torch.randperm(1000, generator=torch.Generator().manual_seed(5))
    for chosen in (order, order[:1], order[:257], torch.arange(31, 900, 3)):
        part = moved({name: values[chosen] for name, values in rows.items()}, keys[chosen])
        assert_same_bits(bits(part), bits(whole[chosen.to(DEVICE)]))


@pytest.mark.gpu
@pytest.mark.parametrize("other", [{"seed": 4}, {"purpose": 5}, {"step": 30}])
def test_another_source_gives_other_noise_to_every_row(other: dict[str, int]) -> None:
    rows, keys = made_rows(100), made_keys(100)
    rows["opacities"][:] = -9.0
    assert (moved(rows, keys) != moved(rows, keys, **other)).any(1).all()


@pytest.mark.gpu
def test_rows_may_be_columns_of_a_wider_table() -> None:
    rows, keys = made_rows(70), made_keys(70)
    expected = moved(rows, keys)
    table = torch.full((70, 13), 5.0, device=DEVICE)
    columns = {
        "quats": table[:, 1:5],
        "means": table[:, 5:8],
        "opacities": table[:, 8],
        "scales": table[:, 9:12],
    }
    for name, values in rows.items():
        columns[name].copy_(values)
    before = table.clone()
    perturb(**columns, keys=keys.to(DEVICE), size=1.0, **SOURCE)  # type: ignore[arg-type]
    assert_same_bits(bits(table[:, 5:8]), bits(expected))
    before[:, 5:8] = table[:, 5:8]
    assert_same_bits(bits(table), bits(before))


@pytest.mark.gpu
def test_a_row_that_is_not_finite_harms_no_other() -> None:
    rows, keys = made_rows(64), made_keys(64)
    expected = moved(rows, keys)
    rows["scales"][1], rows["quats"][2], rows["opacities"][3] = 100.0, float("nan"), float("nan")
    found = moved(rows, keys)
    assert_same_bits(bits(found[4:], found[:1]), bits(expected[4:], expected[:1]))
    assert not found[2:4].isfinite().any()


@pytest.mark.gpu
def test_no_rows_and_no_noise_change_nothing() -> None:
    moved(made_rows(0), made_keys(0))
    rows = made_rows(5)
    assert torch.equal(moved(rows, made_keys(5), size=0.0).cpu(), rows["means"])


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore:Synchronization debug mode")
def test_the_host_waits_for_nothing() -> None:
    rows = {name: values.to(DEVICE) for name, values in made_rows(100).items()}
    keys = made_keys(100).to(DEVICE)
    version = rows["means"]._version
    torch.cuda.set_sync_debug_mode("error")
    try:
        perturb(**rows, keys=keys, size=1.0, **SOURCE)  # type: ignore[arg-type]
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert rows["means"]._version > version  # so that autograd knows of the change
