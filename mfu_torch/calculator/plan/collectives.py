"""How long a collective takes: latency of each step, and bytes over bandwidth (alpha-beta).

    ring reduce-scatter, all-gather   (n-1) alpha + (n-1)/n bytes / beta
    ring all-reduce                   both of them
    pairwise all-to-all               (n-1) alpha + (n-1)/n bytes / beta
    send                              alpha + bytes / beta

Thakur, Rabenseifner and Gropp 2005, "Optimization of Collective Communication Operations in
MPICH", sections 4.1 to 4.5; arithmetic on the way is left out. Bytes are those of the whole
buffer: what each rank has before a reduce-scatter, and after an all-gather.
"""

from __future__ import annotations

from mfu_torch.records import Record


class Link(Record, frozen=True, kw_only=True):
    """What a rank sends over.

    Attributes:
        bytes_per_s: Beta, in one direction.
        latency_s: Alpha, of one step.
    """

    bytes_per_s: float
    latency_s: float


def reduce_scatter_s(ranks: int, buffer_bytes: float, link: Link) -> float:
    """Each rank ends with its share of the sum. 8 ranks, 80 MB, 200e9 B/s, 5 us: 385 us."""
    if ranks == 1:
        return 0.0
    steps = ranks - 1
    return steps * link.latency_s + steps / ranks * buffer_bytes / link.bytes_per_s


def all_gather_s(ranks: int, buffer_bytes: float, link: Link) -> float:
    """Each rank ends with all shares: the same steps and bytes as a reduce-scatter."""
    return reduce_scatter_s(ranks, buffer_bytes, link)


def all_reduce_s(ranks: int, buffer_bytes: float, link: Link) -> float:
    """A reduce-scatter and an all-gather: 2(n-1)/n of the bytes. 8 ranks, 80 MB: 770 us."""
    return 2 * reduce_scatter_s(ranks, buffer_bytes, link)


def all_to_all_s(ranks: int, buffer_bytes: float, link: Link) -> float:
    """Each rank sends each other one its share of ``buffer_bytes``."""
    return reduce_scatter_s(ranks, buffer_bytes, link)


def send_s(message_bytes: float, link: Link) -> float:
    """From one rank to another."""
    return link.latency_s + message_bytes / link.bytes_per_s
