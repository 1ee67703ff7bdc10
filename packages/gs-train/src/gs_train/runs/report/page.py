# SPDX-License-Identifier: Apache-2.0
"""The page ``report.html``: numbers, curves, scores, pictures and settings of a run."""

from __future__ import annotations

import base64
import html
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from gs_train.data.arrays import FROM_PYTHON
from gs_train.files.atomic import replacing
from gs_train.files.pictures import comparison_jpeg
from gs_train.machine.progress import format_seconds
from gs_train.options.config import FitConfig
from gs_train.options.plain import to_plain
from gs_train.runs.logs import read_log
from gs_train.runs.report.charts import chart
from gs_train.runs.scores import Picture, title_of_renders
from gs_train.sizes import format_bytes

_CURVES = (
    ("loss", "loss"),
    ("n_gaussians", "Gaussians"),
    ("test_psnr", "PSNR of the test images, dB"),
    ("test_ssim", "SSIM of the test images"),
    ("test_fitted_psnr", "PSNR with colours fitted, dB"),
)
_STYLE = """
body { font: 15px/1.45 system-ui, sans-serif; margin: 2em auto; max-width: 1000px; padding: 0 1em;
  color: #222; background: #fff }
h1 { font-size: 1.5em } h2 { font-size: 1.15em; margin-top: 2em }
table { border-collapse: collapse } td, th { padding: .15em .9em .15em 0; text-align: left }
td.number, th.number { text-align: right; font-variant-numeric: tabular-nums }
tr.given td { font-weight: 600 } img { max-width: 100% }
svg { width: 460px; max-width: 100% } svg text { font-size: 11px; fill: #555 }
svg text.title { font-size: 13px; fill: #222 } svg .grid { stroke: #e4e4e4 }
svg polyline { fill: none; stroke: #1f6fb2; stroke-width: 1.6 }
"""


def write_report(
    path: Path,
    metrics: Mapping[str, Any],
    *,
    config: FitConfig,
    log: Path,
    worst: Sequence[Picture],
) -> None:
    """Write the page; it names no other file and no address.

    Args:
        path: the file, replaced when it is complete.
        metrics: what metrics.json holds.
        config: of the run.
        log: its log.csv; curves are left out where there is none.
        worst: the held-out views with the lowest PSNR.
    """
    _, rows = read_log(log, metrics["steps"])
    title = _text(path.absolute().parent.name)
    parts = [
        "<!doctype html>",
        '<html lang="en"><head><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>{title}</title><style>{_STYLE}</style></head><body>",
        f"<h1>{title}</h1>",
        _table(_summary(metrics, config)),
        _section("Curves", "".join(_curves(rows))),
        _section("Worst test images", _pictures(worst, config)),
        _section("Test images, the worst first", _scores(metrics["images"])),
        _section("Memory and rate", _foretold(metrics)),
        _section("Store on the drive", _table(_of_store(metrics))),
        _section("Settings", _settings(config)),
        _section("Versions", _table(metrics["versions"].items())),
        "</body></html>\n",
    ]
    with replacing(path) as file:
        file.write("\n".join(filter(None, parts)).encode("utf-8", "backslashreplace"))


def _section(title: str, content: str) -> str:
    return f"<h2>{_text(title)}</h2>\n{content}" if content else ""


def _summary(metrics: Mapping[str, Any], config: FitConfig) -> Iterable[tuple[str, Any]]:
    yield "capture", "given from Python" if config.data == FROM_PYTHON else config.data
    for title, name, decimals in _scores_in(metrics):
        yield title, _number(metrics[name], decimals)
    yield "Gaussians", f"{metrics['n_gaussians']:,}"
    yield "steps", f"{metrics['steps']:,}"
    yield "training", f"{format_seconds(metrics['seconds'])} (hours:minutes:seconds)"
    yield "rate", f"{metrics['images_per_second']:.1f} images/s"
    yield "device memory", format_bytes(metrics["peak_device_reserved_bytes"])
    yield "host memory", format_bytes(metrics["peak_host_bytes"])
    yield "offload", metrics["preset"]
    yield "renderer", metrics["renderer"]
    yield "run", metrics["run_id"] or "without an id"


def _scores_in(values: Mapping[str, Any]) -> list[tuple[str, str, int]]:
    """Title, name and decimals of each kind of score."""
    kinds = (("psnr", 2), ("ssim", 4), ("lpips", 4))
    plain = [(name.upper(), name, decimals) for name, decimals in kinds]
    if "fitted_psnr" not in values:
        return plain
    return plain + [
        (f"{title} of right halves, colours fitted", f"fitted_{name}", decimals)
        for title, name, decimals in plain
    ]


