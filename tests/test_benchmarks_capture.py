# SPDX-License-Identifier: Apache-2.0
"""Trainers compared seed by seed, and the run of another commit."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

BENCHMARKS = Path(__file__).parent.parent / "benchmarks"


def _python(code: str, **names: Any) -> Any:
    """What ``result`` holds after ``code``, which can import the benchmarks' modules."""
    given = "".join(f"{name} = {value!r}\n" for name, value in names.items())
    path = [str(BENCHMARKS), str(BENCHMARKS / "train"), os.environ.get("PYTHONPATH", "")]
    done = subprocess.run(
        [sys.executable, "-c", f"import json\n{given}{code}\nprint(json.dumps(result))"],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, path))},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def _runs(rates: list[float], psnrs: list[float]) -> list[dict[str, float]]:
    return [
        {"images_per_second": rate, "psnr": psnr, "ssim": 0.5} for rate, psnr in zip(rates, psnrs)
    ]


PAIRED = """
from pairs import Pair
lines = {}
class Lines:
    def add(self, name, samples, unit, **more):
        lines[f"{name}, {unit}"] = [samples, more]
pair = Pair("none", ours, "before", theirs)
pair.add_to(Lines(), {"steps": 5})
result = [str(pair), lines]
"""


def test_pairs_compare_the_runs_of_a_seed() -> None:
    words, lines = _python(
        PAIRED,
        ours=_runs([100.0, 300.0, 220.0], [30.0, 33.0, 32.0]),
        theirs=_runs([100.0, 100.0, 110.0], [29.0, 31.0, 29.0]),
    )
    assert words == (
        "none over before: rate 2.000 (1.000 to 3.000), psnr +2.000 +- 0.577, "
        "ssim +0.00000 +- 0.00000"
    )
    assert lines["none over before, ratio"] == [[1.0, 3.0, 2.0], {"axes": {"steps": 5}}]
    differences, facts = lines["none over before, dB"]
    assert differences == [1.0, 2.0, 3.0]
    assert (facts["mean"], round(facts["standard_error"], 3)) == (2.0, 0.577)
    assert "none over before, SSIM" in lines


STANDING_IN = """
import json
from pathlib import Path

def main(arguments):
    out = Path(arguments[arguments.index("--out") + 1])
    told = Path(__file__).parent / "told.json"
    told.write_text(json.dumps([*json.loads(told.read_text()), arguments]))
    out.mkdir()
    (out / "metrics.json").write_text(json.dumps({"psnr": len(json.loads(told.read_text()))}))
    return 0
"""
EARLIER = """
from pathlib import Path
import earlier
from gs_train.options.config import FitConfig
config = FitConfig(data=Path("capture"), out=Path("run"), steps=30, seed=4, offload="none")
result = earlier.fit(Path(site), config, warm_up=20)
"""


def test_another_commit_runs_in_its_own_process_after_steps_that_do_not_count(
    tmp_path: Path,
) -> None:
    package = tmp_path / "gs_train"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "cli.py").write_text(STANDING_IN)
    (package / "told.json").write_text("[]")
    assert _python(EARLIER, site=str(tmp_path)) == {"psnr": 2}  # of the second run
    warm, run = json.loads((package / "told.json").read_text())
    assert run[:2] == ["fit", str(Path("capture").resolve())]
    assert run[4:] == [
        *("--steps", "30", "--seed", "4", "--strategy", "adc", "--offload", "none"),
        *("--checkpoint-every", "0"),
    ]
    assert [word for word in warm[4:] if word not in run] == ["20"]


def test_a_folder_without_gs_train_is_named(tmp_path: Path) -> None:
    code = EARLIER.replace(
        "result = earlier.fit(Path(site), config, warm_up=20)",
        "try:\n    earlier.fit(Path(site), config, warm_up=20)\n"
        "except FileNotFoundError as error:\n    result = str(error)",
    )
    found = _python(code, site=str(tmp_path))
    assert found == f"--before must hold gs_train, got {tmp_path}"


# Seeds of several calls


def _seeds(path: Path, seeds: list[int], **fields: Any) -> Path:
    """A file of some seeds, with a line of scores and a line of paired differences."""
    gpu = {"gpu": "A card", "driver": str(seeds[0]), "gpu_memory_bytes": 1}
    machine = {
        **gpu, "cpu": "A processor", "cores": 2, "memory_bytes": 1, "platform": "Linux",
        "python": "3", "torch": "2", "cuda": "13", "packages": {}, "environment": {},
    }  # fmt: skip
    lines = [
        {"name": "none", "axes": {}, "unit": "dB", "facts": {},
         "samples": [30.0 + seed for seed in seeds]},
        {"name": "none over before", "axes": {}, "unit": "dB",
         "facts": {"mean": 0, "standard_error": 0}, "samples": [float(seed) for seed in seeds]},
    ]  # fmt: skip
    words = [
        "PYTHONPATH=benchmarks",
        "python",
        "bench.py",
        "--seeds",
        *map(str, seeds),
        "--cap",
        "5",
    ]
    path.write_text(
        json.dumps(
            {"format": 1, "benchmark": "bench.py", "command": " ".join(words), "commit": "0" * 40,
             "date": "2026-01-02", "seconds": 5.0, "machine": machine, "facts": {"seeds": seeds},
             "lines": lines, **fields}
        )
    )  # fmt: skip
    return path


