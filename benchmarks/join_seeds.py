# SPDX-License-Identifier: Apache-2.0
"""Join files of ``train/bench_real_capture.py`` that differ in their seeds alone.

    python benchmarks/join_seeds.py FIRST.json SECOND.json... --to JOINED.json

The files must be of one commit, one kind of machine and one command but for its seeds. The joined
file names each part's machine, date and seeds.
"""

from __future__ import annotations

import argparse
import json
import shlex
import statistics
from pathlib import Path
from typing import Any

from results import Result, read_result
from train.pairs import standard_error

KIND = ("gpu", "cpu", "cores", "torch", "cuda", "packages")


def without_seeds(command: str) -> list[str]:
    """The words of a command but for those of ``--seeds``."""
    words, kept, is_seed = shlex.split(command), [], False
    for word in words:
        is_seed = word == "--seeds" or (is_seed and word.isdecimal())
        if not is_seed:
            kept.append(word)
    return kept


def joined(paths: list[Path]) -> dict[str, Any]:
    """What the joined file holds.

    Raises:
        ValueError: the files differ in more than their seeds, or share a seed.
    """
    parts = [read_result(path) for path in paths]
    first = parts[0]
    for path, part in zip(paths[1:], parts[1:]):
        if problem := _difference(first, part):
            raise ValueError(f"{path} must have the {problem} of {paths[0]}")
    seeds = [seed for part in parts for seed in part.facts["seeds"]]
    if len(set(seeds)) < len(seeds):
        raise ValueError(f"seeds must differ from file to file, got {seeds}")
    found: dict[str, Any] = json.loads(paths[0].read_text())
    for line in found["lines"]:
        samples = [
            value
            for part in parts
            for other in part.lines
            if (other.name, other.unit) == (line["name"], line["unit"])
            for value in other.samples
        ]
        line["samples"] = samples
        if line["facts"]:
            line["facts"] = {
                "mean": statistics.mean(samples), "standard_error": standard_error(samples)
            }  # fmt: skip
    words = [*without_seeds(first.command), "--seeds", *map(str, seeds)]
    found["command"] = shlex.join(words)
    found["seconds"] = sum(part.seconds for part in parts)
    found["facts"] |= {
        "seeds": seeds,
        "parts": [
            {"seeds": part.facts["seeds"], "date": part.date, "machine": part.machine}
            for part in parts
        ],
    }
    return found


def _difference(one: Result, other: Result) -> str:
    """What keeps two files apart, or nothing."""
    if one.commit != other.commit:
        return "commit"
    if without_seeds(one.command) != without_seeds(other.command):
        return "command, but for its seeds,"
    if [line.key for line in one.lines] != [line.key for line in other.lines]:
        return "lines"
    for name in KIND:
        if one.machine[name] != other.machine[name]:
            return f"machine's {name}"
    return ""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("parts", type=Path, nargs="+")
    parser.add_argument("--to", type=Path, required=True)
    arguments = parser.parse_args()
    try:
        found = joined(arguments.parts)
    except (OSError, ValueError) as error:
        parser.error(str(error))
    arguments.to.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