def _curves(rows: Sequence[Mapping[str, str]]) -> Iterable[str]:
    for name, title in _CURVES:
        yield chart(
            title,
            [
                (float(row["step"]), value)
                for row in rows
                if (value := _float(row.get(name))) is not None
            ],
        )


def _pictures(worst: Sequence[Picture], config: FitConfig) -> str:
    if not worst:
        return ""
    title = title_of_renders(config)
    data = base64.b64encode(comparison_jpeg(worst, title=title)).decode()
    notes = []
    if config.background == "random":
        notes.append("The run was trained over random colours, and is shown and scored over black.")
    if config.exposure:
        notes.append(
            "Nobody knows the exposure of a test image: renders have the scene's own colours. "
            "Scores with colours fitted are those of right halves, after an affine colour that is "
            "fitted on left halves."
        )
    caption = f"<p>{_text(' '.join(notes))}</p>" if notes else ""
    return f'{caption}<img alt="truth, render, error" src="data:image/jpeg;base64,{data}">'


def _scores(images: Sequence[Mapping[str, Any]]) -> str:
    by_psnr = sorted(images, key=lambda image: _float(image["psnr"]) or 0.0)
    columns = _scores_in(images[0] if images else {})
    rows = [
        f"<tr><td>{_text(image['name'])}</td>"
        + "".join(
            f'<td class="number">{_text(_number(image[name], decimals))}</td>'
            for _, name, decimals in columns
        )
        + "</tr>"
        for image in by_psnr
    ]
    titles = "".join(f'<th class="number">{_text(title)}</th>' for title, *_ in columns)
    return f"<table><tr><th>image</th>{titles}</tr>{''.join(rows)}</table>" if rows else ""


def _foretold(metrics: Mapping[str, Any]) -> str:
    """What was predicted and what was, where the run has both."""
    predicted, real = metrics.get("predicted"), metrics.get("real")
    if not isinstance(predicted, Mapping) or not isinstance(real, Mapping):
        return ""

    def shown(name: str, value: Any) -> str:
        if isinstance(value, str):
            return value
        return format_bytes(value) if name.endswith("_bytes") else f"{value:.1f}"

    rows = [
        f"<tr><td>{_text(name.removesuffix('_bytes').replace('_', ' '))}</td>"
        f'<td class="number">{_text(shown(name, predicted.get(name, "n/a")))}</td>'
        f'<td class="number">{_text(shown(name, value))}</td></tr>'
        for name, value in real.items()
    ]
    titles = '<th></th><th class="number">foretold</th><th class="number">real</th>'
    return f"<table><tr>{titles}</tr>{''.join(rows)}</table>"


def _of_store(metrics: Mapping[str, Any]) -> Iterable[tuple[str, str]]:
    """What moved between the drive and memory; nothing where no rows are on a drive."""
    for name, value in metrics.get("store", {}).items():
        if "bytes" in name:
            shown = format_bytes(value)
        else:
            shown = f"{value:,.3f} s" if name.endswith("_s") else f"{value:,}"
        yield name.removesuffix("_bytes").removesuffix("_s").replace("_", " "), shown


def _settings(config: FitConfig) -> str:
    """All options; those that are no defaults in bold."""
    defaults = dict(_flat(to_plain(FitConfig(data=config.data, out=config.out))))
    rows = [
        f"<tr{' class=given' if value != defaults[name] else ''}><td>{_text(name)}</td>"
        f"<td>{_text(value)}</td></tr>"
        for name, value in _flat(to_plain(config))
    ]
    return (
        f"<details><summary>{len(rows)} options</summary><table>{''.join(rows)}</table></details>"
    )


def _flat(plain: Mapping[str, Any], within: str = "") -> Iterable[tuple[str, Any]]:
    for name, value in plain.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{within}{name}.")
        else:
            yield f"{within}{name}", value


def _table(rows: Iterable[tuple[str, Any]]) -> str:
    lines = [f"<tr><td>{_text(name)}</td><td>{_text(value)}</td></tr>" for name, value in rows]
    return f"<table>{''.join(lines)}</table>" if lines else ""


def _number(value: Any, decimals: int) -> str:
    return f"{value:.{decimals}f}" if isinstance(value, float) else str(value)


def _float(value: Any) -> float | None:
    try:
        return float(value)
    except (TypeError, ValueError):  # nothing was logged, or "n/a"
        return None


def _text(value: Any) -> str:
    return html.escape(str(value))
