"""Lightning: ``Trainer(callbacks=[MFUCallback()])``, for ``lightning`` and ``pytorch_lightning``.

package.py    the Callback class of the package whose Trainer is used
callback.py   the hooks
fit.py        one fit: where a step begins and ends, and what is a pause
batches.py    samples and tokens of a batch
parts.py      which modules' calls are watched
loggers.py    figures for the Trainer's own loggers
"""

from __future__ import annotations

from mfu_torch.integrations.lightning.callback import MFUCallback

__all__ = ["MFUCallback"]
