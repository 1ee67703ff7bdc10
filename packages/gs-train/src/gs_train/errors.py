# SPDX-License-Identifier: Apache-2.0
"""What the command line turns into one line and exit status 2."""

from gs_train.names import printable


class InputError(Exception):
    """Something the user can correct: a path, a file, an option, a missing device.

    The message is one line, names what was expected and what was found, and adds a remedy when
    there is one. Raised before anything is written. Names that it quotes from files cannot break
    the line or command a terminal: what is not printable is escaped here.
    """

    def __init__(self, message: str) -> None:
        super().__init__(printable(message))
