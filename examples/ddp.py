"""Data-parallel training: every rank measures its own device; rank 0 prints.

`torchrun --nproc-per-node 2 examples/ddp.py`: NCCL on GPUs, gloo on CPUs. It also runs alone.
"""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from mfu_torch import Meter
from mfu_torch.figures import run_figures
from mfu_torch.units import percent, scaled

WIDTH, HIDDEN, BATCH, EPOCHS = 256, 1024, 256, 2

torch.manual_seed(0)
rank, local_rank = int(os.environ.get("RANK", 0)), int(os.environ.get("LOCAL_RANK", 0))
world_size = int(os.environ.get("WORLD_SIZE", 1))
gpu = torch.cuda.is_available()
device = torch.device("cuda", local_rank) if gpu else torch.device("cpu")
if gpu:
    torch.cuda.set_device(device)
if "RANK" in os.environ:  # under torchrun
    dist.init_process_group("nccl" if gpu else "gloo")

layers = [nn.Linear(WIDTH, HIDDEN), nn.GELU(), nn.Linear(HIDDEN, HIDDEN), nn.GELU()]
model: nn.Module = nn.Sequential(*layers, nn.Linear(HIDDEN, WIDTH)).to(device)
if dist.is_initialized():
    model = DistributedDataParallel(model, device_ids=[local_rank] if gpu else None)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
x = torch.randn(40 * BATCH, WIDTH)
data = TensorDataset(x, x.flip(1).abs())  # what there is to learn
sampler = DistributedSampler(data, world_size, rank)  # 40 batches over the ranks
loader = DataLoader(data, BATCH, sampler=sampler, drop_last=True)

with Meter(model, log_dir="runs/ddp") as meter:
    for epoch in range(EPOCHS):
        sampler.set_epoch(epoch)
        for inputs, targets in meter.data(loader):
            with meter.step(samples=len(inputs)):
                loss = nn.functional.mse_loss(model(inputs.to(device)), targets.to(device))
                loss.backward()  # DDP sums the gradients over the ranks meanwhile
                optimizer.step()
                optimizer.zero_grad()

figures = [run_figures(meter.run)] * world_size
if dist.is_initialized():
    dist.all_gather_object(figures, figures[rank])
    dist.destroy_process_group()
if rank == 0:
    print(f"\nloss {loss.item():.2f}\n\n{meter.summary()}\n")
    for each, now in enumerate(figures):
        mfu = now.absent["mfu"] if now.mfu is None else percent(now.mfu)
        print(f"rank {each}: MFU {mfu}, {scaled(now.samples_per_s, '')} samples/s")
