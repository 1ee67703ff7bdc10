# SPDX-License-Identifier: Apache-2.0
import os
from pathlib import Path

import pytest

from gs_train.densify import AdcConfig
from gs_train.errors import InputError
from gs_train.options.config import FitConfig
from gs_train.options.config_file import for_the_record, load_config, save_config


def test_a_configuration_survives_the_file(tmp_path: Path) -> None:
    config = FitConfig(
        data=Path("photos"),
        out=tmp_path,
        steps=70,
        cap=9,
        test_list=Path("names.txt"),
        offload="best",
        device_memory="24GiB",
        semantics="sparse",
        trace=Path("trace.json"),
        adc=AdcConfig(grow_grad2d=0.0008, absgrad=True),
    )
    save_config(tmp_path / "config.yml", config)
    assert load_config(tmp_path / "config.yml") == config


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("steps: [", "is not valid YAML"),
        ("data: \udcff", "is not valid YAML: 'utf-8' codec can't decode"),
        ("7", "must hold a mapping of options, got int"),
        ("data: a\nout: b\nstepz: 3\n", "holds the unknown option 'stepz'"),
        ("steps: 3\n", "does not fit this version"),
        ("data: a\nout: b\nsteps: 0\n", "--steps must be at least 1, got 0"),
        ("data: a\nout: b\nlr:\n", "must hold a mapping for lr, got None"),
        ("data: a\nout: b\nlr: {means: .nan}\n", "--lr.means must be finite and not negative"),
        ("data: 7\nout: b\n", "config.yml must hold a path for data, got 7"),
        ("data: a\nout: b\nsteps: 2000.5\n", "must hold a whole number for steps, got 2000.5"),
        ("data: a\nout: b\nseed: true\n", "must hold a whole number for seed, got True"),
        ("data: a\nout: b\ncap: many\n", "must hold a whole number or null for cap, got 'many'"),
        ("data: a\nout: b\nresume: 'no'\n", "must hold true or false for resume, got 'no'"),
        (
            "data: a\nout: b\nrenderer: 3\n",
            "must hold auto, raster, gsplat or cpu for renderer, got 3",
        ),
        ("data: a\nout: b\ninit: [a]\n", r"must hold a path or null for init, got \['a'\]"),
        (
            "data: a\nout: b\ndevice_memory: 1.5\n",
            "must hold text or null for device_memory, got 1.5",
        ),
        (
            "data: a\nout: b\nlr: {means: 1e-4}\n",
            "a number such as 1.0e-4 for lr.means, got '1e-4'",
        ),
        ("data: a\nout: b\nadc: {absgrad: 1}\n", "must hold true or false for adc.absgrad, got 1"),
        ("data: a\nout: b\nadc: {3: 1, a: 2}\n", "holds the unknown option 'adc.3'"),
        ("[" * 5000, "is not valid YAML: brackets lie too deep in each other"),
        ('data: "a\\0b"\nout: b\n', r"must hold a path for data, got 'a\\x00b'"),
        (f"data: {{{'x' * 500}: 1}}\nout: b\n", r"for data, got \{'x{70,80}$"),
        ("data: a\nout: b\nsteps: 0\n", r"config\.yml: --steps must be at least 1, got 0"),
        ("data: a\nout: b\nadc: {refine_every: 0}\n", r"config\.yml: --adc\.refine-every must be"),
        ("data: a\nout: b\ntide: {slots: 0}\n", r"config\.yml: --tide\.slots must be"),
        ("#" * 2_000_000, "cannot be read: it has 2,000,000 bytes, at most 1,048,576"),
    ],
)
def test_a_damaged_file_is_one_clear_error(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "config.yml").write_bytes(text.encode(errors="surrogateescape"))
    with pytest.raises(InputError, match=message):
        load_config(tmp_path / "config.yml")


def test_a_file_that_cannot_be_read_is_one_clear_error(tmp_path: Path) -> None:
    (tmp_path / "config.yml").mkdir()
    with pytest.raises(InputError, match=r"config\.yml cannot be read: Is a directory"):
        load_config(tmp_path / "config.yml")


def test_a_pipe_in_place_of_the_file_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "config.yml")
    with pytest.raises(InputError, match=r"config\.yml cannot be read: Not a regular file"):
        load_config(tmp_path / "config.yml")


