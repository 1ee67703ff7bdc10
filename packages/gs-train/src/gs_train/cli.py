# SPDX-License-Identifier: Apache-2.0
"""The command ``gs-train``."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.metadata
import io
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any

import torch
import tyro

from gs_train.api import fit
from gs_train.commands.check import CheckConfig, check
from gs_train.commands.command_line import command_of
from gs_train.commands.demo import DemoConfig, demo
from gs_train.commands.export import ExportConfig, export
from gs_train.commands.fit_options import parse_fit
from gs_train.commands.gpus import ranks_of, require_shareable, without_gpus
from gs_train.commands.inspection import InspectConfig, inspect
from gs_train.commands.plan import PlanConfig, plan
from gs_train.commands.render import RenderConfig, render
from gs_train.commands.store import StoreConfig, store
from gs_train.commands.view import ViewConfig, view
from gs_train.errors import InputError
from gs_train.machine.interrupt import Interrupted
from gs_train.names import printable
from gs_train.options.config import FitConfig
from gs_train.runs.evaluate import EvalConfig, evaluate_on_ranks
from gs_train.runs.folder import RunFolder
from gs_train.runs.guard import in_one_line
from gs_train.world import ToldError
from gs_train.world.launcher import launch
from gs_train.world.standing import has_the_word, standing

_COMMANDS: dict[str, tuple[type, Callable[[Any], object]]] = {
    "fit": (FitConfig, fit),
    "check": (CheckConfig, check),
    "plan": (PlanConfig, plan),
    "eval": (EvalConfig, evaluate_on_ranks),
    "render": (RenderConfig, render),
    "view": (ViewConfig, view),
    "export": (ExportConfig, export),
    "inspect": (InspectConfig, inspect),
    "store": (StoreConfig, store),
    "demo": (DemoConfig, demo),
}


_OF_RANKS = FitConfig | EvalConfig | RenderConfig | ExportConfig
"""Options of commands that several processes carry out together. Of all others, and of what is said
about a command line, one rank is enough."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command. Of several ranks, the first one alone runs those that are for one process;
    the others return 0, or 2 where the command line cannot be used, and say nothing.

    Args:
        arguments: the command line without the program's name; ``sys.argv`` when None.

    Returns:
        0; 2 after input that the user can correct, trouble with a file, or where memory ran out; 1
        after an error that was not foreseen; each with one line on stderr. 128 + the signal when
        stopped.
    """
    # Tensors of many sizes come and go on several streams: in segments of fixed size that leaves
    # gaps of gigabytes. Read when the device's memory is first used.
    os.environ.setdefault("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")
    argv = list(sys.argv[1:] if arguments is None else arguments)
    folder: RunFolder | None = None
    if argv[:1] == ["--version"]:
        if has_the_word(os.environ):
            print(f"gs-train {importlib.metadata.version('gs-train')}")
        return 0
    try:
        config, lines = _parse_once(argv)
        if not isinstance(config, _OF_RANKS):
            if not has_the_word(os.environ):
                return 0
            if standing(os.environ) is not None:
                os.environ["WORLD_SIZE"] = "1"  # others would be waited for
        folder = _folder_of(config)
        n_ranks = _ranks_for(config)
        if n_ranks is not None:
            return launch(without_gpus(argv), n_ranks)
        if lines and has_the_word(os.environ):
            print(*map(printable, lines), sep="\n", file=sys.stderr)
        if isinstance(config, FitConfig):
            config = dataclasses.replace(config, gpus=None)
        _COMMANDS[_name_of(config)][1](config)
    except ToldError as told:
        return told.exit_status
    except Interrupted as stopped:
        if has_the_word(os.environ):
            print(f"gs-train: {stopped}", file=sys.stderr)
        return stopped.exit_status
    except Exception as error:
        return _failed(*in_one_line(error, folder))
    return 0


def _ranks_for(config: Any) -> int | None:
    """How many processes a command wants; None: this one."""
    if not isinstance(config, _OF_RANKS):
        return None
    n_devices = torch.cuda.device_count() if config.gpus else 0
    renderer = getattr(config, "renderer", "auto" if n_devices else "cpu")
    n_ranks = ranks_of(config.gpus, renderer=renderer, n_devices=n_devices, environment=os.environ)
    if n_ranks is not None:
        require_shareable(getattr(config, "offload", "auto"), renderer)
    return n_ranks


def _failed(message: str, exit_status: int) -> int:
    print(f"gs-train: error: {printable(message)}", file=sys.stderr)
    return exit_status


def _folder_of(config: Any) -> RunFolder | None:
    """Of the run that a command writes or reads."""
    for name in ("run", "out", "dir"):
        if hasattr(config, name):
            return RunFolder(getattr(config, name))
    return None


def _parse_once(argv: list[str]) -> tuple[Any, list[str]]:
    """:func:`_parse`, of whose errors and help one rank is enough.

    Raises:
        SystemExit: as `_parse`; and where another rank says what is wrong.
    """
    if has_the_word(os.environ):
        return _parse(argv)
    unsaid = io.StringIO()
    with contextlib.redirect_stdout(unsaid), contextlib.redirect_stderr(unsaid):
        try:
            return _parse(argv)
        except InputError:
            raise SystemExit(2) from None


def _parse(argv: list[str]) -> tuple[Any, list[str]]:
    """A command's options, and lines about them.

    Raises:
        InputError, SystemExit: they cannot be used, or help was asked for.
    """
    name = command_of(argv, tuple(_COMMANDS))
    if name is None:
        config = tyro.extras.subcommand_cli_from_dict(
            {name: kind for name, (kind, _) in _COMMANDS.items()},
            prog="gs-train",
            description="Train 3D Gaussian Splatting scenes from photographs with known poses. "
            "gs-train --version says which version this is.",
            args=argv,
        )
        return config, []
    # Parsed alone, so that hints are about this command's options.
    if name == "fit":
        return parse_fit(argv[1:])
    return tyro.cli(_COMMANDS[name][0], prog=f"gs-train {name}", args=argv[1:]), []


def _name_of(config: Any) -> str:
    # No generator: Python loses a Ctrl-C that comes while one ends that was left halfway.
    (name,) = [name for name, (kind, _) in _COMMANDS.items() if isinstance(config, kind)]
    return name
