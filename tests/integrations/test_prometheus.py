"""Prometheus: the endpoint is fetched over HTTP and read with Prometheus' own parser."""

from __future__ import annotations

import re
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("prometheus_client")

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families
from samples import count, header, peak

from mfu_torch.figures import Figures
from mfu_torch.integrations.prometheus import _DEVICE, _FIGURES, PrometheusSink
from mfu_torch.records import End, Entry, PeakEntry, Step, Telemetry, Window
from mfu_torch.run.recorder import Recorder
from mfu_torch.step_parts import SplitSteps

ROOT = Path(__file__).parent.parent.parent

EVERYTHING = Figures(
    step=40,
    steps=10,
    time_s=3.12,
    mfu=0.412,
    hfu=0.419,
    mfu_full=0.412,
    mfu_causal=0.38,
    mfu_of_measured=0.5,
    end_to_end=0.35,
    model_flops_per_s=408e12,
    tokens_per_s=13_100.0,
    samples_per_s=6.4,
    step_s=0.312,
    step_s_p95=0.33,
    data_wait_share=0.021,
    memory_bytes=61 * 10**9,
    phases={"all reduce": 0.1},
    split=SplitSteps(
        steps=2,
        time_s=8.0,
        parts_s={"forward": 2.0, "backward": 5.0, "optimizer": 0.0, "rest": 1.0},
        of_peak={"forward": 0.5},
        lead_s=0.03,
    ),
    goodput={"model": 0.35, "other": 0.65},
)


