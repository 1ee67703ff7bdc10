# SPDX-License-Identifier: Apache-2.0
"""What the command line turns into one line and exit status 2."""


class InputError(Exception):
    """Something the user can correct: a path, a file, an option, a missing device.

    The message is one line, names what was expected and what was found, and adds a remedy when
    there is one. Raised before anything is written.
    """


def one_line(text: str) -> str:
    """``text`` for a terminal: line ends and other control characters, which may come from a file's
    name, as Python writes them."""
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)
