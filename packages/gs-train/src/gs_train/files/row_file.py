# SPDX-License-Identifier: Apache-2.0
"""A file of Gaussians in any format, written a chunk of rows at a time.

``write_rows`` takes rows from chunks, leaves out rows that are not finite or outside a crop, and
hands the others to the encoder of a format. The encoder writes its header, each chunk and its end.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import BinaryIO, NamedTuple, Protocol

from gs_train.errors import InputError
from gs_train.files.atomic import replacing, require_free
from gs_train.files.crop import Crop
from gs_train.files.row_chunks import (
    CHUNK_ROWS,
    Chunk,
    HostRows,
    bases_of,
    finite_rows,
    host_rows,
    pieces_of,
    taken,
)
from gs_train.files.survey import Range, Survey


class Announced(NamedTuple):
    """What an encoder knows of the rows before they come.

    Attributes:
        path: the file that is written.
        n_rows: how many rows come; without a survey, at most so many.
        n_bases: K of their ``shN``.
        survey: of the rows that come; None where nobody has looked at them.
    """

    path: Path
    n_rows: int
    n_bases: int
    survey: Survey | None = None


class RowEncoder(Protocol):
    """Writes rows into one file, whose header it wrote when it was made."""

    def add(self, rows: HostRows) -> None:
        """Write rows, at least one, all of which are finite."""

    def end(self) -> None:
        """Complete the file after the last row."""


class RowFormat(Protocol):
    """A format of files that hold Gaussians."""

    @property
    def needs_survey(self) -> bool:
        """Whether a survey has to precede the rows."""

    @property
    def log_scales(self) -> Range | None:
        """The least and the greatest log scale of a file; None: all are kept."""

    def require_available(self) -> None:
        """Check that the packages that the format needs are installed.

        Raises:
            InputError: one is not.
        """

    def require_room(self, announced: Announced) -> None:
        """Check that the format can hold the rows.

        Raises:
            InputError: there are too many or too few rows, or their extent is too large.
        """

    def row_bytes(self, n_bases: int) -> int:
        """Bytes of a row in the file, at most."""

    def encoder(self, file: BinaryIO, announced: Announced) -> AbstractContextManager[RowEncoder]:
        """The encoder of a new file, which is at its start, readable and seekable."""


class Written(NamedTuple):
    """What became of the rows.

    Attributes:
        n_rows: rows of the file.
        n_lost: rows left out because a value is NaN or infinite.
        n_outside: finite rows that the crop left out.
    """

    n_rows: int
    n_lost: int
    n_outside: int


def write_rows(
    path: Path,
    chunks: Iterable[Chunk],
    *,
    form: RowFormat,
    n_rows: int,
    transform: Callable[[Chunk], Chunk] | None = None,
    crop: Crop | None = None,
    survey: Survey | None = None,
    chunk_rows: int = CHUNK_ROWS,
    on_rows: Callable[[int], object] | None = None,
) -> Written:
    """Write Gaussians to a file, without the ones that are not finite or outside a crop.

    Args:
        path: the file; it appears, or is replaced, only when it is complete.
        chunks: as for :func:`gs_train.files.ply.write_ply`, at least one, all with the same K.
        form: of the file.
        n_rows: the sum of the chunks' rows.
        transform: applied to each piece of a chunk first; keeps row counts.
        crop: compared with the transformed positions.
        survey: of the rows, with the same transform and crop; required where the format needs one.
        chunk_rows: how many rows are converted at once.
        on_rows: called with a number of rows when so many more have been looked at.

    Raises:
        InputError: the disk has not enough space, the format cannot hold the rows, or every row
            would be left out.
        ValueError: an attribute is missing or has another shape, K differs between chunks, the
            chunks do not add up to ``n_rows``, or a survey is missing or is of other rows.

    Cost: memory for two chunks of ``chunk_rows`` rows, whatever N; one pass over the rows.
    """
    if chunk_rows < 1:
        raise ValueError(f"chunk_rows must be at least 1, got {chunk_rows}")
    if form.needs_survey and survey is None:
        raise ValueError(f"survey must be given for {type(form).__name__}, got None")
    incoming = iter(chunks)
    first = next(incoming, None)
    if first is None:
        raise ValueError("rows must hold at least one chunk (it may be empty), got none")
    n_bases = bases_of(first)
    if survey is not None:
        require_finite(path, survey.n_rows + survey.n_outside, survey.n_lost)
    announced = Announced(path, n_rows if survey is None else survey.n_rows, n_bases, survey)
    form.require_room(announced)
    needed = announced.n_rows * form.row_bytes(n_bases) + 4096
    require_free(path.parent, needed, f"{path.name} ({announced.n_rows:,} Gaussians)")

    n_seen = n_finite = n_written = 0
    with replacing(path) as file, form.encoder(file, announced) as encoder:
        for chunk in itertools.chain((first,), incoming):
            for piece in pieces_of(chunk, chunk_rows):
                rows = host_rows(transform(piece) if transform else piece, n_bases)
                n = len(rows["means"])
                n_seen += n
                rows = taken(rows, finite_rows(rows))
                n_finite += len(rows["means"])
                if crop is not None:
                    rows = taken(rows, crop.holds(rows["means"]))
                n_written += len(rows["means"])
                if survey is not None and n_written > survey.n_rows:
                    raise _other_rows(survey, n_written)
                if len(rows["means"]):
                    encoder.add(rows)
                if on_rows is not None:
                    on_rows(n)
        if n_seen != n_rows:
            raise ValueError(f"rows must add up to n_rows {n_rows}, got {n_seen}")
        if survey is not None and n_written != survey.n_rows:
            raise _other_rows(survey, n_written)
        require_finite(path, n_finite, n_seen - n_finite)
        encoder.end()
    return Written(n_written, n_seen - n_finite, n_finite - n_written)


def require_finite(path: Path, n_finite: int, n_lost: int) -> None:
    """Check that not all rows are lost.

    Raises:
        InputError: they are.
    """
    if n_lost and not n_finite:
        raise InputError(
            f"{path} must hold a finite Gaussian, got NaN or infinity in all {n_lost:,}: "
            "the training diverged, or the capture's frame is too large for float32"
        )


def _other_rows(survey: Survey, n_written: int) -> ValueError:
    return ValueError(f"survey must be of the rows, which are {n_written}, got {survey.n_rows}")