@pytest.fixture(autouse=True)
def one_process(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("LOCAL_RANK", "SLURM_LOCALID", "OMPI_COMM_WORLD_LOCAL_RANK"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def sink() -> Iterator[PrometheusSink]:
    """On any free port of this machine."""
    sink = PrometheusSink(port=0, addr="127.0.0.1", run="first")
    yield sink
    sink.close()


def scraped(sink: PrometheusSink) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{sink.port}/metrics", timeout=10) as answer:
        assert answer.headers["Content-Type"].startswith("text/plain")
        text: str = answer.read().decode()
        return text


def samples(text: str) -> dict[str, float]:
    """Value by name, and by the labels that a metric has besides those of every metric."""
    found = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            own = {k: v for k, v in sample.labels.items() if k not in COMMON}
            assert {k: v for k, v in sample.labels.items() if k in COMMON} == COMMON
            found[sample.name + (str(own) if own else "")] = sample.value
    return found


COMMON = {
    "device": "NVIDIA H100 80GB HBM3",
    "rank": "3",
    "attention": "causal",
    "run": "first",
}

HEADER = header(attention="causal", rank=3, world_size=8)


def given(sink: PrometheusSink, *records: Entry | Figures) -> dict[str, float]:
    for record in records:
        sink.write(record)
    return {name: value for name, value in samples(scraped(sink)).items() if "run_info" not in name}


def test_every_known_figure_is_served_under_its_name(sink: PrometheusSink) -> None:
    assert given(sink, HEADER, peak(), count(), EVERYTHING) == {
        "mfu_torch_peak_flops_per_second{'dtype': 'bf16', 'provenance': 'given'}": 100e12,
        "mfu_torch_steps_total": 40,
        "mfu_torch_mfu_ratio": 0.412,
        "mfu_torch_hfu_ratio": 0.419,
        "mfu_torch_mfu_causal_ratio": 0.38,
        "mfu_torch_mfu_of_measured_peak_ratio": 0.5,
        "mfu_torch_end_to_end_mfu_ratio": 0.35,
        "mfu_torch_model_flops_per_second": 408e12,
        "mfu_torch_tokens_per_second": 13_100.0,
        "mfu_torch_samples_per_second": 6.4,
        "mfu_torch_step_seconds": 0.312,
        "mfu_torch_step_p95_seconds": 0.33,
        "mfu_torch_data_wait_ratio": 0.021,
        "mfu_torch_memory_allocated_max_bytes": 61e9,
        "mfu_torch_step_part_ratio{'part': 'forward'}": 0.25,
        "mfu_torch_step_part_ratio{'part': 'backward'}": 0.625,
        "mfu_torch_step_part_ratio{'part': 'rest'}": 0.125,
        "mfu_torch_step_part_hfu_ratio{'part': 'forward'}": 0.5,
        "mfu_torch_host_lead_seconds": 0.03,
        "mfu_torch_phase_ratio{'phase': 'all reduce'}": 0.1,
        "mfu_torch_goodput_ratio{'share': 'model'}": 0.35,
        "mfu_torch_goodput_ratio{'share': 'other'}": 0.65,
    }


def test_what_the_run_is_stands_in_its_info(sink: PrometheusSink) -> None:
    sink.write(HEADER)
    (name,) = samples(scraped(sink))
    assert name.startswith("mfu_torch_run_info{")
    for fact in ("'torch': '2.13.0'", "'mfu_torch': '0.1.0'", "'world_size': '8'"):
        assert fact in name
    assert "'clock': 'CUDA events'" in name


def test_what_is_not_known_any_more_has_no_sample_and_is_not_zero(sink: PrometheusSink) -> None:
    unknown = Figures(step=50, steps=10, time_s=1.0, step_s=0.1, mfu=0.0, absent={"hfu": "why"})
    assert given(sink, HEADER, EVERYTHING, unknown) == {
        "mfu_torch_steps_total": 50,
        "mfu_torch_mfu_ratio": 0.0,  # 0 is a value
        "mfu_torch_step_seconds": 0.1,
    }


def test_an_unknown_peak_has_no_sample(sink: PrometheusSink) -> None:
    assert given(sink, HEADER, PeakEntry(dtype="bf16", unknown="no such row")) == {}


def test_what_the_device_did_is_in_base_units(sink: PrometheusSink) -> None:
    seen = Telemetry(
        after_step=40,
        samples=10,
        time_s=10.0,
        gpu_util=0.75,
        tensor_active=0.5,
        sm_clock_hz=1.5e9,
        power_w=698.0,
        temperature_c=61.0,
        throttle={"power cap": 0.25},
    )
    assert given(sink, HEADER, seen) == {
        "mfu_torch_device_gpu_utilization_ratio": 0.75,
        "mfu_torch_device_tensor_active_ratio": 0.5,
        "mfu_torch_device_sm_clock_hertz": 1.5e9,
        "mfu_torch_device_power_watts": 698.0,
        "mfu_torch_device_temperature_celsius": 61.0,
        "mfu_torch_device_throttle_ratio{'reason': 'power cap'}": 0.25,
    }


def test_a_name_with_quotes_and_a_line_break_is_a_valid_label() -> None:
    odd = 'A "GPU" \\ with\na break'
    registry = CollectorRegistry()
    sink = PrometheusSink(port=None, registry=registry, run=odd)
    sink.write(header())
    sink.write(EVERYTHING)
    families = text_string_to_metric_families(generate_latest(registry).decode())
    assert {sample.labels["run"] for family in families for sample in family.samples} == {odd}


def test_without_a_name_a_run_is_called_by_its_start() -> None:
    registry = CollectorRegistry()
    sink = PrometheusSink(port=None, registry=registry)
    sink.write(header())
    sink.write(EVERYTHING)
    labels = {"device": "NVIDIA H100 80GB HBM3", "rank": "0", "attention": "full"}
    labels["run"] = "2026-01-02T03:04:05+00:00"
    assert registry.get_sample_value("mfu_torch_mfu_ratio", labels) == 0.412


def test_closing_gives_the_port_and_the_registry_back() -> None:
    registry = CollectorRegistry()
    first = PrometheusSink(port=0, addr="127.0.0.1", registry=registry)
    first.write(HEADER)
    port = first.port
    assert port
    first.close()
    assert generate_latest(registry) == b""
    second = PrometheusSink(port=port, addr="127.0.0.1", registry=registry)
    second.write(HEADER)
    assert second.port == port
    assert "mfu_torch_run_info" in scraped(second)
    second.close()


def test_a_sink_that_never_saw_a_run_can_be_closed() -> None:
    PrometheusSink(port=0).close()


def test_a_port_in_use_costs_the_run_one_line_and_this_sink_only(
    caplog: pytest.LogCaptureFixture,
) -> None:
    window = Window(
        steps=(Step(index=0, duration_s=1.0, data_wait_s=None, count_ids=()),), wall_s=1
    )
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        recorder = Recorder(header(), [PrometheusSink(port=port, addr="127.0.0.1")], keep=True)
        recorder.put(window)
        recorder.put(End(wall_s=1.0, reason="completed"))
        recorder.close()
    (line,) = caplog.messages
    assert line == (
        f"PrometheusSink failed and gets no more records: OSError: port {port} on 127.0.0.1 cannot "
        "be listened on (Address already in use); nothing is served to Prometheus. Pass a free "
        "one: PrometheusSink(port=...)"
    )
    assert recorder.read_back(None).windows == (window,)


@pytest.mark.parametrize("name", ["LOCAL_RANK", "SLURM_LOCALID", "OMPI_COMM_WORLD_LOCAL_RANK"])
def test_every_process_of_a_host_has_a_port_of_its_own(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert PrometheusSink().port == 9108
    monkeypatch.setenv(name, "7")
    assert PrometheusSink().port == 9115
    assert PrometheusSink(port=9000).port == 9007
    assert PrometheusSink(port=0).port == 0  # any free one


@pytest.mark.parametrize("port", [-1, 65536, "9108", 9108.0, True])
def test_what_is_no_port_is_refused(port: Any) -> None:
    with pytest.raises(ValueError, match="expected a number from 0 to 65535, or None"):
        PrometheusSink(port=port)


@pytest.mark.parametrize("argument", ["addr", "registry", "run"])
def test_an_argument_of_another_kind_is_refused(argument: str) -> None:
    with pytest.raises(TypeError, match=f"{argument} is 5; expected a"):
        PrometheusSink(**{argument: 5})  # type: ignore[arg-type]


@pytest.mark.parametrize("rank", ["²", "one", "-2", "1.0"])
def test_a_local_rank_that_is_no_number_is_refused(
    rank: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOCAL_RANK", rank)
    message = f"LOCAL_RANK is '{rank}'; expected which process of its host this is, from 0"
    with pytest.raises(ValueError, match=re.escape(message)):
        PrometheusSink()
    assert PrometheusSink(port=0).port == 0  # needs none


def test_a_process_that_is_said_to_be_alone_is_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCAL_RANK", "-1")
    assert PrometheusSink().port == 9108


def test_a_registry_has_each_metric_once_and_refuses_a_second_sink(
    caplog: pytest.LogCaptureFixture,
) -> None:
    registry = CollectorRegistry()
    first = PrometheusSink(port=None, registry=registry, run="first")
    first.write(HEADER)
    first.write(EVERYTHING)
    second = PrometheusSink(port=0, addr="127.0.0.1", registry=registry, run="second")
    recorder = Recorder(header(), [second], keep=True)
    recorder.put(End(wall_s=1.0, reason="completed"))
    recorder.close()
    assert caplog.messages == [
        "PrometheusSink failed and gets no more records: ValueError: the registry has the metrics "
        "of another PrometheusSink that is not closed; expected one at a time: give each a "
        "registry and a port of its own"
    ]
    second.close()
    page = generate_latest(registry).decode()
    types = [line for line in page.splitlines() if line.startswith("# TYPE")]
    assert len(types) == len(set(types)) > 10
    assert 'run="second"' not in page
    first.close()
    third = PrometheusSink(port=None, registry=registry, run="third")
    third.write(HEADER)
    assert 'run="third"' in generate_latest(registry).decode()


def test_a_registry_is_given_back_where_the_port_is_in_use() -> None:
    registry = CollectorRegistry()
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        sink = PrometheusSink(port=port, addr="127.0.0.1", registry=registry)
        with pytest.raises(OSError, match="cannot be listened on"):
            sink.write(HEADER)
    assert generate_latest(registry) == b""


def test_one_metric_can_be_asked_for_by_its_name(sink: PrometheusSink) -> None:
    for record in (HEADER, peak(), EVERYTHING):
        sink.write(record)
    for name in ("mfu_torch_mfu_ratio", "mfu_torch_steps_total", "mfu_torch_goodput_ratio"):
        url = f"http://127.0.0.1:{sink.port}/metrics?name[]={name}"
        with urllib.request.urlopen(url, timeout=10) as answer:
            lines = [line for line in answer.read().decode().splitlines() if line[0] != "#"]
        assert lines and all(line.startswith(f"{name}{{") for line in lines)


def test_every_metric_is_announced(sink: PrometheusSink) -> None:
    seen = Telemetry(after_step=1, samples=1, time_s=1.0, throttle={"x": 1.0})
    for record in (HEADER, peak(), EVERYTHING, seen):
        sink.write(record)
    announced = {family.name for family in sink.describe()}
    assert {family.name for family in sink.collect()} <= announced


def test_neither_a_port_nor_a_registry_is_refused() -> None:
    with pytest.raises(ValueError, match="no registry is given"):
        PrometheusSink(port=None)


def test_names_follow_the_conventions_of_prometheus(sink: PrometheusSink) -> None:
    sink.write(HEADER)
    sink.write(EVERYTHING)
    for family in text_string_to_metric_families(scraped(sink)):
        assert family.documentation
        assert family.type == ("counter" if family.name == "mfu_torch_steps" else "gauge")
        unit = family.name.rpartition("_")[2]
        assert unit in ("ratio", "second", "seconds", "bytes", "steps", "info"), family.name


def test_the_documentation_names_every_metric_and_no_other() -> None:
    page = (ROOT / "docs" / "sinks.md").read_text(encoding="utf-8")
    table = page.partition("| metric, after `mfu_torch_` |")[2].partition("\n\n")[0]
    named = {name.partition("{")[0] for name in re.findall(r"`([^`]+)`", table)}
    fields = {name for name, _ in _FIGURES.values()}
    fields |= {f"device_{name}" for name, _ in _DEVICE.values()}
    others = {"run_info", "peak_flops_per_second", "steps_total"}
    shares = {"phase_ratio", "goodput_ratio", "device_throttle_ratio"}
    shares |= {"step_part_ratio", "step_part_hfu_ratio", "host_lead_seconds"}
    assert named - {"mfu", "hfu"} == fields | others | shares


def test_without_the_library_the_message_says_what_to_install() -> None:
    code = (
        "import sys; sys.modules['prometheus_client'] = None\n"
        "import mfu_torch.integrations.prometheus"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert done.stderr.splitlines()[-1] == (
        "ImportError: PrometheusSink needs prometheus-client: pip install 'mfu_torch[prometheus]'"
    )
