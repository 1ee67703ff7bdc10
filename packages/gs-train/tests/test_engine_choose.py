# SPDX-License-Identifier: Apache-2.0
"""Which preset a run gets: what memory allows, then what is fastest."""

import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from made_up import GIB, RATES, SEEN, WORK

from gs_train.densify import AdcConfig, McmcConfig
from gs_train.errors import InputError
from gs_train.options.config import FitConfig
from gs_train.options.presets import PRESETS
from gs_train.renderers import View
from gs_train.renderers.cpu import CpuRenderer
from gs_train.sizes import parse_bytes
from gs_train.sizing import rates as rates_module
from gs_train.sizing.choice import GROWTH, choose, expected_rows
from gs_train.sizing.fitting import smallest_rooms
from gs_train.sizing.forecasts import need, predict
from gs_train.sizing.memory import PROCESS_BYTES, Caps, caps_of
from gs_train.sizing.rates import Rates
from gs_train.sizing.workload import BatchRows

PLENTY = Caps(10**15, 10**15)


def _config(**options: object) -> FitConfig:
    return FitConfig(data=Path("a"), out=Path("b"), **options)


def test_auto_stays_on_the_device_while_the_scene_fits() -> None:
    full = need(PRESETS["none"], WORK).device_bytes
    config = _config(cap=WORK.n_rows)
    chosen = choose(config, WORK, Caps(full, 10**15))
    assert chosen.preset.name == "none"
    assert chosen.reason.startswith("all of it fits on the device (8.7 GiB for 10,000,000")
    chosen = choose(config, WORK, Caps(full - 1, 10**15))
    assert chosen.preset.name == "best"
    assert need(chosen.preset, WORK).device_bytes < full
    assert "so appearance is in host memory" in chosen.reason
    assert "\n" not in chosen.reason


def test_auto_looks_at_what_the_scene_will_grow_to() -> None:
    caps = Caps(24 * GIB, 500 * GIB)
    small = WORK.with_rows(1_000_000)
    assert choose(_config(cap=1_000_000), small, caps).preset.name == "none"
    assert choose(_config(cap=40_000_000), small, caps).preset.name == "best"
    grown = f"for {GROWTH * 1_000_000:,} Gaussians"
    assert grown in choose(_config(), small, caps).reason


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"cap": 7000}, 7000),
        ({"cap": 700}, 1000),
        ({"adc": AdcConfig(cap=9000)}, 9000),
        ({"adc": AdcConfig(cap=9000), "cap": 5000}, 5000),
        ({"strategy": "mcmc"}, 1_000_000),
        ({"strategy": "mcmc", "mcmc": McmcConfig(cap_max=5000)}, 5000),
        ({"strategy": "mcmc", "cap": 2000}, 2000),
        ({}, 1000 * GROWTH),
        ({"steps": 500}, 1000),
        ({"steps": 300, "batch_size": 2}, 1000 * GROWTH),
        ({"adc": AdcConfig(refine_stop=0)}, 1000),
    ],
)
def test_how_many_rows_are_expected(options: dict[str, object], expected: int) -> None:
    assert expected_rows(_config(**options), 1000) == expected


@pytest.mark.parametrize("caps", [Caps(GIB, 500 * GIB), Caps(GIB, 2 * GIB, shared=True)])
def test_the_smallest_caps_that_an_error_names_are_enough_and_no_less(caps: Caps) -> None:
    config = _config(cap=WORK.n_rows)
    with pytest.raises(InputError, match="10,000,000 Gaussians do not fit into --device") as error:
        choose(config, WORK, caps)
    named = re.search(
        r"--device-memory (\S+) --host-memory (\S+) with --offload best", str(error.value)
    )
    assert named is not None
    sizes = [parse_bytes(text, option="") for text in named.groups()]
    given = Caps(*sizes, shared=caps.shared, process=PROCESS_BYTES)
    assert choose(config, WORK, given).preset.name == "best"
    for less in ((2**20, 0), (0, 2**20)):
        smaller = replace(given, device=sizes[0] - less[0], host=sizes[1] - less[1])
        with pytest.raises(InputError, match="do not fit"):
            choose(config, WORK, smaller)


def test_a_named_preset_is_refused_only_when_it_cannot_start() -> None:
    naive = PRESETS["naive"]
    enough = need(naive, WORK)
    caps = Caps(enough.device_bytes, enough.host_bytes)
    assert choose(_config(offload="naive"), WORK, caps).preset is naive
    with pytest.raises(InputError, match=r"--device-memory \d+MiB .* with --offload naive;"):
        choose(_config(offload="naive"), WORK, replace(caps, device=caps.device - 1))


SEEN_WHOLE = BatchRows(
    visible=4e7, union=1e7, two=1e7, largest=1e7, loaded=4e7, held=1e7, intersections=2e7
)


@pytest.mark.parametrize(
    ("name", "semantics", "seen"),
    [("clm", "dense", SEEN), ("clm", "sparse", SEEN), ("naive", "dense", SEEN_WHOLE)],
)
def test_auto_takes_another_one_where_neither_none_nor_best_fits(
    name: str, semantics: str, seen: BatchRows
) -> None:
    """Of few rows the two rings of ``best`` take more than all of them, or their slots do."""
    few = replace(WORK, most=seen, mean=seen).with_rows(100_000)
    least = need(PRESETS[name], few, smallest_rooms(PRESETS[name], few)[0])
    caps = Caps(least.device_bytes, least.host_bytes)
    for other in ("none", "best"):
        with pytest.raises(InputError, match="do not fit"):
            choose(_config(offload=other), few, caps)
    config = _config(cap=few.n_rows, batch_size=few.batch_size, semantics=semantics)
    chosen = choose(config, few, caps)
    assert chosen.preset.name == name
    assert chosen.reason.endswith("in host memory; best does not fit either")


