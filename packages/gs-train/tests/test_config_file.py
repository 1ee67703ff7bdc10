# SPDX-License-Identifier: Apache-2.0
"""``fit --config FILE``: options from a file, a run's own ``config.yml`` among them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from one_thread import one_threaded

from gs_train.checkpoint import latest_checkpoint, load_checkpoint
from gs_train.cli import main
from gs_train.commands.fit_options import parse_fit
from gs_train.errors import InputError
from gs_train.options.config_file import load_config, save_config

RECIPE = """\
# a comment
steps: 5
batch_size: 2
renderer: cpu
max_side: 32
sh_every: 1k
adc: {refine_start: 2, refine_every: 4, grow_grad2d: 1.0e-5}
lr:
  sh0: 0.004
"""


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    (tmp_path / "recipe.yml").write_text(RECIPE)
    return tmp_path / "recipe.yml"


def _tensors(out: Path) -> dict[str, torch.Tensor]:
    newest = latest_checkpoint(out / "checkpoints")
    assert newest is not None
    return load_checkpoint(newest).tensors


@one_threaded
def test_a_runs_own_file_repeats_the_run_to_the_bit(
    tiny_capture: Path, tmp_path: Path, recipe: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    assert main(["fit", str(tiny_capture), "--config", str(recipe), "--out", str(first)]) == 0
    said = capsys.readouterr().err.splitlines()[0]
    assert said == (
        f"options of {recipe}: steps 5, batch_size 2, renderer cpu, max_side 32, "
        "adc.grow_grad2d 1e-05, adc.refine_start 2, adc.refine_every 4, lr.sh0 0.004"
    )
    assert main(["fit", "--config", str(first / "config.yml"), "--out", str(second)]) == 0
    ours, theirs = _tensors(first), _tensors(second)
    assert ours.keys() == theirs.keys()
    for name in ours:
        assert torch.equal(ours[name], theirs[name]), name
    lines = [(out / "config.yml").read_text().splitlines() for out in (first, second)]
    different = [pair for pair in zip(*lines) if pair[0] != pair[1]]
    assert different == [(f"out: {first}", f"out: {second}")]
    # Without another place the file names its own run, which is neither repeated nor lost.
    assert main(["fit", "--config", str(first / "config.yml")]) == 2
    assert f"--out {first} holds another run" in capsys.readouterr().err


def test_the_command_line_goes_before_the_file(recipe: Path) -> None:
    command = ["DATA", "--out", "RUN", "--config", str(recipe), "--steps", "7"]
    config, lines = parse_fit([*command, "--adc.refine-start", "3", "--no-scale-with-batch"])
    assert (config.steps, config.batch_size, config.sh_every) == (7, 2, 1000)
    assert (config.adc.refine_start, config.adc.refine_every) == (3, 4)
    assert config.lr.sh0 == 0.004
    assert config.lr.means == 1.6e-4  # the default, beside an option of the file
    assert not config.scale_with_batch
    assert lines == [
        f"options of {recipe}: batch_size 2, renderer cpu, max_side 32, adc.grow_grad2d 1e-05, "
        "adc.refine_every 4, lr.sh0 0.004"
    ]


def test_the_file_may_name_data_and_out(tmp_path: Path) -> None:
    path = tmp_path / "all.yml"
    path.write_text("data: photos\nout: here\nskip_broken: true\n")
    config, lines = parse_fit([f"--config={path}", "--no-skip-broken"])
    assert (config.data, config.out, config.skip_broken) == (Path("photos"), Path("here"), False)
    assert lines == [f"options of {path}: none but defaults"]
    assert parse_fit(["other", f"--config={path}"])[0].data == Path("other")


def test_what_neither_names_is_asked_for(recipe: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main(["fit", "--config", str(recipe)])
    assert left.value.code == 2
    said = capsys.readouterr().err
    assert "DATA" in said
    assert "--out" in said


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("step: 3", "recipe.yml holds the unknown option 'step', did you mean steps?"),
        ("max-side: 64", "the unknown option 'max-side', did you mean max_side?"),
        (
            "adc: {refine_strat: 3}",
            "holds the unknown option 'adc.refine_strat', did you mean adc.refine_start?",
        ),
        ("xyzzy: 1", "recipe.yml holds the unknown option 'xyzzy'"),
        ("steps: many", "recipe.yml must hold a whole number for steps, got 'many'"),
        ("steps: 0", "recipe.yml: --steps must be at least 1, got 0"),
        ("image_cache: lots", "recipe.yml: --image-cache must be a size such as 4GiB or 500MB"),
        ("lr: {means: -1.0}", "--lr.means must be finite and not negative, got -1.0"),
        ("resume: true", "must leave out resume, which belongs to one call: give --resume on"),
        ("gpus: '2'", "must leave out gpus, which belongs to one call: give --gpus on the"),
        ("config: other.yml", "holds the unknown option 'config'"),
        ("7", "must hold a mapping of options, got int"),
        ("steps: [", "is not valid YAML"),
    ],
)
def test_a_file_that_says_something_else_is_one_line(
    text: str, message: str, recipe: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe.write_text(text)
    assert main(["fit", "DATA", "--out", "RUN", "--config", str(recipe)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert message in line


def test_a_file_that_is_not_there_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"--config .*none.yml does not exist"):
        parse_fit(["DATA", "--out", "RUN", "--config", str(tmp_path / "none.yml")])


def test_a_resumed_run_has_its_own_options(recipe: Path) -> None:
    with pytest.raises(InputError, match="--config and --resume exclude each other"):
        parse_fit(["DATA", "--out", "RUN", "--config", str(recipe), "--resume"])


def test_a_recorded_file_is_whole_and_says_nothing_of_files(tmp_path: Path, recipe: Path) -> None:
    config, _ = parse_fit(["DATA", "--out", "RUN", "--config", str(recipe)])
    assert not hasattr(config, "config")
    save_config(tmp_path / "config.yml", config)
    assert load_config(tmp_path / "config.yml") == config
