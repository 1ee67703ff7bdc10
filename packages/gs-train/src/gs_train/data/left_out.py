# SPDX-License-Identifier: Apache-2.0
"""A capture without the photographs that are not there."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from gs_train.data.photographs import Found, listed
from gs_train.data.pixels import Header
from gs_train.data.readers.source import Source
from gs_train.errors import InputError
from gs_train.names import printable


def without_missing(source: Source, found: Sequence[Found]) -> tuple[Source, list[Found], str]:
    """The capture that its whole photographs make.

    Args:
        found: what a look at each of the source's photographs gave.

    Returns:
        The source without images whose photograph is missing or cannot be read, the same of
        ``found``, and a line that counts them; the source itself and an empty line where all are
        whole.

    Raises:
        InputError: none is whole.
    """
    kept = [index for index, one in enumerate(found) if isinstance(one, Header)]
    names = [image.name for image in source.model.images]
    if len(kept) == len(names):
        return source, list(found), ""
    missing = [n for n, one in zip(names, found) if isinstance(one, FileNotFoundError)]
    broken = [
        f"{name}: {one.reason}"
        for name, one in zip(names, found)
        if not isinstance(one, Header | FileNotFoundError)
    ]
    absent = listed((("missing", missing), ("broken", broken)))
    if not kept:
        raise InputError(
            f"{source.image_folder} must hold some of the {len(names)} images of the model, got "
            f"{absent}"
        )
    line = printable(f"--allow-missing: of {len(names)} photographs {absent} are left out")
    return chosen(source, kept), [found[index] for index in kept], line


def chosen(source: Source, kept: Sequence[int]) -> Source:
    """The source with some of its images alone.

    Args:
        kept: indices, ascending.
    """
    images = source.model.images
    return dataclasses.replace(
        source,
        model=dataclasses.replace(source.model, images=tuple(images[i] for i in kept)),
        photographs=tuple(source.photographs[i] for i in kept),
        masks=tuple(source.masks[i] for i in kept) if source.masks else (),
        depths=tuple(source.depths[i] for i in kept) if source.depths else (),
    )
