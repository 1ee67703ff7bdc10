# SPDX-License-Identifier: Apache-2.0
from typing import Any

__version__: str

def build_info() -> dict[str, Any]: ...

class CudaError(RuntimeError): ...
