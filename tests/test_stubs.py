# SPDX-License-Identifier: Apache-2.0
"""Each ``_core.pyi`` says what its extension module has: every name and every signature.

pybind11 writes the signature of a function into the first line of its docstring, in Python's
grammar, so that both sides are read by the same parser. Types are left to mypy.
"""

import ast
import importlib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, WrapperDescriptorType

import pytest

NATIVE = ("gs_cull", "gs_pinned", "gs_adam", "gs_raster")

ONLY_WITH_CUDA = {
    "gs_adam": set(),
    "gs_cull": {
        "BoundsAt",
        "CudaCull",
        "LayoutAt",
        "N_TOTALS",
        "RowsAt",
        "ViewsAt",
        "boxes_cuda",
        "fit_blocks_cuda",
        "mark_cuda",
        "morton_order_cuda",
        "pair_counts_cuda",
        "sort_workspace_bytes_cuda",
        "view_words",
        "views_of_blocks_cuda",
    },
    "gs_pinned": {"use_stream_operations"},
    "gs_raster": {
        "GraphCache",
        "ProjectionAt",
        "RowGradientsAt",
        "RowsAt",
        "SceneAt",
        "SplatSceneAt",
        "TileListsAt",
        "ViewSplatsAt",
        "blend_backward_cuda",
        "blend_cuda",
        "count_instances_cuda",
        "count_workspace_bytes",
        "draw_backward_bytes",
        "draw_backward_cuda",
        "draw_bytes",
        "draw_cuda",
        "draw_splats_backward_cuda",
        "draw_splats_bytes",
        "draw_splats_cuda",
        "list_instances_cuda",
        "list_workspace_bytes",
        "order_splats_cuda",
        "order_workspace_bytes",
        "loss_partials",
        "perturb_cuda",
        "photometric_loss_cuda",
        "project_backward_cuda",
        "project_cuda",
        "project_views_backward_cuda",
        "project_views_cuda",
        "slot_width",
        "sort_bytes",
        "sort_cuda",
    },
}

SPECIAL = {"__version__", "__init__", "__enter__", "__exit__"}
"""Names with two underscores that are compared; the others are Python's or pybind11's own."""

Parameter = tuple[str, str, str | None]
"""Name, kind, and the source of the default."""

Entry = list[Parameter] | str
"""Parameters of a function; of anything else what it is."""


def _parameters(function: ast.FunctionDef, *, bound: bool) -> list[Parameter]:
    """What a caller passes, without ``self`` where it is ``bound``."""
    given = function.args
    kinds = [(a.arg, "positional only") for a in given.posonlyargs]
    kinds += [(a.arg, "positional") for a in given.args]
    defaults: list[ast.expr | None] = [None] * (len(kinds) - len(given.defaults))
    defaults += [*given.defaults, *given.kw_defaults]
    kinds += [(a.arg, "keyword only") for a in given.kwonlyargs]
    found: list[Parameter] = [
        (name, kind, None if default is None else ast.unparse(default))
        for (name, kind), default in zip(kinds, defaults, strict=True)
    ]
    found += [(a.arg, "rest", None) for a in (given.vararg, given.kwarg) if a is not None]
    return found[1:] if bound else found


def _is_listed(name: str) -> bool:
    return name in SPECIAL or not name.startswith("_")  # aliases of types have an underscore


def _of_stub(body: list[ast.stmt], owner: str = "") -> Iterator[tuple[str, Entry]]:
    for node in body:
        if isinstance(node, ast.ClassDef):
            yield node.name, "class"
            yield from _of_stub(node.body, f"{node.name}.")
        elif isinstance(node, ast.FunctionDef) and _is_listed(node.name):
            marks = {mark.id for mark in node.decorator_list if isinstance(mark, ast.Name)}
            if "property" in marks:
                yield owner + node.name, "property"
            else:
                bound = owner != "" and "staticmethod" not in marks
                yield owner + node.name, _parameters(node, bound=bound)
        elif isinstance(node, ast.AnnAssign) and _is_listed(ast.unparse(node.target)):
            yield owner + ast.unparse(node.target), "value"


def _of_docstring(function: object, *, bound: bool) -> list[Parameter]:
    signature = str(function.__doc__).partition("\n")[0]
    (parsed,) = ast.parse(f"def {signature}: ...").body
    assert isinstance(parsed, ast.FunctionDef)
    return _parameters(parsed, bound=bound)


def _of_module(owner: type | ModuleType, prefix: str = "") -> Iterator[tuple[str, Entry]]:
    for name, item in vars(owner).items():
        if not _is_listed(name) or isinstance(item, WrapperDescriptorType):
            continue  # a class without a constructor has a slot that refuses
        if isinstance(item, type):
            yield name, "class"
            yield from _of_module(item, f"{name}.")
        elif isinstance(item, property):
            yield prefix + name, "property"
        elif callable(getattr(owner, name)):
            bound = prefix != "" and not isinstance(item, staticmethod)
            yield prefix + name, _of_docstring(getattr(owner, name), bound=bound)
        else:
            yield prefix + name, "value"


def _both(package: str) -> tuple[dict[str, Entry], dict[str, Entry]]:
    """What the stub says and what the module has."""
    core = importlib.import_module(f"{package}._core")
    source = (Path(core.__file__ or "").parent / "_core.pyi").read_text()
    stub = dict(_of_stub(ast.parse(source).body))
    if core.build_info()["cuda_toolkit"] is None:
        absent = ONLY_WITH_CUDA[package]
        assert absent <= stub.keys()
        stub = {name: entry for name, entry in stub.items() if name.split(".")[0] not in absent}
    return stub, dict(_of_module(core))


@pytest.mark.parametrize("package", NATIVE)
def test_a_stub_says_what_its_module_has(package: str) -> None:
    stub, module = _both(package)
    assert stub == module
