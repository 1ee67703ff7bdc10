# SPDX-License-Identifier: Apache-2.0
"""Campaigns: many made-up attempts to break the packages, each of which a seed repeats.

    PYTHONPATH=tests python -m campaigns corrupt --count 100 --seed 7

A campaign is a module here, whose name is the campaign's, with

- ``run(case)``: one case, a function of ``case.rng`` alone, which raises where something is bad;
- ``SECONDS``: how long a case may take, beyond which it hangs;
- ``prepare(shared)`` (optional): what all cases of a run read, made once in an empty folder.
"""

NAMES = ("corrupt", "misuse", "kills", "ends")
