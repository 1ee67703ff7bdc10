# SPDX-License-Identifier: Apache-2.0
"""The renderer that the options of a run name."""

from __future__ import annotations

from gs_train.options.config import FitConfig
from gs_train.renderers import Renderer, RenderOptions, make_renderer


def renderer_for(config: FitConfig, name: str | None = None) -> Renderer:
    """The renderer of a run, or another one with the run's options."""
    options = RenderOptions(antialiased=config.antialiased)
    absgrad = config.strategy == "adc" and config.adc.absgrad
    return make_renderer(name or config.renderer, options, absgrad=absgrad)
