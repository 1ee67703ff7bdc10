# SPDX-License-Identifier: Apache-2.0
"""``gs-train eval`` beside a ``fit`` of the same run, and without some of its photographs."""

from __future__ import annotations

import dataclasses
import fcntl
import json
import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import gs_train
import gs_train.runs.evaluate
from gs_train.cli import main
from gs_train.data import load_capture
from gs_train.names import printable

STEPS = 3


@pytest.fixture(scope="module")
def fitted(tiny_capture: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run; not to be written to."""
    out = tmp_path_factory.mktemp("fitted") / "run"
    options = ["--renderer", "cpu", "--steps", str(STEPS), "--cap", "200"]
    assert main(["fit", str(tiny_capture), "--out", str(out), *options]) == 0
    return out


@pytest.fixture
def run(fitted: Path, tmp_path: Path) -> Path:
    """A copy to change."""
    return Path(shutil.copytree(fitted, tmp_path / "run"))


def _evaluate(run: Path) -> int:
    return main(["eval", str(run), "--renderer", "cpu"])


def _results(run: Path) -> tuple[bytes, bytes]:
    return (run / "metrics.json").read_bytes(), (run / "comparison.png").read_bytes()


def _change(run: Path, **values: Any) -> None:
    metrics = json.loads((run / "metrics.json").read_text())
    (run / "metrics.json").write_text(json.dumps({**metrics, **values}))


def _after_scoring(monkeypatch: pytest.MonkeyPatch, do: Callable[[], object]) -> None:
    """Let something happen once, between the scores of an evaluation and what it writes."""
    score_views = gs_train.runs.evaluate.score_views

    def scored(*arguments: Any, **options: Any) -> Any:
        scores = score_views(*arguments, **options)
        monkeypatch.setattr(gs_train.runs.evaluate, "score_views", score_views)
        do()
        return scores

    monkeypatch.setattr(gs_train.runs.evaluate, "score_views", scored)


def test_a_stop_while_the_worst_views_are_drawn_leaves_the_scores(
    run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    before = _results(run)
    for name in ("metrics.json", "comparison.png", "report.html"):
        (run / name).unlink()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    _after_scoring(monkeypatch, lambda: signal.raise_signal(signal.SIGINT))
    assert _evaluate(run) == 128 + signal.SIGINT
    assert _results(run) == before
    page = (run / "report.html").read_text()
    assert "Test images, the worst first" in page
    assert "<h2>Worst test images" not in page
    said = capsys.readouterr().err.splitlines()
    assert any(line.startswith("PSNR ") for line in said)
    assert said[-1] == "gs-train: stopped during evaluation"


def test_views_whose_names_print_alike_are_told_apart(
    tiny_capture: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    capture = load_capture(tiny_capture, cache_dir=tmp_path / "cache", test_every=0)
    names = ["a\x01", r"a\x01", *(f"b{k:02}" for k in range(len(capture.views) - 2))]
    assert printable(names[0]) == names[1]
    named = zip(capture.views, names, strict=True)
    views = tuple(dataclasses.replace(view, name=name) for view, name in named)
    train = tuple(range(2, len(views)))
    capture = dataclasses.replace(capture, views=views, test=(0, 1), train=train)
    looks: list[list[int]] = []
    score_views = gs_train.runs.evaluate.score_views

    def noted(model: Any, scene: Any, indices: Any, **options: Any) -> Any:
        looks.append(sorted(indices))
        return score_views(model, scene, indices, **options)

    monkeypatch.setattr(gs_train.runs.evaluate, "score_views", noted)
    gs_train.fit(capture=capture, out=tmp_path / "run", renderer="cpu", steps=1)
    assert looks == [[0, 1], [0, 1]]


def test_results_of_a_fit_that_ends_meanwhile_stay(
    tiny_capture: Path,
    run: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    written = []

    def go_on() -> None:
        command = ["fit", str(tiny_capture), "--out", str(run), "--resume", "--steps", "5"]
        assert main(command) == 0
        written.append(_results(run))
        capsys.readouterr()

    _after_scoring(monkeypatch, go_on)
    assert _evaluate(run) == 0
    assert [_results(run)] == written
    assert json.loads(written[0][0])["steps"] == 5
    (said,) = capsys.readouterr().err.splitlines()
    assert said == (
        f"{run}/metrics.json holds results of step 5 and stays as it is: the scores of step 3 are "
        "not written (remove the file to have them written)"
    )
    assert _evaluate(run) == 0  # of the newest checkpoint
    assert "PSNR" in capsys.readouterr().err


def test_results_of_another_run_stay(
    run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _after_scoring(monkeypatch, lambda: _change(run, run_id="another", steps=1))
    assert _evaluate(run) == 0
    assert "holds results of another run and stays as it is" in capsys.readouterr().err
    assert json.loads((run / "metrics.json").read_text())["run_id"] == "another"


@pytest.mark.parametrize("content", [None, b"", b"[]", b"{}", b"\xff", b"[" * 100_000])
def test_results_that_are_gone_or_damaged_are_written_anew(
    run: Path, content: bytes | None
) -> None:
    before = _results(run)
    (run / "comparison.png").unlink()
    (run / "metrics.json").unlink()
    if content is not None:
        (run / "metrics.json").write_bytes(content)
    assert _evaluate(run) == 0
    assert _results(run) == before


def test_a_fit_replaces_results_of_a_later_step_whose_checkpoint_is_gone(
    tiny_capture: Path, run: Path
) -> None:
    _change(run, steps=9)
    assert main(["fit", str(tiny_capture), "--out", str(run), "--resume"]) == 0
    assert json.loads((run / "metrics.json").read_text())["steps"] == STEPS


@pytest.mark.parametrize("command", ["eval", "fit"])
def test_nobody_writes_results_between_another_s_look_at_them_and_its_own(
    tiny_capture: Path, run: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    """Both files are written while the folder is locked."""
    found_locked = []

    def watched(write: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            descriptor = os.open(run, os.O_RDONLY)
            try:
                with pytest.raises(BlockingIOError):
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            finally:
                os.close(descriptor)
            found_locked.append(write.__name__)
            return write(*arguments, **options)

        return call

    for name in ("write_comparison", "write_metrics"):
        monkeypatch.setattr(
            gs_train.runs.evaluate, name, watched(getattr(gs_train.runs.evaluate, name))
        )
    fit = ["fit", str(tiny_capture), "--out", str(run), "--resume"]
    assert main(fit if command == "fit" else ["eval", str(run), "--renderer", "cpu"]) == 0
    assert found_locked == ["write_comparison", "write_metrics"]


def test_a_missing_photograph_is_left_out_as_the_message_says(
    tiny_capture: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Evaluation, and renders of a run without run.json, follow an option that only fit has."""
    capture = Path(shutil.copytree(tiny_capture, tmp_path / "capture"))
    out = tmp_path / "run"
    fit = ["fit", str(capture), "--out", str(out), "--renderer", "cpu"]
    assert main([*fit, "--steps", "2", "--cap", "200"]) == 0
    (out / "run.json").unlink()
    sorted((capture / "images").iterdir())[1].unlink()
    frames = ["--frames", "1", "--to", str(tmp_path / "frames")]
    for command in (["eval", str(out)], ["render", str(out), *frames]):
        capsys.readouterr()
        assert main([*command, "--renderer", "cpu"]) == 2
        said = capsys.readouterr().err
        assert "1 missing" in said
        assert ": gs-train fit --skip-broken, with --resume where the run exists; where the" in said
    assert main([*fit, "--resume", "--skip-broken"]) == 0
    for command in (["eval", str(out)], ["render", str(out), *frames]):
        assert main([*command, "--renderer", "cpu"]) == 0
