"""Convolutional networks from the list of their layers.

    a convolution (n, c, *in) -> (n, k, *out) with a kernel of r positions and g groups
        2 n |out| k (c / g) r        each output position meets the whole filter bank once
    transposed
        2 n |in| c (k / g) r         each input position does
    out = floor((in + 2 padding - dilation (kernel - 1) - 1) / stride) + 1
    transposed: out = (in - 1) stride - 2 padding + dilation (kernel - 1) + output padding + 1

The gradient of the input and that of the weights cost the same each; the first layer's input,
the pixels, needs none. Sizes as in Dumoulin and Visin 2016, arXiv:1603.07285, sections 2 and 4.
"""

from __future__ import annotations

from math import prod
from typing import Literal

from mfu_torch.flops.formulas.decoder import Parameters
from mfu_torch.flops.formulas.layers import none_or_whole
from mfu_torch.flops.formulas.pairs import PairRule, whole
from mfu_torch.flops.formulas.terms import ClosedForm, Linear, Term, added
from mfu_torch.records import Record

Size = tuple[int, ...]
"""Of an image, or a series, or a volume: one number for each dimension."""


class Conv(Record, frozen=True, kw_only=True):
    """A convolution; a number for ``kernel``, ``stride``, ... holds in every dimension.

    Attributes:
        inputs: Channels in.
        outputs: Channels out.
        kernel: Its size.
        stride: Its step.
        padding: On either side.
        dilation: Distance of its taps.
        groups: Parts into which the channels are split; ``inputs``: depthwise.
        transposed: Whether it is the gradient of a convolution (U-Net's way up).
        output_padding: Added to one side of a transposed one's output.
        has_bias: Whether it has one; only for the parameters.

    Raises:
        ValueError: If a size is no whole number above 0, or groups do not divide the channels.
    """

    inputs: int
    outputs: int
    kernel: int | Size
    stride: int | Size = 1
    padding: int | Size = 0
    dilation: int | Size = 1
    groups: int = 1
    transposed: bool = False
    output_padding: int | Size = 0
    has_bias: bool = False

    def __post_init__(self) -> None:
        for name in ("inputs", "outputs", "groups"):
            whole(name, getattr(self, name))
        if self.inputs % self.groups or self.outputs % self.groups:
            raise ValueError(
                f"groups is {self.groups}; expected a divisor of inputs {self.inputs} and "
                f"outputs {self.outputs}"
            )

    def weights(self, dims: int) -> int:
        """Of its filters, with ``dims`` dimensions."""
        taps = prod(each("kernel", self.kernel, dims))
        return self.outputs * (self.inputs // self.groups) * taps

    def out(self, size: Size) -> Size:
        """The size of its output.

        Raises:
            ValueError: If nothing is left.
        """
        return slid(
            size,
            self.kernel,
            self.stride,
            self.padding,
            self.dilation,
            transposed=self.transposed,
            output_padding=self.output_padding,
        )

    def term(
        self, batch: int, size: Size, *, in_layer: bool = True, input_gradient: bool = True
    ) -> Term:
        """Its FLOPs for ``batch`` inputs of this size."""
        positions = prod(size if self.transposed else self.out(size))
        forward = 2 * batch * positions * self.weights(len(size))
        return Term(
            name="convolution",
            role="convolution",
            forward=forward,
            backward=2 * forward if input_gradient else forward,
            in_layer=in_layer,
        )


class Pool(Record, frozen=True, kw_only=True):
    """Pooling: it has no FLOPs of a contraction, and makes the size smaller.

    Attributes:
        kernel: Its size.
        stride: Its step; ``None``: as the kernel.
        padding: On either side.
    """

    kernel: int | Size
    stride: int | Size | None = None
    padding: int | Size = 0

    def out(self, size: Size) -> Size:
        """The size of its output."""
        stride = self.kernel if self.stride is None else self.stride
        return slid(size, self.kernel, stride, self.padding, 1)


class Residual(Record, frozen=True, kw_only=True):
    """A block whose input is added to its output: what "full" recomputes.

    Attributes:
        body: Its layers.
        shortcut: The convolutions that the input runs through; none: it is added as it is.
    """

    body: tuple[Conv | Pool, ...]
    shortcut: tuple[Conv | Pool, ...] = ()


class ConvNet(Record, frozen=True, kw_only=True):
    """A convolutional network.

    The blocks are recomputed by "full" and by "checkpoint" alike: the norm behind a block's last
    convolution needs its output, so that a checkpoint has nothing to leave out.

    Attributes:
        size: Of the input, (224, 224) for example.
        layers: In order; a :class:`Residual` is a block.
        classifier: What the pooled (or flattened) features of a sample run through.
        others: Parameters of norms, and biases that no layer here tells of.
    """

    size: Size
    layers: tuple[Conv | Pool | Residual, ...]
    classifier: tuple[Linear, ...] = ()
    others: int = 0

    def __post_init__(self) -> None:
        for value in self.size:
            whole("size", value)
        none_or_whole(self, "others")
        self._walk(1)

    @property
    def per(self) -> Literal["sample"]:
        """What its throughput is counted in."""
        return "sample"

    @property
    def out(self) -> Size:
        """The size behind its last layer."""
        return self._walk(1)[1]

    def convolutions(self) -> tuple[Conv, ...]:
        """All of them, in order."""
        found: list[Conv] = []
        for layer in self.layers:
            inner = (*layer.body, *layer.shortcut) if isinstance(layer, Residual) else (layer,)
            found += [each for each in inner if isinstance(each, Conv)]
        return tuple(found)

    def _walk(self, batch: int) -> tuple[list[Term], Size]:
        terms: list[Term] = []
        size, needs_gradient = self.size, False
        for layer in self.layers:
            if not isinstance(layer, Residual):
                found, size = run((layer,), batch, size, needs_gradient, in_layer=False)
            else:
                found, after = run(layer.body, batch, size, needs_gradient, in_layer=True)
                short, beside = run(layer.shortcut, batch, size, needs_gradient, in_layer=True)
                if after != beside:
                    raise ValueError(
                        f"a block of size {after} meets a shortcut of size {beside}; expected "
                        "both alike"
                    )
                found, size = [*found, *short], after
            terms += found
            needs_gradient = needs_gradient or bool(found)
        return terms, size

    def flops(
        self, batch: int = 1, seq: int | None = None, *, attention: PairRule = "full"
    ) -> ClosedForm:
        """FLOPs of ``batch`` samples; ``seq`` and ``attention`` mean nothing here.

        Raises:
            ValueError: If ``batch`` is no whole number above 0, or a ``seq`` is given.
        """
        no_seq(seq)
        terms, _ = self._walk(whole("batch", batch))
        heads = [linear.term(batch, in_layer=False) for linear in self.classifier]
        return ClosedForm(terms=added([*terms, *heads]))

    @property
    def parameters(self) -> Parameters:
        """How many it has; a filter is met by every sample."""
        found = self.convolutions()
        weights = sum(conv.weights(len(self.size)) for conv in found)
        weights += sum(linear.weights for linear in self.classifier)
        biases = sum(conv.outputs for conv in found if conv.has_bias)
        return Parameters(weights=weights, used=weights, embedding=0, others=self.others + biases)


def run(
    layers: tuple[Conv | Pool, ...], batch: int, size: Size, needs_gradient: bool, *, in_layer: bool
) -> tuple[list[Term], Size]:
    """The terms of layers in a row, and the size behind them."""
    terms: list[Term] = []
    for layer in layers:
        if isinstance(layer, Conv):
            terms.append(layer.term(batch, size, in_layer=in_layer, input_gradient=needs_gradient))
            needs_gradient = True
        size = layer.out(size)
    return terms, size


def each(name: str, value: int | Size, dims: int) -> Size:
    """The value in every dimension.

    Raises:
        ValueError: If it is given for another number of dimensions.
    """
    values = (value,) * dims if isinstance(value, int) else tuple(value)
    if len(values) != dims:
        raise ValueError(f"{name} has {len(values)} dimensions; the input has {dims}")
    return values


def slid(
    size: Size,
    kernel: int | Size,
    stride: int | Size,
    padding: int | Size,
    dilation: int | Size,
    *,
    transposed: bool = False,
    output_padding: int | Size = 0,
) -> Size:
    """The size behind a window that slides over an input.

    7 wide, a step of 2, 3 padded, over 224: (224 + 6 - 6 - 1) // 2 + 1 = 112.

    Raises:
        ValueError: If nothing is left.
    """
    dims = len(size)
    columns = zip(
        size,
        each("kernel", kernel, dims),
        each("stride", stride, dims),
        each("padding", padding, dims),
        each("dilation", dilation, dims),
        each("output_padding", output_padding, dims),
        strict=True,
    )
    out: list[int] = []
    for n, k, step, pad, gap, extra in columns:
        whole("kernel", k)
        whole("stride", step)
        whole("dilation", gap)
        if min(pad, extra) < 0:
            raise ValueError(f"a padding is {min(pad, extra)}; expected 0 or more")
        reach = gap * (k - 1) + 1
        if transposed:
            out.append((n - 1) * step - 2 * pad + reach + extra)
        else:
            out.append((n + 2 * pad - reach) // step + 1)
    if min(out) < 1:
        raise ValueError(f"a kernel of {kernel} leaves {tuple(out)} of {size}; expected 1 or more")
    return tuple(out)


def no_seq(seq: int | None) -> None:
    """Nothing, where no sequence length is given.

    Raises:
        ValueError: If one is given to a model whose samples are all of one size.
    """
    if seq is not None:
        raise ValueError(f"seq is {seq}; a sample of this model has no sequence length: leave it")
