# SPDX-License-Identifier: Apache-2.0
"""Densification: how the set of Gaussians grows and shrinks while it is trained.

`Adc` is the adaptive density control of the original paper, `Mcmc` the stochastic relocation of
3DGS-MCMC; both as gsplat 1.5.3 has them, counted in images and with random numbers that depend
on (seed, purpose, step, row) alone. `Fixed` keeps the set as it is.
"""

from gs_train.densify.adc import Adc, AdcConfig
from gs_train.densify.fixed import Fixed
from gs_train.densify.mcmc import Mcmc, McmcConfig
from gs_train.densify.protocol import Changed, Densifier, DirectDensifier, direct_of

__all__ = [
    "Adc",
    "AdcConfig",
    "Changed",
    "Densifier",
    "DirectDensifier",
    "Fixed",
    "Mcmc",
    "McmcConfig",
    "direct_of",
]
