# SPDX-License-Identifier: Apache-2.0
"""The page on the format of checkpoints: its reader without gs-train reads what gs-train writes."""

import re
from pathlib import Path

import numpy as np
import pytest
import torch

from gs_train.checkpoint import save_checkpoint

PAGE = Path(__file__).parent.parent / "docs" / "checkpoint-format.md"


@pytest.mark.parametrize("max_shard_bytes", [200, 1 << 20])
def test_the_reader_on_the_page_reads_what_was_saved(tmp_path: Path, max_shard_bytes: int) -> None:
    means, keys = torch.randn(40, 3), torch.randperm(40).int()
    path = save_checkpoint(
        tmp_path,
        step=5000,
        tensors={"model/means": means, "model/keys": keys},
        state={"frame": {}},
        max_shard_bytes=max_shard_bytes,
    )
    blocks = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    (reader,) = (block for block in blocks if "import numpy" in block)
    names: dict[str, np.ndarray] = {}
    exec(reader.replace("RUN/checkpoints/step_005000", str(path)), names)
    assert np.array_equal(names["means"], means.numpy())
    assert np.array_equal(names["keys"], keys.numpy())


def test_the_call_on_the_page_reads_rows(tmp_path: Path) -> None:
    tensors = {"model/means": torch.randn(90_001, 3), "model/keys": torch.arange(90_001).int()}
    path = save_checkpoint(tmp_path, step=5000, tensors=tensors, state={})
    blocks = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    (call,) = (block for block in blocks if "open_checkpoint" in block)
    names: dict[str, dict[str, torch.Tensor]] = {}
    exec(call.replace("RUN/checkpoints/step_005000", str(path)), names)
    assert names["some"]["model/keys"].tolist() == [3, 17, 90_000]
