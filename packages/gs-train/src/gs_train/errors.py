# SPDX-License-Identifier: Apache-2.0
"""The error that the command line turns into one line and exit status 2."""

from gs_train.names import printable


class InputError(Exception):
    """An error that the user can correct: a path, a file, an option, a missing device.

    The message is one line with the expected value, the value found, and a remedy when there is
    one. Raised before anything is written. Unprintable characters are escaped here, so names from
    files cannot break the line or command a terminal.
    """

    def __init__(self, message: str) -> None:
        super().__init__(printable(message))


class CommonError(InputError):
    """An error that all ranks of a run raise alike, whichever of them met the trouble."""
