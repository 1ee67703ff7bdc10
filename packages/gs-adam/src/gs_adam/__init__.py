# SPDX-License-Identifier: Apache-2.0
"""Adam for 3D Gaussians on the host: only the rows with work to do."""

from typing import TYPE_CHECKING, Any

from gs_adam._core import CudaError, __version__, build_info
from gs_adam.plain import Schedule, flush_rows, update_rows

if TYPE_CHECKING:
    from gs_adam.device import DeviceAdam
    from gs_adam.device_rows import DeviceRows
    from gs_adam.host import HostAdam
    from gs_adam.row_schedule import RowSchedule
    from gs_adam.strategy import follow
    from gs_adam.worker import Worker

__all__ = [
    "CudaError",
    "DeviceAdam",
    "DeviceRows",
    "HostAdam",
    "RowSchedule",
    "Schedule",
    "Worker",
    "__version__",
    "build_info",
    "flush_rows",
    "follow",
    "update_rows",
]

# These extend or serve torch's classes, and torch is imported only where it is used.
_NEED_TORCH = {
    "DeviceAdam": "gs_adam.device",
    "DeviceRows": "gs_adam.device_rows",
    "HostAdam": "gs_adam.host",
    "RowSchedule": "gs_adam.row_schedule",
    "follow": "gs_adam.strategy",
    "Worker": "gs_adam.worker",
}


def __getattr__(name: str) -> Any:
    if name not in _NEED_TORCH:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    try:
        module = importlib.import_module(_NEED_TORCH[name])
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise ModuleNotFoundError(
            f"gs_adam.{name} needs torch, which is not installed: pip install gs-adam[torch]",
            name="torch",
        ) from None
    return getattr(module, name)
