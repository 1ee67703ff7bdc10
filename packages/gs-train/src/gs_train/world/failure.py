# SPDX-License-Identifier: Apache-2.0
"""How the end of one rank reaches the others."""

from __future__ import annotations

from dataclasses import dataclass

from gs_train.errors import CommonError

EXIT_STATUS = 2
"""Of every rank, where one has failed."""


@dataclass(frozen=True)
class Failure:
    """The first failure of a run.

    Attributes:
        rank: that failed; None where all have met the same trouble.
        text: what it said, or what is known of its end.
    """

    rank: int | None
    text: str

    def __str__(self) -> str:
        return self.text if self.rank is None else f"rank {self.rank}: {self.text}"


class RankFailedError(Exception):
    """Another rank has failed: this one can only end."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(str(failure))
        self.failure = failure


class DisagreementError(CommonError):
    """Ranks have different values where all need the same; raised on all of them."""


class ToldError(Exception):
    """A rank has failed, and one of the ranks has printed the line about it.

    Whoever catches it says nothing and ends the process with ``exit_status``.
    """

    exit_status = EXIT_STATUS

    def __init__(self, failure: Failure) -> None:
        super().__init__(str(failure))
        self.failure = failure
