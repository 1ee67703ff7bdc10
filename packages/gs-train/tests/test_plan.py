# SPDX-License-Identifier: Apache-2.0
"""``gs-train plan``, the rates that it measures and the time that it predicts from them."""

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from made_up import RATES

from gs_train.cli import main
from gs_train.data import load_capture
from gs_train.engine.drawing import Drawing
from gs_train.errors import InputError
from gs_train.machine.interrupt import StopRequest
from gs_train.options.config import FitConfig
from gs_train.options.limits import UNLIMITED, Limits
from gs_train.options.presets import PRESETS
from gs_train.renderers import View
from gs_train.renderers.cpu import CpuRenderer
from gs_train.runs.offload import choice_for
from gs_train.scene.scene import Scene
from gs_train.sizing import timings
from gs_train.sizing.memory import PROCESS_BYTES
from gs_train.sizing.rates import Rates, measure_rates


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Micro-measurements on small tables."""
    monkeypatch.setattr(timings, "_TABLE_BYTES", {"cpu": 1 << 20})
    monkeypatch.setattr(timings, "_RENDERED_ROWS", {"cpu": 400})


@pytest.fixture
def rates_file(tmp_path: Path) -> Path:
    RATES.save(tmp_path / "rates.json")
    return tmp_path / "rates.json"


def _plan(capture: Path, *options: str) -> int:
    return main(["plan", str(capture), "--renderer", "cpu", *options])


def _scene(capture: Path) -> Scene:
    """As fit loads it."""
    return Scene.load(load_capture(capture, cache_dir=capture / "none"), torch.device("cpu"))


# ---------------------------------------------------------------------- the command


def test_it_measures_and_prints_a_line_for_each_preset(
    tiny_capture: Path, capsys: pytest.CaptureFixture[str], quick: None
) -> None:
    assert _plan(tiny_capture, "--batch-size", "3", "--verbose") == 0
    text, said = capsys.readouterr()
    assert [line[:12] for line in said.splitlines()] == [f"planning {k}/7" for k in range(1, 8)]
    for name in ("none", "naive", "clm", "gs-scale (batch 1)", "best"):
        assert f"\u2502 {name} " in text
    assert "page-locked" in text
    assert "GB/s" in text
    assert "--offload auto takes none: all of it fits on the device" in text


def test_as_json_it_says_all_that_it_predicts(
    tiny_capture: Path, capsys: pytest.CaptureFixture[str], rates_file: Path
) -> None:
    options = ("--gaussians", "2M", "--offload-rates", str(rates_file), "--json")
    assert _plan(tiny_capture, *options, "--device-memory", "900MiB") == 0
    result = json.loads(capsys.readouterr().out)
    assert result["n_rows"] == 2_000_000
    assert result["rates"]["to_device"] == 50e9
    assert result["caps"]["device"] == 900 * 2**20
    assert list(result["presets"]) == list(PRESETS)
    for name, of in result["presets"].items():
        assert of["device_bytes"] == sum(of["parts"]["device"].values())
        assert of["fits"] == (of["largest_n"] >= 2_000_000)
        assert of["images_per_second"] > 0
        assert of["bound"] in ("device", "link", "host"), name
    assert not result["presets"]["none"]["fits"]
    assert result["presets"]["best"]["fits"]
    assert result["auto"]["preset"] == "best"


def test_it_says_how_many_rows_stay_on_the_device(
    tiny_capture: Path, capsys: pytest.CaptureFixture[str], rates_file: Path
) -> None:
    options = ("--gaussians", "2M", "--offload-rates", str(rates_file), "--json")
    planned = {}
    for cap in ("900MiB", "2200MiB", "8GiB"):
        assert _plan(tiny_capture, *options, "--device-memory", cap) == 0
        presets = json.loads(capsys.readouterr().out)["presets"]
        assert {of["residents"] for name, of in presets.items() if name != "best"} == {0}
        planned[cap] = presets["best"]
        assert planned[cap]["fits"]
    by_host, fewer, every = planned.values()
    assert by_host["residents"] == 0 < by_host["seconds"]["host"]
    assert 0 < fewer["residents"] < 2_000_000
    assert fewer["seconds"]["host"] == 0 < fewer["seconds"]["link"]
    assert every["residents"] == 2_000_000
    assert every["seconds"]["link"] == 0
    for of in (fewer, every):
        assert of["parts"]["device"]["residents"] == 576 * of["residents"]
    assert _plan(tiny_capture, *options[:-1], "--device-memory", "8GiB") == 0
    line = next(line for line in capsys.readouterr().out.splitlines() if "│ best " in line)
    assert line.split("│")[6].strip() == "2M"


def test_a_smaller_share_of_a_view_needs_less_for_the_preset_that_cuts_by_it(
    tiny_capture: Path, capsys: pytest.CaptureFixture[str], rates_file: Path
) -> None:
    options = ("--gaussians", "2M", "--offload-rates", str(rates_file), "--json")
    needed = []
    for share in ((), ("--mem-limit", "0.3"), ("--mem-limit", "0.1")):
        assert _plan(tiny_capture, *options, *share) == 0
        presets = json.loads(capsys.readouterr().out)["presets"]
        needed.append({name: of["device_bytes"] for name, of in presets.items()})
    default, same, less = needed
    assert same == default
    assert less.pop("gs-scale") < default.pop("gs-scale")
    assert less == default
    assert _plan(tiny_capture, *options, "--mem-limit", "0") == 2
    assert "--mem-limit must be above 0 and at most 1, got 0.0" in capsys.readouterr().err


def test_where_nothing_fits_it_says_what_would(
    tiny_capture: Path, capsys: pytest.CaptureFixture[str], rates_file: Path
) -> None:
    options = ("--gaussians", "5M", "--offload-rates", str(rates_file))
    assert _plan(tiny_capture, *options, "--device-memory", "100MiB") == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "--offload auto takes nothing: 5,000,000 Gaussians do not fit" in text
    for preset in ("clm", "none"):  # either needs less of one memory than the other
        assert f"with --offload {preset}" in text


def _options_of(rates_file: Path) -> list[str]:
    return ["--offload-rates", str(rates_file), "--json"]


def test_the_smallest_caps_that_it_names_are_those_that_fit_accepts(
    tiny_capture: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], rates_file: Path
) -> None:
    count = ("--gaussians", "100k")
    assert _plan(tiny_capture, *_options_of(rates_file), *count, "--host-memory", "1MiB") == 0
    reason = json.loads(capsys.readouterr().out)["auto"]["reason"]
    named = re.findall(
        r"--device-memory (\d+)MiB --host-memory (\d+)MiB with --offload ([\w-]+)", reason
    )
    assert {name for *_, name in named} >= {"clm", "best", "none"}
    scene, stop = _scene(tiny_capture), StopRequest()
    renderer = CpuRenderer()
    for device, host, name in named:
        sizes = {"device_memory": f"{device}MiB", "host_memory": f"{host}MiB"}
        run = FitConfig(tiny_capture, tmp_path, cap=100_000, offload=name, **sizes)
        rows = scene.initial_rows(run, stop)
        choice_for(run, scene, rows, renderer)
        choice_for(replace(run, offload="auto"), scene, rows, renderer)
        assert int(host) > PROCESS_BYTES >> 20
        less = [f"--device-memory={int(device) - 1}MiB", f"--host-memory={host}MiB"]
        assert _plan(tiny_capture, *_options_of(rates_file), *count, *less) == 0
        planned = json.loads(capsys.readouterr().out)
        assert not planned["presets"][name]["fits"]
        less = [f"--device-memory={device}MiB", f"--host-memory={int(host) - 1}MiB"]
        assert _plan(tiny_capture, *_options_of(rates_file), *count, *less) == 0
        assert not json.loads(capsys.readouterr().out)["presets"][name]["fits"]


def test_the_largest_number_that_fits_is_the_largest_that_may_be_planned_for(
    tiny_capture: Path, capsys: pytest.CaptureFixture[str], rates_file: Path
) -> None:
    def planned(*options: str) -> dict[str, Any]:
        caps = ("--device-memory", "300MiB", "--host-memory", "2GiB")
        assert _plan(tiny_capture, *_options_of(rates_file), *caps, *options) == 0
        presets: dict[str, Any] = json.loads(capsys.readouterr().out)["presets"]
        return presets

    for name, of in planned("--gaussians", "20k").items():
        most = of["largest_n"]
        assert most > 20_000
        assert planned("--gaussians", str(most))[name]["fits"]
        assert not planned("--gaussians", str(most + 1))[name]["fits"]


def test_a_gpu_that_is_not_here_is_planned_for_with_its_rates(
    tiny_capture: Path,
    capsys: pytest.CaptureFixture[str],
    rates_file: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    options = ["plan", str(tiny_capture), "--gaussians", "2M", *_options_of(rates_file)]
    assert main(options) == 2
    assert "--device-memory must say how much made up has" in capsys.readouterr().err
    options_there = [*options, "--device-memory", "900MiB", "--host-memory", "64GiB"]
    assert main([*options_there, "--renderer", "gsplat"]) == 0
    there = json.loads(capsys.readouterr().out)
    assert not there["caps"]["shared"]
    assert there["within_an_hour"] is None
    assert there["caps"]["host"] == 64 * 2**30
    # Gaps between tensors count on a GPU.
    assert _plan(tiny_capture, *options[2:], "--device-memory", "900MiB") == 0
    here = json.loads(capsys.readouterr().out)
    assert here["caps"]["shared"]
    for name, of in there["presets"].items():
        assert 0 < of["largest_n"] < here["presets"][name]["largest_n"]
    # Memory is that of the renderer that draws there, not of the one that counts here.
    assert main(options_there) == 0
    by_raster = json.loads(capsys.readouterr().out)
    drawn_by = [planned["workload"]["renderer"] for planned in (there, here, by_raster)]
    assert drawn_by == ["gsplat", "cpu", "auto"]
    without_copies, with_copies = (of["presets"]["none"] for of in (by_raster, there))
    assert without_copies["largest_n"] > with_copies["largest_n"]


def test_it_says_how_long_a_run_takes_and_what_ends_within_an_hour(
    tiny_capture: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    slow = replace(RATES, device="CPU", batch_view_s=0.1, batch_row_s=1e-6)
    slow.save(tmp_path / "slow.json")
    options = ("--gaussians", "50k", "--offload-rates", str(tmp_path / "slow.json"))
    assert _plan(tiny_capture, *options) == 0
    text = capsys.readouterr().out
    assert "30,000 steps will take about 1:" in text
    assert "with 8,000 Gaussians that become up to 50,000" in text
    line = next(line for line in text.splitlines() if line.startswith("within an hour: "))
    assert line.endswith("--steps 7000 --renderer cpu --cap 50000")  # images stay as large
    assert _plan(tiny_capture, *options, "--steps", "3k") == 0
    assert "3,000 steps will take about 0:" in capsys.readouterr().out


def test_without_a_number_it_plans_for_what_auto_expects(
    tiny_capture: Path, capsys: pytest.CaptureFixture[str], rates_file: Path
) -> None:
    from gs_train.data.colmap import largest, models_in, read_points
    from gs_train.sizing.choice import GROWTH

    assert _plan(tiny_capture, "--offload-rates", str(rates_file), "--json") == 0
    n_points = len(read_points(largest(models_in(tiny_capture)))[0])
    assert json.loads(capsys.readouterr().out)["n_rows"] == GROWTH * n_points


def test_it_reads_no_photographs_and_writes_nothing_but_rates(
    tiny_capture: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], quick: None
) -> None:
    capture = tmp_path / "capture"
    (capture / "sparse").mkdir(parents=True)
    for path in (tiny_capture / "sparse" / "0").iterdir():
        (capture / "sparse" / path.name).write_bytes(path.read_bytes())
    before = sorted(tmp_path.rglob("*"))
    file = tmp_path / "rates.json"
    assert _plan(capture, "--max-side", "32", "--offload-rates", str(file)) == 0
    assert "up to 32x24" in capsys.readouterr().out
    assert sorted(tmp_path.rglob("*")) == sorted([*before, file])
    written = file.read_bytes()
    assert _plan(capture, "--offload-rates", str(file)) == 0
    assert file.read_bytes() == written


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--gaussians", "3"], "--gaussians must be from 4 to 2^31 - 2, got 3"),
        (["--gaussians", "3B"], "--gaussians must be from 4 to 2^31 - 2, got 3000000000"),
        (["--device-memory", "big"], "--device-memory must be a size such as 4GiB"),
        (["--batch-size", "0"], "--batch-size must be at least 1, got 0"),
        (["--sh-degree", "4"], "--sh-degree must be 0 to 3, got 4"),
    ],
)
def test_bad_options_are_one_line(
    tiny_capture: Path, capsys: pytest.CaptureFixture[str], options: list[str], message: str
) -> None:
    assert _plan(tiny_capture, *options) == 2
    assert message in capsys.readouterr().err


def test_a_folder_without_a_model_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _plan(tmp_path) == 2
    said = capsys.readouterr().err.splitlines()
    assert [line.split(":")[0] for line in said] == ["planning 1/7", "gs-train"]


# ---------------------------------------------------------------------- rates


def _rows_and_view() -> tuple[dict[str, torch.Tensor], View]:
    random = torch.Generator().manual_seed(0)
    rows = {
        "means": torch.randn(200, 3, generator=random) + torch.tensor([0.0, 0.0, 8.0]),
        "scales": torch.full((200, 3), -2.5),
        "quats": torch.randn(200, 4, generator=random),
        "opacities": torch.zeros(200),
        "sh0": torch.zeros(200, 1, 3),
        "shN": torch.zeros(200, 15, 3),
    }
    K = torch.tensor([[60.0, 0, 32], [0, 60.0, 24], [0, 0, 1]])
    return rows, View("a", torch.eye(4), K, 64, 48)


def test_measured_rates_are_positive_and_survive_the_file(quick: None, tmp_path: Path) -> None:
    rows, view = _rows_and_view()
    before = {name: values.clone() for name, values in rows.items()}
    rates = measure_rates(CpuRenderer(), rows, view, n_visible=300)
    assert all(torch.equal(before[name], rows[name]) for name in rows)
    assert rates.device == "CPU"
    names = "to_device to_host both gather device_adam host_adam host_rows"
    for name in [*names.split(), "cull_rows", "cull_more_rows"]:
        assert getattr(rates, name) > 1e6, name
    assert rates.view_s + rates.row_s > 0
    assert (rates.batch_view_s, rates.batch_row_s) == (rates.view_s, rates.row_s)
    assert (rates.streamed_view_s, rates.streamed_row_s) == (rates.view_s, rates.row_s)
    assert rates.batch_s == 0
    for limits in (UNLIMITED, Limits(residents=0)):
        for at_once in (1, 2):
            assert timings.seconds_a_view(CpuRenderer(), rows, view, 300, at_once, limits) > 0
    rates.save(tmp_path / "rates.json")
    assert Rates.load(tmp_path / "rates.json") == rates


def test_on_a_cpu_views_are_timed_with_the_rows_that_a_run_begins_and_ends_with(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whatever lies between: a line through fewer rows would be far off where a run ends."""
    monkeypatch.setattr(timings, "_TABLE_BYTES", {"cpu": 1 << 20})  # of what is culled
    seconds = {8000: 0.5, 300_000: 2.0, 75_000: 0.6}
    monkeypatch.setattr(timings, "seconds_a_view", lambda *arguments: seconds[arguments[3]])
    rows, view = _rows_and_view()
    for n_first, few in ((8000, 8000), (None, 75_000), (300_000, 75_000)):
        rates = timings.time_views(CpuRenderer(), rows, view, 300_000, n_first)
        for n in (few, 300_000):
            assert rates["view_s"] + n * rates["row_s"] == pytest.approx(seconds[n])


def test_memory_that_is_not_there_is_said_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not that a batch ended in the middle: a finished run goes on without a prediction."""

    def fail(*_: object) -> None:
        raise torch.cuda.OutOfMemoryError("none left")

    monkeypatch.setattr(Drawing, "draw", fail)
    with pytest.raises(torch.cuda.OutOfMemoryError, match="none left"):
        timings.seconds_a_view(CpuRenderer(), *_rows_and_view(), 300, 2, UNLIMITED)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "cannot be read"),
        ("[1]", "must hold device, to_device"),
        ('{"to_device": 1}', "must hold device, to_device"),
    ],
)
def test_a_file_of_other_things_is_refused(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "rates.json").write_text(text)
    with pytest.raises(InputError, match=message):
        Rates.load(tmp_path / "rates.json")


@pytest.mark.parametrize(
    ("name", "value"), [("gather", 0), ("gather", "fast"), ("row_s", -1.0), ("view_s", None)]
)
def test_a_rate_must_be_positive(rates_file: Path, name: str, value: object) -> None:
    values = {**json.loads(rates_file.read_text()), name: value}
    rates_file.write_text(json.dumps(values))
    with pytest.raises(InputError, match=f"{name} must be positive, got {value}"):
        Rates.load(rates_file)
