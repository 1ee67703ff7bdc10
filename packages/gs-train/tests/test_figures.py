# SPDX-License-Identifier: Apache-2.0
"""What metrics.json says about training: predicted, real, and a batch's means."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from appearance_models import OPTIONS, RATES, make_rows
from street import street_rows, street_views

import gs_train.runs.expectation
import gs_train.runs.figures
import gs_train.runs.trainer
from gs_train.backends import tiered_engine
from gs_train.cli import main
from gs_train.data.synthetic import write_demo_capture
from gs_train.engine.residents import Residents
from gs_train.engine.settings import StepSettings
from gs_train.engine.trace import Trace
from gs_train.machine.lanes import Lanes
from gs_train.options.config import FitConfig
from gs_train.options.limits import UNLIMITED, Limits
from gs_train.options.presets import PRESETS
from gs_train.renderers.cpu import CpuRenderer
from gs_train.rows.attributes import NAMES
from gs_train.rows.host_rows import HostRows
from gs_train.rows.tiered import TieredGaussians
from gs_train.runs.figures import Pace
from gs_train.runs.occupancy import Span, device_idle_share, optimizer_tail_s
from gs_train.runs.trainer import StepResult, Trainer
from gs_train.runs.training import fit
from gs_train.sizing.rates import Rates

STEPS, BATCH = 6, 2
OFFLOADS = ["none", "naive", "clm", "gs-scale", "best"]
SPANS: list[Span] = [
    ("host", "prepare", 0.0, 1.0),
    ("load", "load 0", 0.5, 1.0),
    ("compute", "draw 0", 1.0, 2.0),
    ("compute", "update geometry", 3.0, 0.5),
    ("worker", "update 5", 2.5, 2.0),
    ("worker", "look ahead 5", 4.5, 2.0),
    ("compute", "draw 0", 7.0, 1.0),
]


# ---------------------------------------------------------------------- a trace


def test_the_device_is_idle_while_it_neither_computes_loads_nor_stores() -> None:
    # Busy from 0.5 to 3.5 and from 7 to 8.
    assert device_idle_share(SPANS) == pytest.approx(1 - 4 / 8)
    assert device_idle_share([*SPANS, ("store", "store 0", 3.5, 3.5)]) == pytest.approx(0.5 / 8)
    assert device_idle_share([*SPANS, ("cull", "bring", 0.0, 8.0)]) == pytest.approx(0.5)
    assert device_idle_share([]) == 0


def test_the_tail_of_the_optimizer_is_what_no_drawing_covers() -> None:
    assert optimizer_tail_s(SPANS) == pytest.approx(1.5)  # from 3 to 4.5
    assert optimizer_tail_s([*SPANS, ("compute", "draw 1", 3.0, 1.0)]) == pytest.approx(0.5)
    assert optimizer_tail_s([("compute", "update", 3.0, 1.0)]) == pytest.approx(1)
    assert optimizer_tail_s([("compute", "draw 0", 1.0, 1.0)]) == 0


# ---------------------------------------------------------------------- rows that slept


def test_rows_that_slept_are_counted_where_they_wake() -> None:
    host = HostRows(make_rows(100), semantics="deferred", device="cpu", travels=True)
    host.set_rates(RATES, **OPTIONS)
    lanes = Lanes(torch.device("cpu"))
    residents = Residents(host, lanes, Trace(lanes), 60)
    batches = [(0, 40), (20, 60), (60, 90), (0, 60)]
    counts, counted = torch.zeros(2, dtype=torch.int64), []
    for first, last in batches:
        ids = torch.arange(first, last, dtype=torch.int32)
        slots = residents.bring(ids)
        step = host.begin()
        residents.wake(slots, ids, step, counts=counts)
        counted.append(counts.tolist())
        residents.update(slots, ids, torch.ones(len(ids), host.width), step)
        host.end(step)
    assert counted == [[40, 0], [80, 20], [110, 50], [170, 110]]


def test_the_host_counts_rows_that_sleep_as_the_device_does() -> None:
    by_device, by_host = _caught_up(UNLIMITED), _caught_up(Limits(residents=0))
    # Before anything is known all rows count as asleep.
    assert by_host[0] > 0 == by_device[0]
    assert by_host[1:] == by_device[1:]
    assert min(by_device[1:]) > 0


def _caught_up(limits: Limits) -> list[int]:
    """Of each batch."""
    rows, views = street_rows(2000), street_views()
    model = TieredGaussians(rows, device="cpu", semantics="deferred", travels=True)
    engine = tiered_engine(PRESETS["best"], model, CpuRenderer(), limits=limits)
    settings = StepSettings(3, dict.fromkeys(NAMES, 1e-4), (0.9, 0.999), 1e-15, 0.2)
    truth = torch.zeros(64, 96, 3, dtype=torch.uint8)
    batches = [[views[i] for i in pair] for pair in ((0, 2), (2, 4), (4, 0), (2, 6))]
    counts = []
    for step, batch in enumerate(batches):
        of = [(view, truth) for view in batch]
        engine.step(of, settings, lambda *_: None, upcoming=batches[step + 1 :])
        counts.append(engine.stats.caught_up)
    return [after - before for before, after in zip([0, *counts], counts)]


# ---------------------------------------------------------------------- the pace


def test_the_pace_is_that_of_the_present_number_of_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr(gs_train.runs.figures.time, "perf_counter", lambda: now)
    pace = Pace(4)

    def steps(n: int, seconds: float, n_rows: int) -> None:
        nonlocal now
        for _ in range(n):
            now += seconds
            pace.step(n_rows)

    steps(10, 9.0, 100)  # kernels are compiled
    steps(19, 2.0, 100)
    assert pace.images_per_second() is None
    steps(1, 2.0, 100)
    assert pace.images_per_second() == pytest.approx(4 / 2)
    steps(21, 5.0, 200)
    assert pace.images_per_second() == pytest.approx(4 / 5)
    now += 1000.0
    pace.leave_out(1000.0)
    assert pace.images_per_second() == pytest.approx(4 / 5)


# ---------------------------------------------------------------------- runs


def _config(capture: Path, out: Path, offload: str, **options: Any) -> FitConfig:
    batch = 1 if offload == "gs-scale" else BATCH
    return FitConfig(
        data=capture,
        out=out,
        steps=STEPS,
        batch_size=batch,
        renderer="cpu",
        offload=offload,  # type: ignore[arg-type]
        **options,
    )


@pytest.fixture(scope="module")
def capture(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("capture")
    return write_demo_capture(folder, n_views=8, width=48, height=40)


@pytest.mark.parametrize("offload", OFFLOADS)
def test_a_run_says_what_its_batches_did(
    capture: Path, tmp_path: Path, offload: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[int] = []
    original = Trainer.train_step

    def counted(self: Trainer, *arguments: Any, **options: Any) -> StepResult:
        observe = self.densifier.observe

        def observed(ids: torch.Tensor, *rest: Any, **more: Any) -> None:
            seen.append(len(ids))
            observe(ids, *rest, **more)

        with monkeypatch.context() as patch:
            patch.setattr(self.densifier, "observe", observed)
            return original(self, *arguments, **options)

    monkeypatch.setattr(gs_train.runs.trainer.Trainer, "train_step", counted)
    metrics = fit(_config(capture, tmp_path / "run", offload))
    assert json.loads((tmp_path / "run" / "metrics.json").read_text()) == metrics
    n, of = metrics["n_gaussians"], metrics["batches"]
    assert of["batches"] == STEPS
    if offload == "gs-scale":  # its views are cut, and crops overlap
        assert of["rows_visible"] > sum(seen) / STEPS > 0
    else:
        assert of["rows_visible"] == sum(seen) / STEPS > 0
    assert "device_idle_share" not in of
    if offload in ("naive", "clm"):
        assert (of["rows_updated"], of["rows_caught_up"]) == (n, 0)
    else:
        assert 0 < of["rows_updated"] <= min(n, of["rows_visible"])
        assert of["rows_caught_up"] <= of["rows_updated"]
    moved = (of["bytes_loaded"], of["bytes_stored"])
    if offload == "none":
        assert moved == (0, 0)
    elif offload == "naive":
        assert moved == (236 * n, 236 * n)
    elif offload == "best":
        # All rows stay: each comes once, with its moments.
        assert moved[1] == 0 < moved[0] <= 576 * n / STEPS
    else:
        assert 0 < moved[1] <= moved[0] <= 192 * of["rows_visible"]


def test_a_run_says_what_it_took_beside_what_was_to_be_expected(
    capture: Path, tmp_path: Path
) -> None:
    metrics = fit(_config(capture, tmp_path / "run", "best"))
    sections = {name: metrics[name] for name in ("predicted", "real")}
    for of in sections.values():
        names = ["device_bytes", "pinned_bytes", "host_bytes", "images_per_second", "seconds"]
        assert list(of) == names
        # Without a GPU everything is in the host's memory; six steps tell no rate.
        assert (of["device_bytes"], of["pinned_bytes"]) == ("n/a", "n/a")
        assert of["images_per_second"] == "n/a"
        assert of["host_bytes"] > 712 * metrics["n_gaussians"]
    assert sections["predicted"]["seconds"] == "n/a"  # they are over before anything is said
    assert sections["real"]["seconds"] == metrics["seconds"]
    assert main(["eval", str(tmp_path / "run"), "--renderer", "cpu"]) == 0
    read = json.loads((tmp_path / "run" / "metrics.json").read_text())
    assert read == metrics


def test_the_time_that_was_said_is_kept(
    capture: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for name, value in (("_WARM_UP", 1), ("_LEAST_STEPS", 2), ("_LEAST_S", 0.0)):
        monkeypatch.setattr(gs_train.runs.expectation, name, value)
    metrics = fit(_config(capture, tmp_path / "run", "none"))
    assert "steps will take about 0:0" in capsys.readouterr().err
    assert metrics["predicted"]["seconds"] > 0
    page = (tmp_path / "run/report.html").read_text()
    shown = [f"{metrics[of]['seconds']:.1f}" for of in ("predicted", "real")]
    cells = "".join(f'<td class="number">{value}</td>' for value in shown)
    assert f"<tr><td>seconds</td>{cells}</tr>" in page


def test_a_traced_run_says_how_idle_the_device_was(capture: Path, tmp_path: Path) -> None:
    metrics = fit(_config(capture, tmp_path / "run", "best", trace=tmp_path / "trace.json"))
    of = metrics["batches"]
    assert 0 <= of["device_idle_share"] < 1
    assert 0 < of["optimizer_tail_s"] < metrics["seconds"]


def test_memory_that_runs_out_while_predicting_ends_no_run(
    capture: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> Rates:
        raise torch.cuda.OutOfMemoryError("nothing is left")

    monkeypatch.setattr(gs_train.runs.figures, "workload_of", full)
    metrics = fit(_config(capture, tmp_path / "run", "best"))
    assert set(metrics["predicted"].values()) == {"n/a"}
    assert metrics["real"]["host_bytes"] > 0
