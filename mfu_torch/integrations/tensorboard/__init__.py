"""TensorBoard: curves, a layout of charts, a page that says how, hparams, and a picture."""

from __future__ import annotations

from mfu_torch.integrations.tensorboard.counted import Counted
from mfu_torch.integrations.tensorboard.page import how_computed
from mfu_torch.integrations.tensorboard.sink import TensorBoardSink
from mfu_torch.tags import device_scalars, scalars

__all__ = ["Counted", "TensorBoardSink", "device_scalars", "how_computed", "scalars"]
