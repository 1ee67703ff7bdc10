# SPDX-License-Identifier: Apache-2.0
"""The example of the README runs."""

import re
from pathlib import Path
from typing import Any

README = Path(__file__).parents[1] / "README.md"


def test_the_example_runs() -> None:
    names: dict[str, Any] = {}
    (example,) = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
    exec(example, names)
    assert names["blended"].image.max() > 0.5
    for name, grad in names["of_rows"]._asdict().items():
        assert grad.shape == getattr(names["rows"], name).shape
        assert name == "shN" or grad.any(), name
