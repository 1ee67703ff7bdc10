# SPDX-License-Identifier: Apache-2.0
"""A CUDA stream that stands still until a test lets it go on."""

import ctypes
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch

_HOST_FUNCTION = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


@contextmanager
def held(stream: torch.cuda.Stream | None = None) -> Iterator[None]:
    """What is enqueued in the block on the stream, by default the current one, waits for its end.

    The host must not wait for the stream in the block: it would wait for ever, and pytest's
    ``faulthandler_timeout`` would end the run. What waits for the device when it is first called
    (kernels are loaded, page-locked memory is taken) is therefore called before the block.
    """
    stream = stream or torch.cuda.current_stream()
    go_on = threading.Event()

    @_HOST_FUNCTION
    def wait(_: int) -> None:
        go_on.wait()

    launch = ctypes.CDLL("libcuda.so.1").cuLaunchHostFunc
    launch.argtypes = ctypes.c_void_p, _HOST_FUNCTION, ctypes.c_void_p
    assert launch(stream.cuda_stream, wait, None) == 0
    try:
        yield
    finally:
        go_on.set()
        stream.synchronize()  # `wait` lives until it has been called
