# SPDX-License-Identifier: Apache-2.0
"""Dataclasses of options as what YAML can say, and back with every value checked."""

from __future__ import annotations

import contextlib
import dataclasses
import difflib
import types
import typing
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from gs_train.errors import InputError
from gs_train.sizes import Count, parse_count

_WORDS = {
    bool: "true or false",
    int: "a whole number",
    float: "a number such as 1.0e-4",  # to YAML, 1e-4 is text
    str: "text",
    Path: "a path",
    types.NoneType: "null",
}


def to_plain(config: Any) -> dict[str, Any]:
    """A dataclass as nested dicts of numbers, strings, booleans and None."""
    plain: dict[str, Any] = {}
    for item in dataclasses.fields(config):
        value = getattr(config, item.name)
        if dataclasses.is_dataclass(value):
            value = to_plain(value)
        elif isinstance(value, Path):
            value = str(value)
        plain[item.name] = value
    return plain


def from_plain(kind: type, plain: Mapping[Any, Any], path: Path, *, within: str = "") -> Any:
    """What :func:`to_plain` made of a ``kind``.

    Args:
        path: file that it was read from, for messages.
        within: what precedes the options' names in messages, with its dot.

    Raises:
        InputError: an option is missing, does not exist or holds a value of another type.
    """
    values = values_of(kind, plain, path, within=within)
    try:
        return kind(**values)
    except TypeError as error:
        raise InputError(f"{path} does not fit this version: {error}") from None
    except InputError as error:  # a value out of range, of an option named as on a command line
        raise InputError(f"{path}: {error}") from None


def values_of(
    kind: type, plain: Mapping[Any, Any], path: Path, *, within: str = ""
) -> dict[str, Any]:
    """The values of the options of a ``kind`` that ``plain`` has; see :func:`from_plain`.

    Raises:
        InputError: an option does not exist, or holds a value of another type.
    """
    hints = typing.get_type_hints(kind, include_extras=True)
    unknown = [name for name in plain if name not in hints]
    if unknown:
        near = difflib.get_close_matches(str(unknown[0]), hints, n=1)
        meant = f", did you mean {within}{near[0]}?" if near else ""
        raise InputError(f"{path} holds the unknown option {f'{within}{unknown[0]}'!r:.80}{meant}")
    return {
        name: _value(hints[name], value, path, f"{within}{name}") for name, value in plain.items()
    }


def _value(hint: Any, value: Any, path: Path, name: str) -> Any:
    value = _as_written(hint, value)
    choices = [
        int if choice == Count else _without_extras(choice)
        for choice in (typing.get_args(hint) if _is_union(hint) else (hint,))
    ]
    if isinstance(value, str) and (hint == Count or Count in typing.get_args(hint)):
        with contextlib.suppress(ValueError):
            return parse_count(value)
    for choice in choices:
        if dataclasses.is_dataclass(choice) and isinstance(value, dict):
            assert isinstance(choice, type)
            return from_plain(choice, value, path, within=f"{name}.")
        if choice is Path and isinstance(value, str) and "\0" not in value:
            return Path(value)
        if choice is str and type(value) is int:
            return str(value)  # a size in bytes, which needs no quotes on the command line either
        if _fits(choice, value):
            return value
    expected = " or ".join(_words(choice) for choice in choices)
    raise InputError(f"{path} must hold {expected} for {name}, got {value!r:.80}")


def _as_written(hint: Any, value: Any) -> Any:
    """YAML takes the plain word off for false."""
    choices = typing.get_args(hint) if _is_union(hint) else (hint,)
    of_words = [choice for choice in choices if typing.get_origin(choice) is Literal]
    has_off = any("off" in typing.get_args(choice) for choice in of_words)
    return "off" if value is False and has_off else value


def _without_extras(hint: Any) -> Any:
    return typing.get_args(hint)[0] if typing.get_origin(hint) is Annotated else hint


def _fits(choice: Any, value: Any) -> bool:
    if typing.get_origin(choice) is Literal:
        return value in typing.get_args(choice)
    # Not isinstance: True is no number here.
    return type(value) is choice or (choice is float and type(value) is int)


def _words(choice: Any) -> str:
    if typing.get_origin(choice) is Literal:
        return one_of(typing.get_args(choice))
    return "a mapping" if dataclasses.is_dataclass(choice) else _WORDS[choice]


def one_of(choices: Sequence[str]) -> str:
    """The choices as a message lists them."""
    return " or ".join(filter(None, (", ".join(choices[:-1]), choices[-1])))


def _is_union(hint: Any) -> bool:
    return typing.get_origin(hint) in (typing.Union, types.UnionType)
