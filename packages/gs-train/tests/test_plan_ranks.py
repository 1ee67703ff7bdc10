# SPDX-License-Identifier: Apache-2.0
"""``gs-train plan --gpus N``: what each rank needs, and whether ranks pay."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from made_up import GIB, RATES, WORK

from gs_train.cli import main
from gs_train.commands.plan_presets import auto_choice
from gs_train.commands.plan_ranks import plan_ranks, planned_ranks, with_link
from gs_train.errors import InputError
from gs_train.options.config import FitConfig
from gs_train.sizing.memory import Caps
from gs_train.sizing.peer_link import measure_between_gpus
from gs_train.sizing.rates import Rates

ON_GPU = "--renderer auto --device-memory 24GiB --host-memory 200GiB --gaussians 20M"


def _plan(capture: Path, tmp_path: Path, options: str, rates: Rates = RATES) -> int:
    """For a GPU that is not here, unless the options name a renderer."""
    rates.save(tmp_path / "rates.json")
    file = ["--offload-rates", str(tmp_path / "rates.json")]
    return main(["plan", str(capture), *options.split(), *file])


@pytest.fixture
def planned(
    tiny_capture: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> Any:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)

    def plan(options: str, rates: Rates = RATES) -> dict[str, Any]:
        assert _plan(tiny_capture, tmp_path, f"{options} --json", rates) == 0
        result: dict[str, Any] = json.loads(capsys.readouterr().out)
        return result

    return plan


def test_each_rank_has_its_share(planned: Any) -> None:
    options = "--batch-size 8 --gpus 2 --gpu-link 200GB --device-memory 28GiB"
    result = planned(f"{ON_GPU} {options}")
    ranks = result["ranks"]
    assert (ranks["n_ranks"], ranks["n_rows"]) == (2, 10_500_001)
    assert (ranks["between_ranks"], ranks["between_ranks_source"]) == (200e9, "as --gpu-link says")
    assert ranks["caps"] == {**result["caps"], "host": 100 * 2**30, "host_limit": 100 * 2**30}
    assert list(ranks["presets"]) == ["none", "best"]
    for name, of in ranks["presets"].items():
        alone = result["presets"][name]
        parts = of["parts"]["device"]
        assert parts["exchange"] > 0
        assert parts["parameters"] == pytest.approx(
            0.525 * alone["parts"]["device"]["parameters"], rel=1e-6
        )
        assert of["host_bytes_of_all"] == 2 * of["host_bytes"]
        assert of["fits"] == (of["largest_n"] >= 20_000_000)
    assert not result["presets"]["none"]["fits"]
    assert ranks["auto"]["preset"] == "none"


def test_the_plan_of_one_gpu_is_the_same(planned: Any) -> None:
    one, two = (planned(f"{ON_GPU} {options}") for options in ("--gpus 1", "--gpus 2"))
    assert one["ranks"] is None
    assert {**two, "ranks": None} == one


@pytest.mark.parametrize(
    ("options", "start", "end"),
    [
        ("--batch-size 8 --gpu-link 200GB", "2 GPUs are 1.9", " images/s)"),
        ("--batch-size 8 --gpu-link 1GB", "2 GPUs are 0.", " ms"),
        ("--batch-size 8 --device-memory 5GiB", "2 GPUs do not hold the scene", "either"),
    ],
)
def test_it_says_whether_a_second_gpu_pays(
    planned: Any, options: str, start: str, end: str
) -> None:
    ranks = planned(f"{ON_GPU} --device-memory 80GiB --gpus 2 {options}")["ranks"]
    verdict = ranks["verdict"]
    assert verdict.startswith(start)
    assert verdict.endswith(end)
    pays = ranks["speed_up"] is None or ranks["speed_up"] >= 1.2
    assert (ranks["speed_up"] is None) == ("hold" in verdict)
    assert ("a second one does not pay" in verdict) == (not pays)


@pytest.mark.parametrize(
    ("device", "verdict"),
    [
        (6 * GIB, "2 GPUs hold the scene, which one does not: "),
        (2 * GIB, "2 GPUs do not hold the scene either"),
    ],
)
def test_two_gpus_may_hold_what_one_does_not(device: int, verdict: str) -> None:
    run = FitConfig(data=Path("DATA"), out=Path("RUN"), cap=WORK.n_rows, batch_size=4)
    caps = Caps(device, host=GIB)
    one = {"n_rows": WORK.n_rows, "auto": auto_choice(run, WORK, caps), "presets": {}}
    assert one["auto"]["preset"] is None
    ranks = plan_ranks(2, one, WORK, run, caps, with_link(RATES, None))
    assert ranks["verdict"].startswith(verdict)
    assert ranks["speed_up"] is None


def test_processes_of_a_cpu_do_not_pay(planned: Any) -> None:
    ranks = planned("--renderer cpu --gpus 2", replace(RATES, device="CPU"))["ranks"]
    assert ranks["verdict"].endswith(
        "a second one does not pay, for processes share the cores of this machine"
    )


def test_as_text_it_has_a_table_of_ranks(
    tiny_capture: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    measured = replace(RATES, between_gpus=150e9)
    assert _plan(tiny_capture, tmp_path, f"{ON_GPU} --gpus 4 --batch-size 8", measured) == 0
    said = capsys.readouterr().out
    assert "each of 4" in said
    assert "Between two: 150 GB/s, measured." in " ".join(said.split())
    assert "Each of 4 owns up to 5,250,001 Gaussians." in said
    assert "4 GPUs are " in said


def test_rates_of_an_earlier_version_are_read(tmp_path: Path) -> None:
    old = {name: value for name, value in asdict(RATES).items() if name != "between_gpus"}
    (tmp_path / "rates.json").write_text(json.dumps(old))
    assert Rates.load(tmp_path / "rates.json") == RATES
    for wrong in (0, -1, "fast"):
        (tmp_path / "rates.json").write_text(json.dumps({**old, "between_gpus": wrong}))
        with pytest.raises(InputError, match="between_gpus must be positive"):
            Rates.load(tmp_path / "rates.json")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--gpus 0", "--gpus must be from 1 to 256, or all where this machine has GPUs, got '0'"),
        ("--gpus two", "--gpus must be from 1 to 256"),
        ("--gpus 2 --renderer gsplat", "--renderer gsplat"),
        ("--gpus 2 --gpu-link fast", "--gpu-link must be a size"),
        ("--gpus 2 --gpu-link 0", "--gpu-link must be at least one byte a second, got 0"),
    ],
)
def test_what_cannot_be_is_refused(
    tiny_capture: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    options: str,
    message: str,
) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    assert _plan(tiny_capture, tmp_path, f"{ON_GPU} {options}") == 2
    assert f"gs-train: error: {message}" in capsys.readouterr().err


def test_all_needs_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.device_count", lambda: 3)
    assert planned_ranks("all", "auto") == 3
    monkeypatch.setattr("torch.cuda.device_count", lambda: 0)
    with pytest.raises(InputError, match="or all where this machine has GPUs, got 'all'"):
        planned_ranks("all", "auto")


@pytest.mark.gpu
@pytest.mark.gpu2
def test_two_gpus_send_to_each_other() -> None:
    rate = measure_between_gpus()
    assert rate is not None
    assert 1e9 < rate < 1e13
