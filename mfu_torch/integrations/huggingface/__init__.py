"""Hugging Face: ``Trainer(..., callbacks=[MFUCallback()])``, TRL's trainers likewise.

callback      steps and logs
pauses        evaluation and saving, and what stands in a checkpoint
surroundings  the Trainer around the callback, and where its figures go
"""

from mfu_torch.integrations.huggingface.callback import MFUCallback

__all__ = ["MFUCallback"]
