# SPDX-License-Identifier: Apache-2.0
"""Against torchmetrics, with random weights: the formula is tested, not ImageNet."""

import importlib.machinery
import sys
import types
import warnings

import pytest
import torch
from torch import nn

from gs_train.errors import InputError
from gs_train.losses import lpips
from gs_train.losses.lpips import load_lpips

FILES = {"alex": "alexnet-owt-7be5be79.pth", "vgg": "vgg16-397923af.pth"}


def features(net):
    """torchvision's ``features`` of AlexNet and VGG-16, as its documentation describes them."""
    if net == "alex":
        layers = [nn.Conv2d(3, 64, 11, 4, 2), nn.ReLU(), nn.MaxPool2d(3, 2)]
        layers += [nn.Conv2d(64, 192, 5, padding=2), nn.ReLU(), nn.MaxPool2d(3, 2)]
        for a, b in ((192, 384), (384, 256), (256, 256)):
            layers += [nn.Conv2d(a, b, 3, padding=1), nn.ReLU()]
        layers.append(nn.MaxPool2d(3, 2))
    else:
        layers, last = [], 3
        for width in (64, 64, 0, 128, 128, 0, 256, 256, 256, 0, 512, 512, 512, 0, 512, 512, 512, 0):
            if width:
                layers += [nn.Conv2d(last, width, 3, padding=1), nn.ReLU()]
                last = width
            else:
                layers.append(nn.MaxPool2d(2, 2))
    return nn.Sequential(*layers)


@pytest.fixture(params=["alex", "vgg"])
def backbone(request, tmp_path):
    torch.manual_seed(0)
    model = nn.Module()
    model.features = features(request.param)
    path = tmp_path / "hub" / "checkpoints" / FILES[request.param]
    path.parent.mkdir(parents=True)
    torch.save(model.state_dict(), path)
    return request.param, model, path


def images(seed, height=97, width=130):
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(height, width, 3, generator=generator)


def oracle(net, model, monkeypatch):
    """torchmetrics' network around ``model``, in place of a torchvision that may be missing."""
    from torchmetrics.functional.image import lpips as theirs

    fake = types.ModuleType("torchvision")
    fake.__spec__ = importlib.machinery.ModuleSpec("torchvision", None)
    name = {"alex": "alexnet", "vgg": "vgg16"}[net]
    fake.models = types.SimpleNamespace(**{name: lambda weights: model})
    monkeypatch.setitem(sys.modules, "torchvision", fake)
    monkeypatch.setattr(theirs, "_TORCHVISION_AVAILABLE", True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return theirs._LPIPS(net=net, pnet_rand=True)


def test_lpips_is_that_of_torchmetrics(backbone, monkeypatch):
    net, model, path = backbone
    mine = load_lpips(net, backbone=path)
    theirs = oracle(net, model, monkeypatch)
    a, b = images(1), images(2)
    expected = float(theirs(a.permute(2, 0, 1)[None], b.permute(2, 0, 1)[None], normalize=True))
    assert expected > 0
    # Float32 convolutions in two batch layouts.
    assert mine(a, b) == pytest.approx(expected, rel=1e-4)
    # Summed in two orders at most.
    assert mine(b, a) == pytest.approx(mine(a, b), rel=1e-4)
    assert mine(a, a) == pytest.approx(0, abs=1e-6)
    assert mine.net == net


def test_lpips_of_kept_pixels_sees_no_hidden_ones(backbone):
    net, _, path = backbone
    ours = load_lpips(net, backbone=path)
    image, truth = images(1), images(2)
    kept = torch.rand(97, 130, 1, generator=torch.Generator().manual_seed(3)) < 0.7
    kept[20:50, 30:90] = False
    expected = ours(image, truth, kept)
    assert expected > 0
    assert ours(image.where(kept, 0.5), truth.where(kept, 0.9), kept) == expected
    assert ours(truth.where(kept, 0.5), truth, kept) == pytest.approx(0.0, abs=1e-6)
    every = torch.ones_like(kept)
    assert ours(image, truth, every) == pytest.approx(ours(image, truth), rel=0.05)


def test_weights_in_the_hub_folder_are_found(backbone, monkeypatch):
    net, _, path = backbone
    monkeypatch.setattr(torch.hub, "get_dir", lambda: str(path.parent.parent))
    assert load_lpips(net).net == net
    assert lpips.missing_for_lpips(net) is None


def test_without_weights_there_is_no_lpips(tmp_path, monkeypatch):
    monkeypatch.setattr(torch.hub, "get_dir", lambda: str(tmp_path))
    assert load_lpips() is None
    said = lpips.missing_for_lpips()
    assert "alexnet-owt-7be5be79.pth (from https://download.pytorch.org/models/alexnet" in said
    assert f"to {tmp_path / 'checkpoints'} or anywhere that --lpips-backbone names" in said
    assert "torchmetrics" not in said


def test_without_torchmetrics_there_is_none_unless_it_was_asked_for(backbone, monkeypatch):
    net, _, path = backbone
    monkeypatch.setattr(torch.hub, "get_dir", lambda: str(path.parent.parent))
    monkeypatch.setattr(lpips, "_linear_file", lambda net: None)
    assert load_lpips(net) is None
    said = lpips.missing_for_lpips(net)
    assert said == "LPIPS needs torchmetrics (pip install 'gs-train[eval]')"
    with pytest.raises(InputError, match=r"pip install 'gs-train\[eval\]'"):
        load_lpips(net, backbone=path)


@pytest.mark.parametrize("content", [None, b"garbage", b""])
def test_a_named_file_that_is_no_backbone_is_an_input_error(tmp_path, content):
    path = tmp_path / "weights.pth"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(InputError, match=r"weights\.pth must be torchvision's alexnet.* weights"):
        load_lpips(backbone=path)


def test_the_backbone_of_another_net_is_an_input_error(tmp_path):
    model = nn.Module()
    model.features = features("vgg")
    torch.save(model.state_dict(), tmp_path / "vgg.pth")
    with pytest.raises(InputError, match=r"must be torchvision's alexnet.*features\.3\.weight"):
        load_lpips("alex", backbone=tmp_path / "vgg.pth")
