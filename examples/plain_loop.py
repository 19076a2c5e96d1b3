"""A plain PyTorch loop: three lines show what share of the device its training puts to use.

A small transformer learns to continue arithmetic progressions (mod 64), with what most loops
have: gradient accumulation, clipping, a learning rate schedule, a checkpoint.
"""

import itertools

import torch
from torch import nn

from mfu_torch import Meter

VOCABULARY, WIDTH, LAYERS, HEADS, SEQ, BATCH = 64, 128, 2, 4, 128, 16
STEPS, MICRO_BATCHES = 30, 2


class Transformer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(SEQ, WIDTH)
        layer = nn.TransformerEncoderLayer(WIDTH, HEADS, 4 * WIDTH, dropout=0.0, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, LAYERS)
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:  # (batch, seq) to (.., .., vocabulary)
        mask = nn.Transformer.generate_square_subsequent_mask(ids.shape[1], device=ids.device)
        x = self.tokens(ids) + self.places.weight[: ids.shape[1]]
        return self.head(self.layers(x, mask=mask, is_causal=True))


def batches(device: str):
    """Progressions from a random start with a random difference, without end."""
    while True:
        start, difference = torch.randint(VOCABULARY, (2, BATCH, 1), device=device)
        yield (start + difference * torch.arange(SEQ + 1, device=device)) % VOCABULARY


torch.manual_seed(0)
device = "cuda" if torch.cuda.is_available() else "cpu"
model = Transformer().to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 3e-3, total_steps=STEPS)
with Meter(model) as meter:  # 1: a run
    data = batches(device)
    for _ in range(STEPS):
        with meter.step(tokens=MICRO_BATCHES * BATCH * SEQ):  # 2: one optimizer update
            for ids in itertools.islice(data, MICRO_BATCHES):
                with torch.autocast(device, torch.bfloat16, enabled=device == "cuda"):
                    logits = model(ids[:, :-1])
                loss = nn.functional.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())
                (loss / MICRO_BATCHES).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
    with meter.pause("checkpoint"):
        torch.save(model.state_dict(), meter.log_dir / "model.pt")
print(f"\nloss {loss.item():.2f} (untrained: 4.16)\n\n{meter.summary()}")  # 3: the report
