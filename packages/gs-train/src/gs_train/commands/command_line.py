# SPDX-License-Identifier: Apache-2.0
"""Which command a command line names, and what to say where it names none."""

from __future__ import annotations

import difflib
from collections.abc import Sequence

from gs_train.errors import InputError


def command_of(arguments: Sequence[str], names: Sequence[str]) -> str | None:
    """The command that the first argument names; None where help is asked for, or nothing.

    Raises:
        InputError: the first argument is no command; the message names the nearest one, or the
            commands that follow where an option comes first.
    """
    first = arguments[0] if arguments else "--help"
    if first in ("-h", "--help") or first.startswith("--tyro-"):
        return None
    if first in names:
        return first
    all_of_them = f"the commands are {', '.join(names)}"
    if first.startswith("-"):
        named = next((name for name in arguments if name in names), "COMMAND")
        raise InputError(
            f"{first} must follow a command: gs-train {named} ... {first} ({all_of_them})"
        )
    near = difflib.get_close_matches(first, names, n=1, cutoff=0.5)
    meant = f", did you mean gs-train {near[0]}?" if near else ""
    raise InputError(f"there is no command {first!r}{meant} ({all_of_them})")
