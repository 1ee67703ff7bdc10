# SPDX-License-Identifier: Apache-2.0
"""Trainers compared seed by seed, and the run of another commit."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

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
