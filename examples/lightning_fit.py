"""Lightning: one line among the callbacks shows the MFU wherever the Trainer logs."""

from __future__ import annotations

import lightning.pytorch as pl
import torch
from lightning.pytorch.loggers import TensorBoardLogger
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader

from mfu_torch.integrations.lightning import MFUCallback

VOCABULARY, WIDTH, LENGTH = 256, 128, 64


class LanguageModel(pl.LightningModule):
    """Two layers of a transformer; a batch is a tensor of token ids, (batch, length + 1)."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        layer = nn.TransformerEncoderLayer(WIDTH, 4, 4 * WIDTH, dropout=0.0, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 2)
        self.head = nn.Linear(WIDTH, VOCABULARY)

    def loss(self, ids: torch.Tensor) -> torch.Tensor:
        """Of predicting each token from those before it."""
        mask = nn.Transformer.generate_square_subsequent_mask(LENGTH)
        hidden = self.layers(self.embedding(ids[:, :-1]), mask, is_causal=True)
        return functional.cross_entropy(self.head(hidden).flatten(0, 1), ids[:, 1:].flatten())

    def training_step(self, ids: torch.Tensor, batch_idx: int) -> torch.Tensor:
        loss = self.loss(ids)
        self.log("loss", loss)
        return loss

    def validation_step(self, ids: torch.Tensor, batch_idx: int) -> None:
        self.log("val_loss", self.loss(ids))

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=3e-4)


pl.seed_everything(0, verbose=False)
ids = torch.randint(VOCABULARY, (960, LENGTH + 1))
mfu = MFUCallback(tokens=lambda batch: batch.shape[0] * LENGTH)
trainer = pl.Trainer(
    accelerator="cpu",
    max_epochs=1,
    accumulate_grad_batches=2,
    val_check_interval=0.5,
    log_every_n_steps=10,
    logger=TensorBoardLogger("runs"),
    enable_progress_bar=False,
    callbacks=[mfu],
)
trainer.fit(LanguageModel(), DataLoader(ids, 16, shuffle=True), DataLoader(ids[:64], 16))
print(mfu.summary())
