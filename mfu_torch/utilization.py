"""Every formula, once. Plain numbers in, plain numbers out; shares are fractions, not percent.

    ideal time   T* = sum over dtypes of FLOPs_d / peak_d
    MFU             = T*(model FLOPs)    / T
    HFU             = T*(hardware FLOPs) / T

MFU is from Chowdhery et al. 2022 (PaLM), appendix B; HFU from Korthikanti et al. 2022, section 5.
For a single dtype MFU is the usual FLOPs / (T x peak); for a mix it is the only form in which a
step that runs every matmul at its own peak reaches exactly 1.
"""

from __future__ import annotations

from collections.abc import Mapping


def ideal_time_s(flops: Mapping[str, int], peaks: Mapping[str, float]) -> float:
    """Seconds that the FLOPs would take with every dtype at its own peak.

    Args:
        flops: FLOPs by dtype.
        peaks: FLOP/s by dtype. 6e12 bf16 FLOPs at 312e12 and 1e12 tf32 at 156e12:
            6/312 + 1/156 = 0.0256 s.

    Raises:
        KeyError: If a dtype with FLOPs has no peak.
    """
    return sum(count / peaks[dtype] for dtype, count in flops.items() if count)


def utilization(ideal_s: float, time_s: float) -> float:
    """Share of the time that the device would have needed at its peak: MFU, HFU, end-to-end MFU.

    Which of them it is depends on what goes in: model or hardware FLOPs, the time of the steps or
    of the whole run. Sums go in, not rates: the MFU of many steps is the sum of their ideal times
    over the sum of their times. 0.4 s ideal in 1.0 s: 0.4.

    Raises:
        ValueError: If ``time_s`` is not positive.
    """
    return ideal_s / _positive("time_s", time_s)


def rate_per_s(amount: float, time_s: float) -> float:
    """FLOP/s, tokens/s, samples/s.

    Raises:
        ValueError: If ``time_s`` is not positive.
    """
    return amount / _positive("time_s", time_s)


def rate_at_clock(flops_per_s: float, stated_hz: float, held_hz: float) -> float:
    """What a device with this rate at one clock can do at another: FLOP/s follow the clock.

    989.4e12 FLOP/s at 1830 MHz are 762.3e12 at 1410 MHz.

    Raises:
        ValueError: If a clock is not positive.
    """
    return flops_per_s * _positive("held_hz", held_hz) / _positive("stated_hz", stated_hz)


def mbu(bytes_moved: float, time_s: float, bytes_per_s: float) -> float:
    """Memory-bandwidth utilization: bytes that had to move over bytes that could have.

    Agarwal et al. 2023, "LLM Inference Performance Engineering". 14e9 bytes of weights in 10 ms on
    a 2.0e12 B/s device: 0.7.

    Raises:
        ValueError: If ``time_s`` or ``bytes_per_s`` is not positive.
    """
    return bytes_moved / (_positive("time_s", time_s) * _positive("bytes_per_s", bytes_per_s))


def pipeline_bubble(stages: int, micro_batches: int, chunks: int = 1) -> float:
    """Share of the step that a 1F1B pipeline idles: (p-1) / (v*m + p-1).

    Narayanan et al. 2021 (Megatron-LM), section 2.2, with v chunks per device; there the bubble is
    given over the ideal time, here over the whole step. 8 stages, 64 micro-batches: 7/71.

    Raises:
        ValueError: If an argument is not positive.
    """
    stages = int(_positive("stages", stages))
    work = int(_positive("chunks", chunks)) * int(_positive("micro_batches", micro_batches))
    return (stages - 1) / (work + stages - 1)


def scaling_efficiency(throughput: float, devices: int, base: float, base_devices: int) -> float:
    """Throughput per device against that of a smaller run. 700 on 8 against 100 on 1: 0.875.

    Raises:
        ValueError: If an argument other than ``throughput`` is not positive.
    """
    per_device = throughput / _positive("devices", devices)
    return per_device / (_positive("base", base) / _positive("base_devices", base_devices))


def _positive(name: str, value: float) -> float:
    if not value > 0:
        raise ValueError(f"{name} is {value}; expected a number above 0")
    return value