def _join(*arguments: Any) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(BENCHMARKS / "join_seeds.py"), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_files_of_other_seeds_are_joined(tmp_path: Path) -> None:
    parts = _seeds(tmp_path / "a.json", [0, 1]), _seeds(tmp_path / "b.json", [2])
    done = _join(*parts, "--to", tmp_path / "all.json")
    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path / "all.json").read_text())
    scores, differences = found["lines"]
    assert scores["samples"] == [30.0, 31.0, 32.0]
    assert differences["samples"] == [0.0, 1.0, 2.0]
    assert differences["facts"]["mean"] == 1.0
    assert found["command"].endswith("bench.py --cap 5 --seeds 0 1 2")
    assert [part["seeds"] for part in found["facts"]["parts"]] == [[0, 1], [2]]
    assert [part["machine"]["driver"] for part in found["facts"]["parts"]] == ["0", "2"]


@pytest.mark.parametrize(
    ("seeds", "fields", "message"),
    [
        ([1, 2], {}, r"seeds must differ from file to file, got \[0, 1, 1, 2\]"),
        ([2], {"commit": "1" * 40}, "b.json must have the commit of"),
        ([2], {"command": "python bench.py"}, "must have the command, but for its seeds, of"),
    ],
)
def test_files_that_differ_in_more_than_seeds_are_refused(
    tmp_path: Path, seeds: list[int], fields: dict[str, Any], message: str
) -> None:
    parts = _seeds(tmp_path / "a.json", [0, 1]), _seeds(tmp_path / "b.json", seeds, **fields)
    done = _join(*parts, "--to", tmp_path / "all.json")
    assert done.returncode == 2
    assert re.search(message, done.stderr), done.stderr
    assert not (tmp_path / "all.json").exists()


# gsplat's densifier in gs-train

DENSIFIER = """
import gsplat, torch
from gs_train.options.config import FitConfig
from gs_train.rows.gaussians import Gaussians
from gs_train.runs.strategies import StrategyStart
from gsplat_densifier import GsplatDensifier
from pathlib import Path
torch.manual_seed(1)
n = 40
rows = {
    "means": torch.randn(n, 3), "scales": torch.randn(n, 3) - 4.5, "quats": torch.randn(n, 4),
    "opacities": 3 * torch.randn(n) - 4, "sh0": torch.randn(n, 1, 3), "shN": torch.randn(n, 3, 3),
}
sums = {"grad2d": 4e-4 * torch.rand(n), "count": torch.ones(n)}
config = FitConfig(data=Path("capture"), out=Path("run"))
ours = Gaussians(rows, device="cpu", make_optimizer=lambda groups: torch.optim.Adam(groups))
for group in ours.optimizer.param_groups:
    (parameter,) = group["params"]
    parameter.grad = torch.ones_like(parameter)
ours.optimizer.step()
start = StrategyStart(n_rows=n, scene_scale=1.0, seed=5, device=torch.device("cpu"), config=config)
densifier = GsplatDensifier(start)
densifier.load(sums)
early = densifier.after_step(ours, step=500, images_before=500, images_after=501, means_lr=1.0)
values = {name: ours.read(name).clone() for name in rows}
moments = {
    name: ours.optimizer.state[parameter]["exp_avg"].clone()
    for name, parameter in ours.params.items()
}
torch.manual_seed(5)
changed = densifier.after_step(ours, step=600, images_before=600, images_after=601, means_lr=1.0)

theirs = {name: torch.nn.Parameter(value) for name, value in values.items()}
optimizers = {name: torch.optim.Adam([p]) for name, p in theirs.items()}
for name, parameter in theirs.items():
    optimizers[name].state[parameter] = {"exp_avg": moments[name]}
strategy = gsplat.DefaultStrategy()
strategy._update_state = lambda *a, **k: None
state = {**strategy.initialize_state(), **{name: value.clone() for name, value in sums.items()}}
torch.manual_seed(5)
strategy.step_post_backward(theirs, optimizers, state, 600, {})

def together(values, moment):
    flat = torch.cat([values[name].detach().reshape(len(moment), -1) for name in rows], 1)
    return sorted(torch.cat([flat, moment.reshape(len(moment), -1)], 1).tolist())

of_ours = {name: ours.read(name) for name in rows}
is_same = together(of_ours, ours.optimizer.state[ours.params["means"]]["exp_avg"]) == together(
    theirs, optimizers["means"].state[theirs["means"]]["exp_avg"]
)
result = [early.n_changes, changed.grown, changed.pruned, ours.n_rows - n, is_same]
"""


def test_gsplats_densifier_leaves_what_gsplats_strategy_leaves() -> None:
    early, grown, pruned, more, is_same = _python(DENSIFIER)
    assert early == 0
    assert grown > 0
    assert pruned > 0
    assert grown - pruned == more
    assert is_same


OURS = """
from bench_real_capture import own, paired
import argparse
options = argparse.Namespace(offload=["none", "best"], device_memory=None, swap=["renderer"])
trainers = own(options)
runs = {name: [{"images_per_second": 1.0, "psnr": 1.0, "ssim": 1.0}] for name in trainers}
runs["gsplat's loop"] = runs["before"] = runs["none"]
result = [pair.name for pair in paired(runs, list(trainers))]
"""


def test_ours_are_compared_with_every_trainer_after_them() -> None:
    swapped = "none, gsplat's renderer"
    assert _python(OURS) == [
        *("none over best", f"none over {swapped}", "none over gsplat's loop", "none over before"),
        *(f"best over {swapped}", "best over gsplat's loop", "best over before"),
        *(f"{swapped} over gsplat's loop", f"{swapped} over before"),
    ]
