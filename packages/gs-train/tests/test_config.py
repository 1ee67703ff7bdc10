# SPDX-License-Identifier: Apache-2.0
from pathlib import Path

import pytest

from gs_train.config import FitConfig, load_config, save_config
from gs_train.densify import AdcConfig
from gs_train.errors import InputError


def test_a_configuration_survives_the_file(tmp_path: Path) -> None:
    config = FitConfig(
        data=Path("photos"),
        out=tmp_path,
        steps=70,
        cap=9,
        test_list=Path("names.txt"),
        adc=AdcConfig(grow_grad2d=0.0008, absgrad=True),
    )
    save_config(tmp_path / "config.yml", config)
    assert load_config(tmp_path / "config.yml") == config


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("steps: [", "is not valid YAML"),
        ("7", "must hold a mapping of options, got int"),
        ("data: a\nout: b\nstepz: 3\n", "holds the unknown option 'stepz'"),
        ("steps: 3\n", "does not fit this version"),
        ("data: a\nout: b\nsteps: 0\n", "--steps must be at least 1, got 0"),
        ("data: a\nout: b\nlr:\n", "must hold a mapping for lr, got None"),
        ("data: a\nout: b\nlr: {means: .nan}\n", "--lr.means must be finite and not negative"),
    ],
)
def test_a_damaged_file_is_one_clear_error(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "config.yml").write_text(text)
    with pytest.raises(InputError, match=message):
        load_config(tmp_path / "config.yml")


def test_a_missing_file_says_that_there_is_no_run(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="holds no run of gs-train"):
        load_config(tmp_path / "config.yml")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch_size": 0}, "--batch-size must be at least 1, got 0"),
        ({"sh_degree": 4}, "--sh-degree must be 0 to 3, got 4"),
        ({"ssim_lambda": 1.5}, "--ssim-lambda must be 0 to 1"),
        ({"max_side": 3}, "--max-side must be at least 16"),
        ({"cap": 3}, "--cap must be at least 4"),
        ({"seed": 2**64}, "--seed must be below 2"),
        ({"strategy": "magic"}, "--strategy must be adc or mcmc, got magic"),
        ({"image_cache": "0"}, "--image-cache must be at least one byte"),
        ({"init_opacity": 1.0}, "--init-opacity must be between 0 and 1"),
        ({"scale_reg": -1.0}, "--scale-reg must be not negative"),
        ({"image_cache": "lots"}, "--image-cache must be a size"),
        ({"resume": True, "overwrite": True}, "--resume and --overwrite exclude each other"),
    ],
)
def test_options_out_of_range_are_named(options: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        FitConfig(data=Path("a"), out=Path("b"), **options)


def test_some_defaults_follow_the_strategy() -> None:
    adc = FitConfig(data=Path("a"), out=Path("b"))
    mcmc = FitConfig(data=Path("a"), out=Path("b"), strategy="mcmc", init_scale=0.3)
    assert [adc.by_strategy(n) for n in ("init_opacity", "init_scale", "opacity_reg")] == [
        0.1,
        1,
        0,
    ]
    assert [mcmc.by_strategy(n) for n in ("init_opacity", "init_scale")] == [0.5, 0.3]
    assert mcmc.by_strategy("scale_reg") == 0.01


def test_the_recipe_is_what_decides_the_result() -> None:
    recipe = FitConfig(data=Path("a"), out=Path("b")).recipe
    assert {"batch_size", "seed", "lr", "adc", "max_side"} <= set(recipe)
    assert not {"out", "steps", "resume", "image_cache"} & set(recipe)
