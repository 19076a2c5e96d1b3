"""Residual networks (He et al. 2015, arXiv:1512.03385) as lists of layers."""

from __future__ import annotations

from mfu_torch.flops.formulas.convnets import Conv, ConvNet, Pool, Residual
from mfu_torch.flops.formulas.pairs import whole
from mfu_torch.flops.formulas.terms import Linear


def resnet(depth: int = 50, *, classes: int = 1000, size: int = 224) -> ConvNet:
    """ResNet (He et al. 2015, arXiv:1512.03385, table 1), the step of 2 in the 3 x 3 layer.

    That is the v1.5 that everybody trains: 4.09 G multiply-adds for 224 x 224 with 50 layers; the
    paper's own, with the step in the 1 x 1 layer before, has 3.8.

    Raises:
        ValueError: If the depth is none of 18, 34, 50, 101 and 152.
    """
    counts = {
        18: (2, 2, 2, 2),
        34: (3, 4, 6, 3),
        50: (3, 4, 6, 3),
        101: (3, 4, 23, 3),
        152: (3, 8, 36, 3),
    }
    if depth not in counts:
        raise ValueError(f"depth is {depth}; expected one of {', '.join(map(str, counts))}")
    widen = 4 if depth >= 50 else 1
    layers: list[Conv | Pool | Residual] = [
        Conv(inputs=3, outputs=64, kernel=7, stride=2, padding=3),
        Pool(kernel=3, stride=2, padding=1),
    ]
    inputs = 64
    for stage, count in enumerate(counts[depth]):
        width = 64 * 2**stage
        for i in range(count):
            stride = 2 if stage and not i else 1
            layers.append(_residual(inputs, width, widen, stride))
            inputs = widen * width
    head = Linear(name="classifier", inputs=inputs, outputs=whole("classes", classes), role="head")
    net = ConvNet(size=(size, size), layers=tuple(layers), classifier=(head,))
    # A scale and a shift of the norm behind each convolution, and the classifier's bias.
    norms = sum(2 * conv.outputs for conv in net.convolutions())
    return ConvNet(size=net.size, layers=net.layers, classifier=(head,), others=norms + classes)


def _residual(inputs: int, width: int, widen: int, stride: int) -> Residual:
    outputs = widen * width
    body: tuple[Conv, ...]
    if widen == 1:
        body = (
            Conv(inputs=inputs, outputs=width, kernel=3, stride=stride, padding=1),
            Conv(inputs=width, outputs=width, kernel=3, padding=1),
        )
    else:
        body = (
            Conv(inputs=inputs, outputs=width, kernel=1),
            Conv(inputs=width, outputs=width, kernel=3, stride=stride, padding=1),
            Conv(inputs=width, outputs=outputs, kernel=1),
        )
    if stride == 1 and inputs == outputs:
        return Residual(body=body)
    return Residual(
        body=body, shortcut=(Conv(inputs=inputs, outputs=outputs, kernel=1, stride=stride),)
    )
