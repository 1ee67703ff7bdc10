# SPDX-License-Identifier: Apache-2.0
"""The options of ``gs-train fit``."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from gs_train.data.frame import FrameChoice
from gs_train.data.photographs import MOST_PIXELS
from gs_train.densify import AdcConfig, McmcConfig
from gs_train.errors import InputError
from gs_train.options.plain import to_plain
from gs_train.options.presets import NAMED
from gs_train.options.rules import BY_STRATEGY, check_offload, check_values, require, require_name
from gs_train.options.schedule import ExponentialWeight, LearningRates
from gs_train.options.tide import TideConfig, check_tide
from gs_train.sizes import Count, parse_bytes


@dataclass(frozen=True)
class FitConfig:
    """Train a scene from photographs with known poses.

    Attributes:
        data: folder with a COLMAP model (sparse/0 or sparse) and the folder images, folder with a
            transforms.json, or a transforms file.
        out: folder for all files of the run.
        steps: optimizer updates.
        decay_steps: the learning rate of the means decays over so many steps and stays as it is
            from then on (steps).
        batch_size: images a step.
        renderer: raster and gsplat need a CUDA device; cpu runs anywhere; auto takes raster where
            possible, else gsplat, else cpu.
        max_side: images are made smaller until their longer side has at most so many pixels; off
            keeps the size of photographs.
        max_pixels: larger photographs are refused before decoding, which takes about eight bytes of
            memory a pixel.
        skip_broken: go on without photographs that are missing or cannot be decoded: another view
            takes the place of such a photograph in training, and scores leave the photograph out.
        allow_missing: photographs that the model names and that are missing or cannot be read are
            left out before the images are split, and counted in one line.
        mask: ignore leaves the pixels that a mask hides out of the loss and the scores; carve also
            trains them to be transparent; off trains on every pixel. Black hides in
            masks/NAME.png, masks/NAME.jpg.png and a frame's mask_path, and transparency in an
            alpha channel; auto ignores what image files of masks hide, and takes transparent
            pixels for black ones.
        depth_weight: START:END, the weight in the loss of the mean difference between rendered
            inverse depths and those of depth maps: depths/NAME.png, whose scales are in
            depth_params.json beside the model, or depth_file_path of a transforms.json; falls
            exponentially from START to END over the run, or over decay_steps (depth maps are not
            used).
        background: colour behind the scene in training: black, white, or a random one for each view
            and step. Test images are scored, and frames rendered, over black, or over white with
            white.
        exposure: train an affine colour for each training photograph beside the scene, zero in the
            mean over all, so that photographs of different exposure agree. Test images are also
            scored on their right half after a fit to their left half.
        strategy: adaptive density control, Markov chain Monte Carlo with a fixed cap, or fixed:
            the first Gaussians are trained, and none is added or removed.
        cap: the number of Gaussians never exceeds this (mcmc: 1,000,000 when not given).
        init: what to start from instead of the reconstruction's points. A PLY file of points
            (x y z, colours) in the capture's frame, thinned evenly where there are more than the
            cap; or Gaussians, which keep their values: a PLY file of them, the folder of a run of
            any preset, one of its checkpoints, or a store. A transform.json beside a file is used.
        sh_degree: spherical harmonics up to this degree, 0 to 3.
        sh_every: one more degree every so many images.
        seed: seed of all random numbers.
        means_extent: what the learning rate of the means is a multiple of: the extent of all
            cameras; or of a view, the distance at which training views see points, for captures
            that are much wider than what a view sees.
        order: of the training views in an epoch: shuffle; or tiles, groups of neighbouring views in
            random order and shuffled inside, so that less moves between the device and the host.
        tile_views: most views of a tile (an eighth of all, at most 256, at least four batches).
        checkpoint_every: steps between checkpoints; the end always writes a checkpoint. 0: only the
            end does.
        eval_every: steps between scores of the held-out images while the run trains, in log.csv and
            tensorboard/, with a picture of the first one in previews/. 0: the end alone scores.
        keep_checkpoints: number of checkpoints kept; older checkpoints are removed.
        frame: frame of the PLY file: the capture's, or a local frame with transform.json beside
            the file; auto takes a local frame where float32 is too coarse for the capture's
            coordinates.
        point_cloud: write all Gaussians to point_cloud.ply at the end; gs-train export writes them,
            or those within a box, at any time.
        resume: go on from the newest checkpoint in out.
        overwrite: remove the run that out holds, then start.
        test_every: every so many-th image, by sorted name and from the first, is held out; 0: none.
            A transforms_test.json says instead which images are.
        test_list: file with the names of the held-out images instead, one a line.
        image_cache: memory for decoded photographs, of all GPUs of a machine together.
        gpus: number of GPUs of this machine that train the scene together, or all; each owns a part
            of the Gaussians (one GPU). With --renderer cpu a number of processes.
        cut_views: on several GPUs, views that are left over when all GPUs have drawn as many whole
            ones are cut into crops for all; never leaves GPUs without a view idle instead, and a
            run then leaves the bits of one GPU at any batch size.
        scratch: folder for a file of the decoded photographs that image_cache cannot hold, best on
            a disk of this machine; the file goes when the run ends (out).
        offload: where the scene is kept during training; none keeps everything on the device, the
            other presets use host memory, tide a drive as well; auto takes none where the scene
            fits, else best, else the fastest preset but tide that fits.
        store: folder on a drive for the Gaussians of tide, which checkpoints refer to; best on a
            fast drive of this machine (store, in out).
        block_rows: Gaussians of tide that are read, written and moved together, at most.
        device_memory: cap on device memory (all that is free).
        host_memory: cap on host memory (all that is available, less a tenth).
        semantics: dense is Adam on all rows in every step; sparse lets the rows that a batch does
            not see stand still.
        regularise: opacity and scale regularisers act on all rows, or on the visible rows of a
            batch.
        mem_limit: gs-scale splits a view that sees more than this share of the scene.
        trace: file for a trace of the run, for chrome://tracing or ui.perfetto.dev.
        antialiased: compensate opacities for the screen-space blur (Mip-Splatting).
        ssim_lambda: weight of 1 - SSIM against L1.
        scale_with_batch: learning rates, momentum and eps follow the batch size.
        init_opacity: opacity of the first Gaussians (0.1; mcmc: 0.5).
        init_scale: scale of the first Gaussians, relative to the distance of their neighbours (1;
            mcmc: 0.1).
        opacity_reg: weight of the mean opacity in the loss (0; mcmc: 0.01).
        scale_reg: weight of the mean scale in the loss (0; mcmc: 0.01).
        resort_every: rows are put in the order of the Morton curve again when so many times their
            number have been added, pruned or relocated since the last time; 0: never.
        lpips_backbone: file with LPIPS's network weights; without the file LPIPS is "n/a" unless
            torch has the weights.
        lr: learning rates for one image a step.
        adc: options of adaptive density control.
        mcmc: options of Markov chain Monte Carlo.
        tide: how much of the Gaussians --offload tide keeps in memory.
    """

    data: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="DATA")]
    out: Path
    steps: Count = 30_000
    decay_steps: Count | None = None
    batch_size: int = 1
    renderer: Literal["auto", "raster", "gsplat", "cpu"] = "auto"
    max_side: int | Literal["off"] = 1600
    max_pixels: int = MOST_PIXELS
    skip_broken: bool = False
    allow_missing: bool = False
    mask: Literal["auto", "ignore", "carve", "off"] = "auto"
    depth_weight: str | None = None
    background: Literal["black", "white", "random"] = "black"
    exposure: bool = False
    strategy: Literal["adc", "mcmc", "fixed"] = "adc"
    cap: Count | None = None
    init: Path | None = None
    sh_degree: int = 3
    sh_every: Count = 1000
    seed: int = 0
    means_extent: Literal["cameras", "view"] = "cameras"
    order: Literal["shuffle", "tiles"] = "shuffle"
    tile_views: Count | None = None
    checkpoint_every: Count = 5000
    eval_every: Count = 0
    keep_checkpoints: int = 2
    frame: FrameChoice = "auto"
    point_cloud: bool = True
    resume: bool = False
    overwrite: bool = False
    test_every: int = 8
    test_list: Path | None = None
    image_cache: str = "4GiB"
    gpus: str | None = None
    cut_views: Literal["auto", "never"] = "auto"
    scratch: Path | None = None
    offload: Literal["auto", "none", "naive", "clm", "gs-scale", "best", "tide"] = "auto"
    store: Path | None = None
    block_rows: Count = 1024
    device_memory: str | None = None
    host_memory: str | None = None
    semantics: Literal["dense", "sparse"] = "dense"
    regularise: Literal["all", "visible"] = "all"
    mem_limit: float = 0.3
    trace: Path | None = None
    antialiased: bool = False
    ssim_lambda: float = 0.2
    scale_with_batch: bool = True
    init_opacity: float | None = None
    init_scale: float | None = None
    opacity_reg: float | None = None
    scale_reg: float | None = None
    resort_every: float = 1.0
    lpips_backbone: Path | None = None
    lr: LearningRates = field(default_factory=LearningRates)
    adc: AdcConfig = field(default_factory=AdcConfig)
    mcmc: McmcConfig = field(default_factory=McmcConfig)
    tide: TideConfig = field(default_factory=TideConfig)

    def __post_init__(self) -> None:
        check_values(vars(self))
        if self.resume and self.overwrite:
            raise InputError("--resume and --overwrite exclude each other")
        for name in _SIZES:
            n_bytes = self.bytes_of(name)
            require(n_bytes is None or n_bytes >= 1, name, "at least one byte", getattr(self, name))
        if self.depth_weight is not None:
            ExponentialWeight.parse(self.depth_weight, option="--depth-weight")
        check_offload(vars(self))
        if self.is_stored:
            check_tide(
                self.offload,
                strategy=self.strategy,
                semantics=self.semantics,
                regularise=self.regularise,
                weights={
                    f"--{name.replace('_', '-')}": self.by_strategy(name)
                    for name in ("opacity_reg", "scale_reg")
                },
                gpus=self.gpus,
            )
        elif self.store is not None:
            # A run that goes on has the store that it was started with.
            kept = "a run whose Gaussians are in a store goes on there, or in a new run with --init"
            raise InputError(
                f"--store needs --offload tide, got --offload {self.offload}"
                + (f": {kept} {self.out}" if self.resume else "")
            )

    def bytes_of(self, name: str) -> int | None:
        """``image_cache``, ``device_memory`` or ``host_memory`` in bytes; None: not given.

        Raises:
            InputError: the text is no size.
            ValueError: another name.
        """
        require_name(name, _SIZES)
        text = getattr(self, name)
        return None if text is None else parse_bytes(text, option=f"--{name.replace('_', '-')}")

    @property
    def weight_of_depth(self) -> ExponentialWeight | None:
        """``depth_weight`` as numbers; None: not given."""
        if self.depth_weight is None:
            return None
        return ExponentialWeight.parse(self.depth_weight, option="--depth-weight")

    @property
    def recipe(self) -> dict[str, Any]:
        """The options that a resumed run must share with its start. The checkpoint itself records
        the preset and the initial points.

        Recipe, capture, ``steps`` and ``decay_steps`` decide the result: with more ``steps`` and
        without ``decay_steps``, the learning rate of a resumed run decays more slowly.
        """
        plain = to_plain(self)
        for name in _NOT_RECIPE:
            plain.pop(name)
        return plain

    @property
    def is_stored(self) -> bool:
        """Whether the options name a preset that keeps rows in a store on a drive."""
        return self.offload != "auto" and NAMED[self.offload].is_stored

    @property
    def row_cap(self) -> int | None:
        """The number of Gaussians that is never exceeded; None: there is none."""
        if self.cap is not None or self.strategy == "fixed":
            return self.cap
        return self.mcmc.cap_max if self.strategy == "mcmc" else self.adc.cap

    @property
    def longest_side(self) -> int | None:
        """Pixels of the longer side of an image at most; None: photographs keep their size."""
        return None if self.max_side == "off" else self.max_side

    @property
    def steps_of_decay(self) -> int:
        """The steps over which the learning rate of the means and the weight of depths decay."""
        return self.steps if self.decay_steps is None else self.decay_steps

    def by_strategy(self, name: str) -> float:
        """An option with a default that depends on the strategy.

        Raises:
            ValueError: another name.
        """
        require_name(name, tuple(BY_STRATEGY[self.strategy]))
        value = getattr(self, name)
        return float(BY_STRATEGY[self.strategy][name] if value is None else value)


_SIZES = ("image_cache", "device_memory", "host_memory")

_NOT_RECIPE = (
    "data", "out", "steps", "decay_steps", "checkpoint_every", "eval_every", "keep_checkpoints",
    "resume", "overwrite", "image_cache", "lpips_backbone", "test_list", "device_memory",
    "host_memory", "trace", "init", "offload", "frame", "point_cloud", "max_pixels",
    "skip_broken", "allow_missing", "scratch", "gpus", "cut_views", "store", "block_rows", "tide",
)  # fmt: skip
