# SPDX-License-Identifier: Apache-2.0
"""The stages on CUDA tensors of torch: torch gives every output and workspace, and all work is
enqueued on torch's current stream. :mod:`gs_raster` has the public names."""