def test_whole_numbers_will_do_for_others_and_for_sizes(tmp_path: Path) -> None:
    text = "data: a\nout: b\nimage_cache: 1000000\ndevice_memory: 5000\nmem_limit: 1\n"
    (tmp_path / "config.yml").write_text(text)
    config = load_config(tmp_path / "config.yml")
    assert (config.bytes_of("image_cache"), config.bytes_of("device_memory")) == (1000000, 5000)
    assert config.mem_limit == 1.0


def test_a_missing_file_says_that_there_is_no_run(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="holds no run of gs-train"):
        load_config(tmp_path / "config.yml")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch_size": 0}, "--batch-size must be at least 1, got 0"),
        ({"sh_degree": 4}, "--sh-degree must be 0 to 3, got 4"),
        ({"ssim_lambda": 1.5}, "--ssim-lambda must be 0 to 1"),
        ({"max_side": 3}, "--max-side must be at least 16 pixels, or off, got 3"),
        ({"max_side": None}, "--max-side must be at least 16 pixels, or off, got None"),
        ({"cap": 3}, "--cap must be at least 4"),
        ({"seed": 2**64}, "--seed must be below 2"),
        ({"order": "local"}, "--order must be shuffle or tiles, got local"),
        ({"tile_views": 8}, "--tile-views needs --order tiles, got --order shuffle"),
        (
            {"order": "tiles", "batch_size": 4, "tile_views": 3},
            "--tile-views must be at least the --batch-size 4, got 3",
        ),
        ({"strategy": "magic"}, "--strategy must be adc, mcmc or fixed, got magic"),
        ({"image_cache": "0"}, "--image-cache must be at least one byte"),
        ({"init_opacity": 1.0}, "--init-opacity must be between 0 and 1"),
        (
            {"resort_every": 1000},
            "--resort-every must be 0 to 16 times the number of Gaussians, got 1",
        ),
        ({"resort_every": float("nan")}, "--resort-every must be 0 to 16 times"),
        ({"scale_reg": -1.0}, "--scale-reg must be finite and not negative"),
        ({"opacity_reg": float("inf")}, "--opacity-reg must be finite and not negative, got inf"),
        ({"image_cache": "lots"}, "--image-cache must be a size"),
        ({"resume": True, "overwrite": True}, "--resume and --overwrite exclude each other"),
        (
            {"offload": "disk"},
            "none, naive, clm, gs-scale, best or tide, got disk",
        ),
        ({"offload": "gs-scale", "batch_size": 2}, "gs-scale needs --batch-size 1, got 2"),
        ({"device_memory": "plenty"}, "--device-memory must be a size such as 4GiB"),
        ({"device_memory": "0GiB"}, "--device-memory must be at least one byte, got 0GiB"),
        ({"host_memory": "-1"}, "--host-memory must be a size"),
        ({"semantics": "lazy"}, "--semantics must be dense or sparse, got lazy"),
        ({"regularise": "none"}, "--regularise must be all or visible, got none"),
        ({"cut_views": "always"}, "--cut-views must be auto or never, got always"),
        ({"mem_limit": 0.0}, "--mem-limit must be above 0 and at most 1, got 0.0"),
        ({"mem_limit": float("nan")}, "--mem-limit must be above 0 and at most 1, got nan"),
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
    assert {"semantics", "regularise", "mem_limit", "order", "tile_views"} <= set(recipe)
    free = {"out", "steps", "resume", "image_cache", "device_memory", "host_memory", "trace"}
    free |= {"scratch", "gpus", "cut_views"}
    free |= {"init", "offload"}  # what was started from, and where: the checkpoint says
    assert not free & set(recipe)


def test_sizes_are_read_in_bytes() -> None:
    config = FitConfig(data=Path("a"), out=Path("b"), device_memory="24GiB", host_memory="500MB")
    assert config.bytes_of("device_memory") == 24 * 2**30
    assert config.bytes_of("host_memory") == 500_000_000
    assert FitConfig(data=Path("a"), out=Path("b")).bytes_of("device_memory") is None


def test_a_trace_belongs_to_one_call() -> None:
    config = FitConfig(data=Path("a"), out=Path("b"), offload="clm", trace=Path("t.json"))
    kept = for_the_record(config)
    assert (kept.trace, kept.offload) == (None, "clm")