def test_an_error_names_every_preset_whose_caps_are_not_more_than_anothers() -> None:
    config, few = _config(batch_size=4), WORK.with_rows(1000)
    with pytest.raises(InputError) as error:
        choose(replace(config, cap=1000), few, Caps(2**20, 2**20))
    named = re.findall(
        r"memory (\d+MiB) --host-memory (\d+MiB) with --offload ([\w-]+)", str(error.value)
    )
    assert {name for *_, name in named} == {"clm", "best", "none"}
    for *sizes, name in named:
        device, host = (parse_bytes(text, option="") for text in sizes)
        caps = Caps(device, host, process=PROCESS_BYTES)
        assert choose(replace(config, cap=1000, offload=name), few, caps)
        assert choose(replace(config, cap=1000), few, caps)


def test_auto_takes_none_where_both_fit_whatever_the_options() -> None:
    for options in ({}, {"strategy": "mcmc"}, {"semantics": "sparse"}):
        for work in (WORK.with_rows(1000), WORK):
            chosen = choose(_config(cap=work.n_rows, **options), work, PLENTY)
            assert chosen.preset.name == "none"
            assert chosen.reason.startswith("all of it fits on the device (")
    full = need(PRESETS["none"], WORK)
    no_host = Caps(10**15, full.host_bytes)
    assert choose(_config(cap=WORK.n_rows), WORK, no_host).preset.name == "none"


@pytest.mark.parametrize("link", [1e9, 40e9, 1e15])
@pytest.mark.parametrize("n_rows", [1000, 1_000_000, 10_000_000, 100_000_000])
def test_best_is_never_foretold_to_be_faster_than_none(n_rows: int, link: float) -> None:
    """Or `auto` would have to compare them."""
    rates, work = replace(RATES, both=link), WORK.with_rows(n_rows)
    none, best = (predict(PRESETS[name], work, rates) for name in ("none", "best"))
    assert none.device_s == best.device_s
    assert none.images_per_second >= best.images_per_second


# ---------------------------------------------------------------------- rates


def test_rates_are_of_the_rows_to_come_and_a_sample_covers_what_all_rows_do(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    n, later = 3000, WORK.with_rows(60_000)
    seen: list[tuple[dict[str, torch.Tensor], int]] = []

    def noted(
        renderer: object,
        rows: dict[str, torch.Tensor],
        view: View,
        n_visible: int,
        n_first: int,
        begin: object,
    ) -> Rates:
        assert n_first == round(n_visible * n / later.n_rows)
        seen.append((rows, n_visible))
        return RATES

    monkeypatch.setattr(rates_module, "measure_rates", noted)
    draw = torch.Generator().manual_seed(0)
    rows = {
        "means": torch.rand(n, 3, generator=draw) + torch.tensor([-0.5, -0.5, 3.0]),
        "scales": torch.full((n, 3), -3.0),
        "quats": torch.randn(n, 4, generator=draw),
        "opacities": torch.zeros(n),
        "sh0": torch.zeros(n, 1, 3),
        "shN": torch.zeros(n, 15, 3),
    }
    view = View("a", torch.eye(4), torch.tensor([[60.0, 0, 32], [0, 60, 24], [0, 0, 1]]), 64, 48)
    assert rates_module.rates_for(later, rows, [view], CpuRenderer()) is RATES
    monkeypatch.setattr(rates_module, "_SAMPLED_ROWS", 300)
    assert rates_module.rates_for(later, rows, [view], CpuRenderer()) is RATES
    (every, n_all), (some, n_some) = seen
    assert n_all == n_some == round(later.mean.visible / 4)
    assert len(every["means"]) == 10 * len(some["means"])
    areas = [float((2 * of["scales"][:, 0]).exp().sum()) for of in (every, some)]
    assert areas[0] == pytest.approx(areas[1], rel=1e-4)


# ---------------------------------------------------------------------- caps


def test_caps_follow_the_options_else_what_is_free(monkeypatch: pytest.MonkeyPatch) -> None:
    from gs_train.sizing import memory as module

    monkeypatch.setattr(module, "available_bytes", lambda: 10_000)
    cpu = torch.device("cpu")
    assert caps_of(_config(), cpu) == Caps(9000, 9000, shared=True)
    given = Caps(2 * 10**9, 9000, shared=True, is_given=True)
    assert caps_of(_config(device_memory="2GB"), cpu) == given
    # What is free is so beside the process, whose own memory counts where a cap is given.
    of_host = Caps(5000, 5000, shared=True, host_limit=5000, process=PROCESS_BYTES)
    assert caps_of(_config(host_memory="5000"), cpu) == of_host
    # A run on this machine cannot take what is not there; one on another machine may.
    more, most = _config(host_memory="4GiB"), PROCESS_BYTES + 10_000
    of_host = replace(of_host, host_limit=4 * GIB)
    assert caps_of(more, cpu) == replace(of_host, device=most, host=most)
    assert caps_of(more, cpu, is_here=False) == replace(of_host, device=4 * GIB, host=4 * GIB)
