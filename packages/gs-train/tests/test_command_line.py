# SPDX-License-Identifier: Apache-2.0
"""What the command line says of itself, and where something is misspelt."""

import importlib.metadata
from pathlib import Path

import pytest
import tyro

from gs_train.cli import main
from gs_train.options.config import FitConfig
from gs_train.options.config_file import load_config, save_config


def test_it_says_which_version_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"gs-train {importlib.metadata.version('gs-train')}\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["fti", "DATA"], "there is no command 'fti', did you mean gs-train fit? (the commands"),
        (["frobnicate"], "there is no command 'frobnicate' (the commands are fit, check,"),
        (["--steps", "3"], "--steps must follow a command: gs-train COMMAND ... --steps"),
        (["--steps", "3", "demo"], "--steps must follow a command: gs-train demo ... --steps"),
    ],
)
def test_a_command_that_there_is_not_is_one_line_with_those_that_there_are(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    said = capsys.readouterr().err
    assert message in said
    assert said.count("\n") == 1


def test_a_misspelt_option_is_compared_with_those_of_its_own_command(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit) as left:
        main(["fit", "DATA", "--out", "X", "--stepps", "3"])
    assert left.value.code == 2
    said = capsys.readouterr().err
    assert "--steps" in said
    assert "gs-train fit --help" in said
    assert "demo" not in said


@pytest.mark.parametrize("arguments", [[], ["--help"], ["fit", "--help"]])
def test_help_is_left_to_the_parser(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main(arguments)
    said = "".join(capsys.readouterr())
    assert "gs-train" in said
    assert ("N[k|M]" in said) == (arguments == ["fit", "--help"])


def test_counts_may_be_written_short_and_are_kept_as_plain_numbers(tmp_path: Path) -> None:
    options = ["--steps", "30k", "--cap", "1.5M", "--mcmc.refine-stop", "2k", "--adc.cap", "7k"]
    config = tyro.cli(FitConfig, args=["a", "--out", "b", *options])
    assert (config.steps, config.cap) == (30_000, 1_500_000)
    assert (config.mcmc.refine_stop, config.adc.cap) == (2000, 7000)
    save_config(tmp_path / "config.yml", config)
    assert "steps: 30000\n" in (tmp_path / "config.yml").read_text()
    assert load_config(tmp_path / "config.yml") == config
    assert tyro.cli(FitConfig, args=["a", "--out", "b"]) == FitConfig(Path("a"), Path("b"))


def test_a_count_that_is_no_whole_number_names_its_option(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit):
        main(["fit", "DATA", "--out", "X", "--steps", "2.5"])
    said = capsys.readouterr().err
    assert "--steps: it must be a whole number such as 30000, 30k or 1.5M" in said
