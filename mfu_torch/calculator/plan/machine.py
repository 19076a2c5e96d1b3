"""What the devices of a plan can do, each figure with where it is from."""

from __future__ import annotations

from typing import NamedTuple

from mfu_torch.calculator.plan.collectives import Link
from mfu_torch.calculator.plan.interconnects import Reach, interconnect_of
from mfu_torch.calculator.plan.layout import ContradictionError, Layout
from mfu_torch.flops.formulas.pairs import whole
from mfu_torch.peak.published import published_for
from mfu_torch.peak.table import Row, find_rows, handle, peak_for
from mfu_torch.peak.user_table import user_index
from mfu_torch.records import Device, Peak, Record
from mfu_torch.units import bytes_, percent, scaled

LINK_EFFICIENCY = 235 / 300
"""Of a link's bandwidth, reached by collectives: an all-reduce of 8 A100 had a bus bandwidth of
235 of 300 GB/s (stas00/ml-engineering, network/README.md, "Unidirectional vs Bidirectional")."""

NODE_LATENCY_S = 3e-6
NETWORK_LATENCY_S = 10e-6
"""Of one step of a collective: no vendor states it, these are assumed."""


class Machine(Record, frozen=True, kw_only=True):
    """Devices, what they reach, and what connects them.

    Attributes:
        peak: Of one device.
        matmul_flops_per_s: What matmuls reach.
        bytes_per_s: Of its memory.
        memory_bytes: ``None`` where it is not known.
        gpus_per_node: That are connected by the faster link.
        node: Link inside a node, of one device.
        network: Link out of it, of one device.
        notes: Where each is from, one sentence each.
        rate_is_given: Whether ``matmul_flops_per_s`` is not the published one.
    """

    peak: Peak
    matmul_flops_per_s: float
    bytes_per_s: float
    memory_bytes: float | None
    gpus_per_node: int
    node: Link
    network: Link
    notes: tuple[str, ...] = ()
    rate_is_given: bool = False

    def link(self, ranks: int, in_node: int) -> Link:
        """What a group's ring is as fast as.

        Args:
            ranks: Of the group.
            in_node: How many of them share a node. A ring that leaves the node may use the
                network links of all its ranks there.
        """
        if ranks <= in_node:
            return self.node
        bandwidth = min(self.node.bytes_per_s, in_node * self.network.bytes_per_s)
        return Link(bytes_per_s=bandwidth, latency_s=self.network.latency_s)

    def tensor_link(self, layout: Layout) -> Link:
        """Of the tensor-parallel ranks, which are neighbours."""
        return self.link(layout.tp, self._in_node(layout.tp, 1))

    def context_link(self, layout: Layout) -> Link:
        """Of the context-parallel ranks."""
        return self.link(layout.cp, self._in_node(layout.cp, layout.tp))

    def expert_link(self, layout: Layout) -> Link:
        """Of the expert-parallel ranks: neighbours among the data-parallel ones."""
        return self._own_link(layout.ep, self._data_stride(layout))

    def data_link(self, layout: Layout) -> Link:
        """Of all ranks that hold the same weights: data- and context-parallel."""
        in_context = self._in_node(layout.cp, layout.tp)
        in_data = self._in_node(layout.dp, self._data_stride(layout))
        return self.link(layout.dp * layout.cp, in_context * in_data)

    def pipeline_link(self, layout: Layout) -> Link:
        """Between neighbouring stages."""
        stride = layout.tp * layout.cp
        if layout.order == "tp-cp-dp-pp":
            stride *= layout.dp
        return self._own_link(layout.pp, stride)

    def _own_link(self, ranks: int, stride: int) -> Link:
        """Where each rank sends for itself, and no ring passes on."""
        return self.node if ranks <= self._in_node(ranks, stride) else self.network

    def _data_stride(self, layout: Layout) -> int:
        inner = layout.tp * layout.cp
        return inner * layout.pp if layout.order == "tp-cp-pp-dp" else inner

    def _in_node(self, ranks: int, stride: int) -> int:
        return max(1, min(ranks, self.gpus_per_node // stride))


def machine_of(
    device: str,
    dtype: str = "bf16",
    *,
    efficiency: float | None = None,
    gpus_per_node: int = 8,
    node_bytes_per_s: float | None = None,
    network_bytes_per_s: float | None = None,
    node_latency_s: float = NODE_LATENCY_S,
    network_latency_s: float = NETWORK_LATENCY_S,
    link_efficiency: float = LINK_EFFICIENCY,
    needs_node: bool = True,
    needs_network: bool = True,
) -> Machine:
    """A machine by the name of its device.

    Args:
        device: As in the table of peaks: ``h100-sxm``.
        dtype: Of the matmuls.
        efficiency: The share of the peak that matmuls reach; by default what was published for
            this device (``data/mamf.csv``).
        gpus_per_node: That the faster link connects.
        node_bytes_per_s: In one direction; by default as its vendor documents it.
        network_bytes_per_s: Of one device, in one direction; likewise.
        node_latency_s: Of a step of a collective.
        network_latency_s: Likewise, out of the node.
        link_efficiency: The share of a link's bandwidth that collectives reach.
        needs_node: Whether devices talk to others; if not, what connects them may be unknown.
        needs_network: Whether anything leaves the node; likewise.

    Raises:
        UnknownPeak: If there is no trustworthy peak.
        ContradictionError: If something else is not known and not given.
        ValueError: If an argument is not valid.
    """
    whole("gpus_per_node", gpus_per_node)
    _check_share("efficiency", efficiency)
    _check_share("link_efficiency", link_efficiency)
    wires = (
        _Wire("node", node_bytes_per_s, node_latency_s, needs_node),
        _Wire("network", network_bytes_per_s, network_latency_s, needs_network),
    )
    peak = peak_for(device, dtype)
    row = _row_of(device)
    if row.bytes_per_s is None:
        raise ContradictionError(f"the memory bandwidth of {device} is not known; name another")
    reached, why = _matmul_rate(device, peak, efficiency)
    notes = [f"peak {scaled(peak.flops_per_s, 'FLOP/s', 4)} {peak.dtype}: {peak.source}", why]
    links = []
    for wire in wires:
        bandwidth, source = _bandwidth(row, wire)
        links.append(Link(bytes_per_s=bandwidth * link_efficiency, latency_s=wire.latency_s))
        notes += [f"{wire.reach}: {source}"] if wire.is_needed else []
    return Machine(
        peak=peak,
        matmul_flops_per_s=reached,
        bytes_per_s=row.bytes_per_s,
        memory_bytes=row.memory_bytes,
        gpus_per_node=gpus_per_node,
        node=links[0],
        network=links[1],
        notes=(*notes, *(_link_notes(wires, link_efficiency) if needs_node else ())),
        rate_is_given=efficiency is not None,
    )


class _Wire(NamedTuple):
    """What was given of a link, checked where it is used."""

    reach: Reach
    bytes_per_s: float | None
    latency_s: float
    is_needed: bool


def _check_share(name: str, share: float | None) -> None:
    if share is not None and not 0 < share <= 1:
        raise ValueError(f"{name} is {share}; expected a share above 0 and up to 1")


def _link_notes(wires: tuple[_Wire, _Wire], efficiency: float) -> tuple[str, str]:
    node, network = wires
    measured = ": 235 of 300 GB/s, an all-reduce of 8 A100 (stas00/ml-engineering)"
    by = measured if efficiency == LINK_EFFICIENCY else ", as given"
    defaults = (NODE_LATENCY_S, NETWORK_LATENCY_S)
    assumed = (node.latency_s, network.latency_s) == defaults
    return (
        f"collectives reach {percent(efficiency)} of a link's bandwidth{by}",
        f"a step of a collective takes {node.latency_s * 1e6:g} us in a node and "
        f"{network.latency_s * 1e6:g} us outside, besides its bytes"
        f"{': assumed' if assumed else ', as given'}",
    )


def _row_of(device: str) -> Row:
    named = Device(name=device, kind="")
    rows = find_rows(named, user_index()) or find_rows(named)
    if len(rows) != 1:
        which = ", ".join(map(handle, rows)) or "none of the table of peaks"
        raise ContradictionError(f"{device!r} is {which}; say one, so that its memory is known")
    return rows[0]


def _matmul_rate(device: str, peak: Peak, efficiency: float | None) -> tuple[float, str]:
    if efficiency is not None:
        return efficiency * peak.flops_per_s, f"matmuls reach {percent(efficiency)} of it, as given"
    found = published_for(Device(name=device, kind=""), peak.dtype)
    if not found:
        raise ContradictionError(
            f"what matmuls reach on {device} in {peak.dtype} is not published here; give the share "
            "of the peak (--efficiency 0.8)"
        )
    best = found[0]
    return best.flops_per_s, (
        f"matmuls reach {scaled(best.flops_per_s, 'FLOP/s', 4)} "
        f"({percent(best.flops_per_s / peak.flops_per_s)}), the best shape that was measured: "
        f"{best.conditions}, {best.source}"
    )


def _bandwidth(row: Row, wire: _Wire) -> tuple[float, str]:
    """Bytes/s of one device in one direction, and a sentence on where that is from."""
    for name, value in (("bytes_per_s", wire.bytes_per_s), ("latency_s", wire.latency_s)):
        if value is not None and not 0 < value < float("inf"):
            raise ValueError(f"{wire.reach}_{name} is {value}; expected a finite number above 0")
    if wire.bytes_per_s is not None:
        return wire.bytes_per_s, (
            f"{bytes_(wire.bytes_per_s)}/s for each GPU in one direction, as given"
        )
    known = interconnect_of(row.name, wire.reach)
    if known is not None:
        return known.bytes_per_s, (
            f"{bytes_(known.bytes_per_s)}/s for each GPU in one direction, {known.technology}: "
            f"{known.source}"
        )
    if not wire.is_needed:
        return row.bytes_per_s or 1.0, "not used"
    flag = "--intra-node-bandwidth" if wire.reach == "node" else "--inter-node-bandwidth"
    raise ContradictionError(
        f"what connects {row.name} {'in' if wire.reach == 'node' else 'out of'} a node is not in "
        f"the table; give {flag}, bytes/s of a GPU in one direction"
    )
