# SPDX-License-Identifier: Apache-2.0
"""The table that ``gs-train check`` prints."""

from __future__ import annotations

from collections.abc import Iterator
from typing import IO, Any

from gs_train.sizes import format_bytes

_WIDTH = 14
_SHOWN = 5  # names of images


def print_check(result: dict[str, Any], *, file: IO[str]) -> None:
    """Print what :func:`gs_train.commands.check.check` returns: a fact a line."""
    for name, value in _lines(result):
        print(f"{name:<{_WIDTH}}{value}", file=file)


def _lines(result: dict[str, Any]) -> Iterator[tuple[str, str]]:
    yield "capture", result["data"]
    if "cameras" in result:
        yield from _of_cameras(result)
        yield from _of_photographs(result["photographs"])
        yield from _of_points(result["points"])
        yield from _of_tracks(result["tracks"], result["points"])
        for line in result["notes"]:
            yield "note", line
        if result["fit"] is not None:
            yield from _of_fit(result["fit"])
    if result["refused"] is not None:
        yield "fit would", f"refuse: {result['refused']}"


def _of_cameras(result: dict[str, Any]) -> Iterator[tuple[str, str]]:
    yield "images", f"{result['n_images']:,} with a pose"
    for kind in result["cameras"]:
        cameras = "1 camera" if kind["n_cameras"] == 1 else f"{kind['n_cameras']:,} cameras"
        size = f"{kind['width']}x{kind['height']}"
        yield "", f"{kind['n_images']:,} of {cameras} {kind['model']} {size}"


def _of_photographs(found: dict[str, Any] | None) -> Iterator[tuple[str, str]]:
    if found is None:
        yield "photographs", "their folder is not there"
        return
    kinds = (
        ("missing", "missing"),
        ("unreadable", "that cannot be read"),
        ("other_shape", "of another shape than their camera"),
        ("other_size", "of another size than their camera"),
    )
    lines = [
        f"{found[key]['n']:,} {what}{_first(found[key])}" for key, what in kinds if found[key]["n"]
    ]
    lines += [f"{found['with_alpha']:,} with an alpha channel"] if found["with_alpha"] else []
    for k, line in enumerate(lines or ["all there, of their cameras' sizes"]):
        yield "" if k else "photographs", line


def _of_points(points: dict[str, Any] | None) -> Iterator[tuple[str, str]]:
    if points is None:
        yield "points", "cannot be read"
        return
    yield "points", f"{points['n']:,}"
    if points["n_far"]:
        yield "", f"{points['n_far']:,} far off: beyond {points['far']} times the cameras' distance"
    if points["n_out_of_reach"]:
        beyond = f"beyond {points['out_of_reach']:g} times the cameras' distance"
        yield "", f"{points['n_out_of_reach']:,} left out: {beyond}"
    if (blind := points.get("cameras_without")) is not None and blind["n"]:
        yield "", f"{blind['n']:,} images see none of them{_first(blind)}"


def _of_tracks(
    tracks: dict[str, Any] | None, points: dict[str, Any] | None
) -> Iterator[tuple[str, str]]:
    if tracks is None:
        if points is not None:
            yield "tracks", "none that can be read: no reprojection errors, no overlap"
        return
    few = tracks["n_seen_by_fewer_than_3"]
    yield (
        "tracks",
        f"{tracks['n_observations']:,} observations, {tracks['mean_length']:.1f} a point; "
        f"{few:,} points are seen by fewer than 3 images",
    )
    yield (
        "",
        f"an image sees {tracks['observed_median']:,.0f} points (median), the least "
        f"{tracks['observed_least']:,}",
    )
    if tracks["n_behind"]:
        yield "", f"{tracks['n_behind']:,} observations are of points behind their camera"
    if tracks["n_unknown"]:
        yield "", f"{tracks['n_unknown']:,} observations are of points that the model lacks"
    if tracks["median_px"] is not None:
        worst = ", ".join(f"{each['name']} {each['median_px']:.2f}" for each in tracks["worst"])
        yield (
            "reprojection",
            f"{tracks['median_px']:.2f} pixels (median), 90 % within {tracks['most_px']:.2f}",
        )
        yield "", f"worst images (median): {worst}"
    yield from _of_overlap(tracks["overlap"])


def _of_overlap(overlap: dict[str, Any]) -> Iterator[tuple[str, str]]:
    about = "about " if overlap["every"] > 1 else ""
    yield (
        "overlap",
        f"an image shares {about}{overlap['shared_median']:,.0f} points (median) with the image "
        "that it shares most with",
    )
    least = ", ".join(f"{each['name']} {each['shared']:,}" for each in overlap["least"])
    if least:
        yield "", f"least: {least}"
    if overlap["n_components"] > 1:
        groups = ", ".join(
            f"{group['n_images']:,} (first {group['first']})" for group in overlap["components"]
        )
        more = overlap["n_components"] - len(overlap["components"])
        others = f" and {more:,} more" if more else ""
        yield (
            "",
            f"falls apart into {overlap['n_components']:,} groups of images that share no point: "
            f"{groups}{others}",
        )


def _of_fit(fit: dict[str, Any]) -> Iterator[tuple[str, str]]:
    smallest, largest = ("x".join(map(str, fit[key])) for key in ("smallest", "largest"))
    sizes = largest if smallest == largest else f"{smallest} to {largest}"
    made = f", {fit['n_made']:,} of them undistorted or reduced first" if fit["n_made"] else ""
    broken = f", {fit['n_broken']:,} left out" if fit["n_broken"] else ""
    yield (
        "fit would",
        f"train on {fit['n_train']:,} images and test on {fit['n_test']:,}{broken}, {sizes}{made}",
    )
    for line in fit["changed"]:
        yield "", line
    if fit["n_masked"]:
        yield "", f"heed the masks of {fit['n_masked']:,} images"
    if fit["n_depths"]:
        yield "", f"compare depths with the maps of {fit['n_depths']:,} images"
    if fit["exposure"]:
        yield "", "train an exposure of each training image beside the scene"
    if fit["background"] != "black":
        is_white = fit["background"] == "white"
        colours = "white" if is_white else "random colours, score and show over black"
        yield "", f"train over {colours}"
    yield "", f"decode them to {format_bytes(fit['decoded_bytes'])}"
    grows = fit["n_rows_expected"] > fit["n_rows"]
    later = f", with room for {fit['n_rows_expected']:,}" if grows else ""
    yield (
        "",
        f"start from {fit['n_rows']:,} Gaussians{later}; {fit['steps']:,} steps of "
        f"{fit['batch_size']}",
    )
    yield (
        "",
        f"render with {fit['renderer']} on {fit['device']}, offload {fit['preset']}: "
        f"{fit['reason']}",
    )
    yield (
        "",
        f"take about {format_bytes(fit['device_bytes'])} of the device and "
        f"{format_bytes(fit['host_bytes'])} of the host",
    )


def _first(found: dict[str, Any]) -> str:
    names = found["names"]
    more = ", ... (--json names all)" if len(names) > _SHOWN else ""
    return f": {', '.join(names[:_SHOWN])}{more}"
