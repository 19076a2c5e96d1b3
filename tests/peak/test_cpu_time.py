"""The share of a CPU's time that threads got; a container's quota, from made-up control groups."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from mfu_torch.peak import cpu_time
from mfu_torch.peak.cpu_time import cpu_quota, share_since, usable_cpus
from mfu_torch.records import Device

V2, V1_QUOTA, V1_PERIOD = "cpu.max", "cpu/cpu.cfs_quota_us", "cpu/cpu.cfs_period_us"


def write(root: Path, files: dict[str, str]) -> Path:
    for name, content in files.items():
        (root / name).parent.mkdir(exist_ok=True)
        (root / name).write_bytes(content.encode("utf-8", "surrogateescape"))
    return root


@pytest.mark.parametrize(
    ("files", "cpus"),
    [
        ({V2: "150000 100000\n"}, 1.5),
        ({V2: "400000 100000"}, 4.0),
        ({V2: "5000 50000\n"}, 0.1),
        ({V1_QUOTA: "50000\n", V1_PERIOD: "100000\n"}, 0.5),
        # A hybrid system has both; the group of version 2 has no CPU controller then.
        ({V2: "max 100000\n", V1_QUOTA: "250000\n", V1_PERIOD: "100000\n"}, 2.5),
        ({V2: "150000 100000\n", V1_QUOTA: "250000\n", V1_PERIOD: "100000\n"}, 1.5),
    ],
)
def test_the_quota_is_the_time_over_the_period(
    files: dict[str, str], cpus: float, tmp_path: Path
) -> None:
    assert cpu_quota(write(tmp_path, files)) == cpus


@pytest.mark.parametrize(
    "files",
    [
        {},
        {V2: "max 100000\n"},
        {V1_QUOTA: "-1\n", V1_PERIOD: "100000\n"},  # version 1's word for no limit
        {V1_QUOTA: "-100000\n", V1_PERIOD: "-100000\n"},
        {V1_QUOTA: "50000\n"},
        {V1_PERIOD: "100000\n"},
        {V2: ""},
        {V2: "150000"},
        {V2: "150000 100000 1"},
        {V2: "fast enough"},
        {V2: "nan 100000"},
        {V2: "150000 0"},
        {V2: "0 100000"},
        {V2: "150000 -100000"},
        {V2: "1" + 400 * "0" + " 1"},  # more than a float holds
        {V2: "\udcff\udcfe"},  # no text
        {"cpu.max/a-folder": ""},
        {"cpu": "no folder"},
    ],
    ids=lambda files: repr(files)[:40],
)
def test_without_a_quota_or_with_odd_content_there_is_none(
    files: dict[str, str], tmp_path: Path
) -> None:
    assert cpu_quota(write(tmp_path, files)) is None


def test_the_quota_is_read_once(tmp_path: Path) -> None:
    assert cpu_quota(write(tmp_path, {V2: "150000 100000"})) == 1.5
    assert cpu_quota(write(tmp_path, {V2: "250000 100000"})) == 1.5


@pytest.mark.parametrize(
    ("cores", "quota", "cpus"),
    [(4, None, 4), (4, 1.5, 1.5), (2, 3.0, 2), (None, 1.5, 1.5), (None, None, float("inf"))],
)
def test_a_process_has_the_less_of_its_cores_and_its_quota(
    cores: int | None, quota: float | None, cpus: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mfu_torch.peak.cpu_time.cpu_quota", lambda: quota)
    assert usable_cpus(Device(name="AMD EPYC", kind="cpu", sm_count=cores)) == cpus


@pytest.mark.parametrize(
    ("all_s", "own_s", "cpus", "share"),
    [
        (1.2, 0.6, 2, 0.6),
        (1.2, 0.6, 1.5, 0.8),
        (1.8, 0.9, 1.5, 1.0),  # more than the quota allows in the long run
        (0.8, 0.8, 2, 0.8),  # one thread had work
        (0.4, 0.4, 0.5, 0.8),
        (0.1, 0.1, None, 1.0),
    ],
)
def test_the_share_is_the_cpu_time_over_what_the_threads_may_have(
    all_s: float,
    own_s: float,
    cpus: float | None,
    share: float,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = SimpleNamespace(
        perf_counter=lambda: 11.0, process_time=lambda: all_s, thread_time=lambda: own_s
    )
    monkeypatch.setattr(cpu_time, "time", clock)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    assert share_since((10.0, 0.0, 0.0), cpus) == pytest.approx(share)
