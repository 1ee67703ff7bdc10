# SPDX-License-Identifier: Apache-2.0
r"""Public functions of every package, called with arguments of wrong kinds, and on closed objects.

Each case makes a good call from a table, then spoils one or two of its arguments some times. Good
are: the result of the good call, where the argument means the same; an exception of a documented
kind whose message is one line that says what is wrong, with all arguments as they were and the
object as good as before; never a crash, a hang, or something written beside an array. Some cases
use an object from two threads, in a forked child, or while the interpreter ends.

With modules built by ``pip install -Ccmake.define.GS_SANITIZE=address,undefined`` each access
beside an array ends the process, and the case is bad:

    export LD_PRELOAD="$(gcc -print-file-name=libasan.so):$(gcc -print-file-name=libubsan.so):\
    $(gcc -print-file-name=libstdc++.so)" ASAN_OPTIONS=detect_leaks=0:allocator_may_return_null=1
    export UBSAN_OPTIONS=halt_on_error=1 PYTHONPATH=tests
    python -m campaigns misuse --count 1000
"""

from __future__ import annotations

import warnings
from pathlib import Path

from campaigns.case import Case
from campaigns.misuse import (
    of_adam,
    of_adam_objects,
    of_cache,
    of_cull,
    of_order,
    of_pinned,
    of_raster,
    of_store,
    of_train,
)
from campaigns.misuse.arguments import misuse
from campaigns.misuse.ends import end_in_the_middle
from campaigns.misuse.forks import use_in_a_child
from campaigns.misuse.threads import use_from_two_threads

SECONDS = 600.0

ENTRIES = tuple(
    entry
    for table in (
        of_cull,
        of_order,
        of_pinned,
        of_store,
        of_cache,
        of_adam,
        of_adam_objects,
        of_raster,
        of_train,
    )
    for entry in table.ENTRIES
)
MADE_BY_OTHERS = (
    *of_cull.MADE_BY_OTHERS,
    *of_order.MADE_BY_OTHERS,
    *of_pinned.MADE_BY_OTHERS,
    *of_store.MADE_BY_OTHERS,
    *of_cache.MADE_BY_OTHERS,
    *of_raster.MADE_BY_OTHERS,
    *of_train.MADE_BY_OTHERS,
)
"""What callers get from functions and do not make, or what cannot be tried."""
SHARED = (
    *of_cull.SHARED,
    *of_order.SHARED,
    *of_pinned.SHARED,
    *of_store.SHARED,
    *of_cache.SHARED,
    *of_adam.SHARED,
    *of_adam_objects.SHARED,
)


def prepare(shared: Path) -> None:
    """What is compiled at first use, and bounds of what one process takes."""


def run(case: Case) -> None:
    way = case.rng.random()
    seed = int(case.rng.integers(2**32))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if way < 0.9:
            entry = ENTRIES[case.rng.integers(len(ENTRIES))]
            misuse(entry, seed, case.say)
        elif way < 0.94:
            use_in_a_child(ENTRIES[case.rng.integers(len(ENTRIES))], seed, case.say)
        elif way < 0.995:
            use_from_two_threads(SHARED[case.rng.integers(len(SHARED))], seed, case.say)
        else:
            end_in_the_middle(case.rng, case.folder, case.say)
