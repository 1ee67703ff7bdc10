# SPDX-License-Identifier: Apache-2.0
"""Strands: 256 shares of a scene, each an even sample of all of it, that are dealt to ranks.

A strand is a label of a row, from the cell of a lattice that the row lies in. Cells are small, and
cells that are near to each other have different labels in an even mixture, so that every view shows
about as many rows of each strand. A label orders nothing, and no result depends on labels.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction

import torch
from torch import Tensor

from gs_train.rows.morton import PIECE, central_bounds

STRANDS = "strands"
"""Name of the rows' labels among a model's tensors: (N,) uint8."""

N_STRANDS = 256

ROWS_A_CELL = 4
"""Most rows in the cell of a row, on average over rows. Larger cells balance worse: of a view of
50,000 rows the fullest of 8 ranks has 1.02 of the mean with 4, up to 1.10 with 30."""

EXCESS_PERCENT = 5
"""A rank may own so much more than its share before rows are dealt again."""

_GROWTH = 4
"""A lattice of half the edge has a quarter of the rows in a cell of a surface."""

SAMPLED = 1 << 20
"""Rows that are looked at to choose the edge of cells."""

_MOST_EXPONENT = 60
_FINEST = 21  # halvings of a cloud's widest extent

# Whole multiples of these three fractions, in units of 2^-64, are spread most evenly modulo 1: the
# powers of 1 / g, where g^4 = g + 1.
_STEPS = (-0x2E4AB5CD2E6D12FD, -0x54367C77047053FE, -0x7346D458D0C27229)
_START = 0x1F83D9ABFB41BD6B  # any odd number
_MIXERS = (-0x61C8864680B583EB, -0x40A7B892E31B1A47)


@dataclass(frozen=True)
class Lattice:
    """Cubes that space is cut into, their corners at whole multiples of the edge.

    Attributes:
        exponent: the edge is 2 to this power, in the training frame.
        n_rows: of the scene that the edge is made for.

    Raises:
        ValueError: no such lattice can have been made.
    """

    exponent: int
    n_rows: int

    def __post_init__(self) -> None:
        if not -_MOST_EXPONENT <= self.exponent <= _MOST_EXPONENT:
            raise ValueError(
                f"exponent must be from -{_MOST_EXPONENT} to {_MOST_EXPONENT}, got {self.exponent}"
            )
        if self.n_rows < 0:
            raise ValueError(f"n_rows must be at least 0, got {self.n_rows}")

    @classmethod
    def of_cloud(cls, means: Tensor, *, sampled: int = SAMPLED) -> Lattice:
        """The coarsest lattice with at most ROWS_A_CELL rows in the cell of a row, on average.

        Args:
            means: (N, 3) floating point, any device, in any order.
            sampled: about so many rows are looked at, cell by cell.

        Cost: some passes over the means, and sorts of about a million numbers. Synchronises.
        """
        n = len(means)
        low, high = central_bounds(means)
        widest = float((high - low).nan_to_num(0.0, 0.0, 0.0).amax())
        if not widest > 0:
            return cls(0, n)
        # Powers of two around the edge that a flat scene of this extent needs.
        guess = math.frexp(widest * math.sqrt(ROWS_A_CELL / n))[1]
        finest = max(math.frexp(widest)[1] - _FINEST, -_MOST_EXPONENT)
        exponent = min(max(guess, finest), _MOST_EXPONENT)
        while (
            exponent < _MOST_EXPONENT and _rows_a_cell(means, exponent + 1, sampled) <= ROWS_A_CELL
        ):
            exponent += 1
        while exponent > finest and _rows_a_cell(means, exponent, sampled) > ROWS_A_CELL:
            exponent -= 1
        return cls(exponent, n)

    def for_rows(self, n_rows: int) -> Lattice:
        """The lattice for the scene when it has grown to so many rows: the same one, or a finer.

        All ranks come to the same lattice from the number of all rows alone.
        """
        exponent, base = self.exponent, max(self.n_rows, 1)
        while n_rows >= _GROWTH * base and exponent > -_MOST_EXPONENT:
            exponent, base = exponent - 1, _GROWTH * base
        return self if exponent == self.exponent else Lattice(exponent, base)

    def labels(self, means: Tensor) -> Tensor:
        """(R,) uint8: the strands of rows, each from its own position alone.

        Args:
            means: (R, 3) floating point, any device; a coordinate that is not finite counts as 0.

        Returns:
            The same on every device. Does not synchronise.
        """
        labels = torch.empty(len(means), dtype=torch.uint8, device=means.device)
        for start in range(0, len(means), PIECE):
            part = slice(start, start + PIECE)
            turns = _combined(_cells(means[part], self.exponent), _STEPS)
            labels[part] = ((turns >> 56) & 0xFF).to(torch.uint8)
        return labels


def strands_of(rank: int, n_ranks: int) -> range:
    """The strands that a rank owns.

    Raises:
        ValueError: there are not so many ranks, or more of them than strands.
    """
    if not 1 <= n_ranks <= N_STRANDS:
        raise ValueError(f"n_ranks must be from 1 to {N_STRANDS}, got {n_ranks}")
    if not 0 <= rank < n_ranks:
        raise ValueError(f"rank must be from 0 to {n_ranks - 1}, got {rank}")
    return range(N_STRANDS * rank // n_ranks, N_STRANDS * (rank + 1) // n_ranks)


def most_rows_of_rank(n_rows: int, n_ranks: int) -> int:
    """The rows that a rank owns at most before rows are dealt again."""
    return (100 + EXCESS_PERCENT) * n_rows // (100 * n_ranks) + 1


def owners(labels: Tensor, n_ranks: int) -> Tensor:
    """(R,) int64: the rank that owns each of the rows with these labels."""
    strands_of(0, n_ranks)  # checks their number
    return ((labels.long() + 1) * n_ranks - 1) // N_STRANDS


def dealt(labels: Tensor, n_ranks: int) -> tuple[Tensor, Tensor]:
    """Which rows go to which rank.

    Returns:
        (R,) int64, the rows of rank 0 first, each rank's in their present order; and (W,) int64,
        how many each rank gets.
    """
    owner = owners(labels, n_ranks)
    order = torch.sort(owner.to(torch.uint8), stable=True).indices
    return order, torch.bincount(owner, minlength=n_ranks)


def rows_of_strands(labels: Tensor) -> Tensor:
    """(256,) int64: how many rows each strand has. Ranks add theirs up."""
    return torch.bincount(labels.long(), minlength=N_STRANDS)


def must_deal_again(present: Tensor, fresh: Tensor, n_ranks: int) -> bool:
    """Whether rows get new labels, and move to the ranks that own these, when rows are re-sorted.

    All ranks come to the same answer from the same sums.

    Args:
        present, fresh: (256,) rows of each strand, of all ranks, by the labels that rows have and
            by those that they would get.
        n_ranks: of the world.

    Returns:
        Whether a rank owns more than its share by EXCESS_PERCENT, and new labels are more even.
    """
    fullest, mean = _fullest(present, n_ranks), int(present.sum())
    return 100 * fullest > (100 + EXCESS_PERCENT) * mean and _fullest(fresh, n_ranks) < fullest


def _fullest(strands: Tensor, n_ranks: int) -> Fraction:
    """How many rows the scene would have if every strand had as many as those of the fullest rank
    have on average."""
    counts = strands.tolist()
    shares = [strands_of(rank, n_ranks) for rank in range(n_ranks)]
    return max(Fraction(N_STRANDS * sum(counts[own.start : own.stop]), len(own)) for own in shares)


def _cells(means: Tensor, exponent: int) -> Tensor:
    """(R, 3) int64: numbers of the cells; exact, for the edge is a power of two."""
    most = 2.0**31
    return torch.floor(means.nan_to_num(0.0, 0.0, 0.0) * 2.0**-exponent).clamp(-most, most).long()


def _combined(cells: Tensor, steps: tuple[int, int, int]) -> Tensor:
    """(R,) int64: sums of multiples of 64-bit fractions, modulo 1."""
    x, y, z = cells.unbind(1)
    return x * steps[0] + y * steps[1] + z * steps[2]


def _rows_a_cell(means: Tensor, exponent: int, sampled: int) -> float:
    """Rows in the cell of a row, on average over the rows of cells chosen by their hash."""
    n_shares = max(1, len(means) // sampled)
    found = []
    for start in range(0, len(means), PIECE):
        hashes = _hashes(_cells(means[start : start + PIECE], exponent))
        chosen = hashes if n_shares == 1 else hashes[hashes % n_shares == 0]
        found.append(chosen)
    if n_shares > 1 and not any(map(len, found)):  # few cells, each with many rows: count all
        return _rows_a_cell(means, exponent, len(means))
    counts = torch.cat(found).unique(return_counts=True)[1].double()
    return float((counts * counts).sum() / counts.sum().clamp_min(1.0))


def _hashes(cells: Tensor) -> Tensor:
    """(R,) int64, for which equal numbers of different cells are as good as impossible."""
    mixed = torch.full_like(cells[:, 0], _START)  # 0 would be the hash of the cell at the origin
    for axis in range(3):
        mixed = mixed + cells[:, axis]
        for multiplier in _MIXERS:
            mixed = mixed * multiplier
            mixed = mixed ^ ((mixed >> 32) & 0xFFFFFFFF)
    return mixed
