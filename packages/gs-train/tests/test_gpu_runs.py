# SPDX-License-Identifier: Apache-2.0
"""Runs on a GPU: memory over many batches, and which preset auto takes there."""

import gc
import json
from pathlib import Path

import pytest
import torch
from one_thread import one_threaded
from photographed import photo_config, renderer, street
from street import EXTENT, drive

from gs_train.cli import main
from gs_train.densify import AdcConfig
from gs_train.options.limits import Limits
from gs_train.options.presets import PRESETS
from gs_train.options.schedule import LearningRates
from gs_train.runs import figures
from gs_train.runs.trainer import Trainer
from gs_train.sizing import rates

pytestmark = pytest.mark.gpu

EPOCH, EPOCHS, WARM_UP = 50, 20, 6  # tables of what sleeping rows miss grow for some 200 steps
STILL = LearningRates(**dict.fromkeys(("means", "scales", "quats", "opacities", "sh0", "shN"), 0.0))


@pytest.mark.parametrize(
    ("preset", "residents"), [("none", None), ("naive", None), ("clm", None), ("gs-scale", None),
                              ("best", None), ("best", 300), ("best", 0)],
)  # fmt: skip
@pytest.mark.parametrize("drawn_by", ["raster", "gsplat"])
@one_threaded
def test_a_thousand_batches_take_no_more_memory_than_the_first(
    drawn_by: str, preset: str, residents: int | None
) -> None:
    """Rows stand still, so that each epoch's batches have the sizes of the last one's."""
    batch_size = 1 if PRESETS[preset].single_view else 2
    config = photo_config(
        batch_size=batch_size,
        resort_every=0,
        lr=STILL,
        steps=EPOCH * EPOCHS,
        adc=AdcConfig(refine_stop=0),
    )
    trainer = Trainer(
        config,
        street().rows,
        renderer=renderer(drawn_by),
        extent=EXTENT,
        preset=PRESETS[preset],
        limits=Limits(residents=residents),
    )
    batches = drive(EPOCH, batch_size) * (EPOCHS + 1)
    scene = street().on("cuda")
    held: list[tuple[int, int]] = []
    reserved: list[int] = []
    for step, batch in enumerate(batches[: EPOCH * EPOCHS]):
        upcoming = [[scene.views[i] for i in later] for later in batches[step + 1 : step + 3]]
        trainer.train_step([(scene.views[i], scene.photographs[i]) for i in batch], upcoming)
        if (step + 1) % EPOCH == 0:
            gc.collect()
            torch.cuda.synchronize()
            held.append((torch.cuda.memory_allocated(), figures.locked_bytes()))
            reserved.append(torch.cuda.memory_reserved())
    trainer.backend.finish()
    assert trainer.step == 1000
    assert len(set(held[WARM_UP:])) == 1, held
    # A block that another stream still reads is not reused at once: by how much depends on time.
    assert max(reserved[WARM_UP:]) <= 1.05 * reserved[WARM_UP], reserved
    if PRESETS[preset].placement == "split":
        trainer.model.close()  # type: ignore[attr-defined]


@one_threaded
def test_auto_takes_none_where_all_fits_and_measures_nothing_for_it(
    tiny_capture: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def unwanted(*_: object, **__: object) -> None:
        raise AssertionError("nothing is to be measured")

    monkeypatch.setattr(rates, "measure_rates", unwanted)
    command = ["fit", str(tiny_capture), "--steps", "2", "--cap", "20000", "--out"]
    assert main([*command, str(tmp_path / "run")]) == 0
    assert "offload none: all of it fits on the device (" in capsys.readouterr().err
    assert json.loads((tmp_path / "run" / "metrics.json").read_text())["preset"] == "none"


@one_threaded
def test_a_run_says_what_it_took_and_what_was_to_be_expected(
    tiny_capture: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(figures, "_WORTH_S", 0.0)
    command = ["fit", str(tiny_capture), "--steps", "60", "--batch-size", "2", "--cap", "20000"]
    assert main([*command, "--offload", "best", "--out", str(tmp_path / "run")]) == 0
    metrics = json.loads((tmp_path / "run" / "metrics.json").read_text())
    names = ["device_bytes", "pinned_bytes", "host_bytes", "images_per_second"]
    for section in ("predicted", "real"):
        assert list(metrics[section]) == [*names, "seconds"]
        assert all(metrics[section][name] > 0 for name in names), metrics[section]
