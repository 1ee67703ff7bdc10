# SPDX-License-Identifier: Apache-2.0
"""Plans of CUDA tensors by Triton kernels; only `gs_order.plans.tensors` imports this, and late.

``batch`` counts rows and writes lists by ``kernels``; within a capacity ``belady`` chooses between
the two, by ``belady_kernels``, which rows do not wait.
"""
