"""Closed forms of convolutional networks against what the counter counts."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from formula_models import assert_counted, assert_recomputed, trained
from torch import nn

from mfu_torch.flops.formulas import Conv, ConvNet, Linear, Pool, Residual, resnet

B = 2


def parameters_of(model: nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())


def module_of(conv: Conv, dims: int) -> nn.Module:
    made: Any = getattr(nn, f"Conv{'Transpose' if conv.transposed else ''}{dims}d")
    extra = {"output_padding": conv.output_padding} if conv.transposed else {}
    return made(
        conv.inputs, conv.outputs, conv.kernel, conv.stride, conv.padding, dilation=conv.dilation,
        groups=conv.groups, bias=conv.has_bias, **extra,
    )  # fmt: skip


class Block(nn.Module):
    """As torchvision has it: a norm behind each convolution."""

    def __init__(self, residual: Residual) -> None:
        super().__init__()
        self.body, self.shortcut = (
            nn.Sequential(
                *[nn.Sequential(module_of(c, 2), nn.BatchNorm2d(c.outputs)) for c in convs]
            )
            for convs in (residual.body, residual.shortcut)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.body(x) + self.shortcut(x))


def model_of(net: ConvNet) -> tuple[nn.Module, nn.ModuleList]:
    layers: list[nn.Module] = []
    for layer in net.layers:
        if isinstance(layer, Residual):
            layers.append(Block(layer))
        elif isinstance(layer, Pool):
            layers.append(nn.MaxPool2d(layer.kernel, layer.stride, layer.padding))
        else:
            layers += [module_of(layer, 2), nn.BatchNorm2d(layer.outputs)]
    blocks = nn.ModuleList(layer for layer in layers if isinstance(layer, Block))
    head = net.classifier[0]
    layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(head.inputs, head.outputs)]
    return nn.Sequential(*layers), blocks


@pytest.mark.parametrize("depth", [18, 50])
def test_resnet(depth: int) -> None:
    net = resnet(depth, classes=10, size=64)
    model, blocks = model_of(net)
    images, form = torch.randn(B, 3, 64, 64), net.flops(B)
    assert_counted(form, trained(model, images))
    assert net.parameters.total == parameters_of(model)
    if depth == 18:
        assert_recomputed(form, model, blocks, images)


def test_resnet_50_by_hand() -> None:
    # (rows of a picture's side, weights that each position meets), stage by stage.
    stem = 112**2 * 64 * 3 * 49
    first = 56**2 * (64 * 64 + 64 * 64 * 9 + 2 * 64 * 256) + 2 * 56**2 * (
        2 * 64 * 256 + 64 * 64 * 9
    )
    later = 0
    for side, width, count in ((28, 128, 4), (14, 256, 6), (7, 512, 3)):
        before, wide = 2 * width, 4 * width
        entry = (2 * side) ** 2 * before * width + side**2 * (width * width * 9 + width * wide)
        entry += side**2 * before * wide  # the shortcut
        later += entry + (count - 1) * side**2 * (2 * wide * width + width * width * 9)
    macs = stem + first + later + 2048 * 1000
    assert macs == 4_089_184_256  # torchvision prints 4.089
    form = resnet(50).flops()
    assert form.forward == 2 * macs
    assert form.backward == 4 * macs - 2 * stem


def test_resnets_as_published() -> None:
    # The "_ops" and parameters that torchvision prints.
    published = {
        18: (1.814, 11_689_512), 34: (3.664, 21_797_672), 50: (4.089, 25_557_032),
        101: (7.801, 44_549_160), 152: (11.514, 60_192_808),
    }  # fmt: skip
    for depth, (giga, parameters) in published.items():
        net = resnet(depth)
        assert (round(net.flops().forward / 2e9, 3), net.parameters.total) == (giga, parameters)
        assert net.out == (7, 7)


@pytest.mark.parametrize(
    ("conv", "size"),
    [
        (Conv(inputs=4, outputs=6, kernel=3, stride=2, padding=1, groups=2), (9, 12)),
        (Conv(inputs=4, outputs=4, kernel=(1, 5), padding=(0, 2), groups=4), (8, 8)),
        (Conv(inputs=4, outputs=6, kernel=3, dilation=2), (11, 9)),
        (Conv(inputs=4, outputs=6, kernel=2, stride=2, transposed=True), (5, 6)),
        (
            Conv(inputs=4, outputs=6, kernel=3, stride=2, padding=1, output_padding=1, groups=2,
                 transposed=True),
            (5, 6),
        ),
        (Conv(inputs=4, outputs=6, kernel=3, stride=2), (17,)),
        (Conv(inputs=4, outputs=6, kernel=3, padding=1, has_bias=True), (4, 5, 6)),
    ],
)  # fmt: skip
def test_each_kind_of_convolution(conv: Conv, size: tuple[int, ...]) -> None:
    module = module_of(conv, len(size))
    pixels = torch.randn(B, conv.inputs, *size)
    assert conv.out(size) == module(pixels).shape[2:]
    net = ConvNet(size=size, layers=(conv,))
    assert_counted(net.flops(B), trained(module, pixels))
    term = conv.term(B, size)
    count = trained(module, pixels.requires_grad_())
    assert (term.forward, term.backward) == (count.forward, count.backward)
    assert net.parameters.total == parameters_of(module)


def test_vgg_like_nets_flatten_into_several_linear_layers() -> None:
    net = ConvNet(
        size=(8, 8),
        layers=(
            Conv(inputs=3, outputs=4, kernel=3, padding=1, has_bias=True),
            Pool(kernel=2),
            Conv(inputs=4, outputs=6, kernel=3, padding=1, has_bias=True),
            Pool(kernel=2),
        ),
        classifier=(
            Linear(name="hidden", inputs=6 * 4, outputs=9, role="head"),
            Linear(name="classifier", inputs=9, outputs=5, role="head"),
        ),
        others=9 + 5,
    )
    model = nn.Sequential(
        nn.Conv2d(3, 4, 3, padding=1), nn.MaxPool2d(2), nn.Conv2d(4, 6, 3, padding=1),
        nn.MaxPool2d(2), nn.Flatten(), nn.Linear(24, 9), nn.Linear(9, 5),
    )  # fmt: skip
    assert_counted(net.flops(B), trained(model, torch.randn(B, 3, 8, 8)))
    assert net.parameters.total == parameters_of(model)
    first = 2 * B * 64 * 3 * 4 * 9
    assert net.flops(B).backward == 2 * net.flops(B).forward - first


def test_u_net_goes_down_and_up() -> None:
    # The last convolution has the channels of the skipped ones, too.
    net = ConvNet(
        size=(16, 16),
        layers=(
            Conv(inputs=3, outputs=8, kernel=3, padding=1, has_bias=True),
            Conv(inputs=8, outputs=16, kernel=3, stride=2, padding=1, has_bias=True),
            Conv(inputs=16, outputs=8, kernel=2, stride=2, transposed=True, has_bias=True),
            Conv(inputs=16, outputs=3, kernel=3, padding=1, has_bias=True),
        ),
    )

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.convs = nn.ModuleList(module_of(conv, 2) for conv in net.convolutions())

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            stem, down, up, head = self.convs
            x = stem(x)
            return head(torch.cat([x, up(down(x))], dim=1))

    model = Model()
    assert_counted(net.flops(B), trained(model, torch.randn(B, 3, 16, 16)))
    assert net.parameters.total == parameters_of(model)
    assert net.out == (16, 16)


def test_absurd_nets_are_one_clear_line() -> None:
    with pytest.raises(ValueError, match="groups is 3; expected a divisor of inputs 4"):
        Conv(inputs=4, outputs=6, kernel=1, groups=3)
    with pytest.raises(ValueError, match=r"a kernel of 9 leaves \(0, 0\) of \(8, 8\)"):
        ConvNet(size=(8, 8), layers=(Conv(inputs=1, outputs=1, kernel=9),))
    with pytest.raises(ValueError, match="stride is 0"):
        ConvNet(size=(8, 8), layers=(Conv(inputs=1, outputs=1, kernel=1, stride=0),))
    with pytest.raises(ValueError, match="a padding is -1; expected 0 or more"):
        ConvNet(size=(8, 8), layers=(Conv(inputs=1, outputs=1, kernel=1, padding=-1),))
    with pytest.raises(ValueError, match="kernel has 3 dimensions; the input has 2"):
        ConvNet(size=(8, 8), layers=(Conv(inputs=1, outputs=1, kernel=(1, 1, 1)),))
    with pytest.raises(ValueError, match=r"a block of size \(4, 4\) meets a shortcut of size"):
        halved = Conv(inputs=1, outputs=1, kernel=2, stride=2)
        ConvNet(size=(8, 8), layers=(Residual(body=(halved,)),))
    with pytest.raises(ValueError, match="depth is 51; expected one of 18, 34, 50, 101, 152"):
        resnet(51)
    with pytest.raises(ValueError, match="seq is 8; a sample of this model has no sequence"):
        resnet(18).flops(1, 8)
