"""A secret in any place of a trace: it is in no answer and in no clean copy, except for names."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from trace_builder import TraceBuilder

from mfu_torch.cli import main

US = 1000
TOKEN = "ghp_{}SECRET0123456789abcdef"
OF_OPS = (
    *("Module Hierarchy", "Call stack", "Input Strides", "kernel_file", "kernel_kwargs"),
    *("kernel_hash", "token", "Trace name", "Trace iter"),
)
OF_THE_FILE = (
    *("env", "metadata", "otherData", "traceName", "host_name", "trace_id", "stackFrames"),
    *("with_stack", "cupti_version", "user", "argv"),
)


def secret(place: str) -> str:
    return TOKEN.format(re.sub(r"\W", "", place))


def hostile(rank: int = 0) -> dict[str, Any]:
    """A trace with a secret wherever one fits, names of kernels and ops left out."""
    groups = {secret("pg_name"): [0, 1]}
    trace = TraceBuilder(rank=rank, world_size=2, groups=groups, pid=100)
    for number in (3, 4):
        begin = 1000 * (number - 3) * US
        trace.step(number, begin, 1000 * US)
        _work(trace, begin)
        trace.annotation(secret("annotation"), begin + 10, 10 * US)
        trace.annotation(f"train_data_load {secret('load')}", begin + 700 * US, 10 * US)
        trace.data_wait(begin + 800 * US, 199 * US)
        trace.event("python_function", f"/home/{secret('frame')}/a.py(1): f", begin, 900 * US)
        trace.event("cpu_op", "aten::relu", begin + 750 * US, 10, pid=secret("pid"), tid=1)
        trace.event("cuda_runtime", "cudaMalloc", begin + 760 * US, 10, tid=secret("tid"))
        trace.event("overhead", secret("overhead"), begin, 10)
        trace.event("fwdbwd", secret("arrow"), begin, None, ph="s", id=secret("id"))
    for name in ("process_name", "process_labels", "thread_name", "[memory]"):
        args = {"name": secret(name), "labels": secret(name), "Device": secret(name)}
        trace.event(None, name, 0, None, ph="M", args=args)
    trace.top_level = {key: {key: [secret(key)]} for key in OF_THE_FILE} | {secret("key"): 1}
    document = trace.to_dict()
    info = {"backend": secret("backend"), "nccl_version": secret("nccl")}
    document["distributedInfo"] |= info
    document["distributedInfo"]["pg_config"][0]["pg_desc"] = secret("pg_desc")
    document["deviceProperties"][0]["uuid"] = secret("uuid")
    return document


def _work(trace: TraceBuilder, begin: int) -> None:
    bf16 = ["c10::BFloat16"] * 2
    more: dict[str, Any] = {key: secret(key) for key in OF_OPS}
    dims = [[1000, 1000], [1000, 1000]]
    hidden = [secret("concrete"), f"['{secret('list')}']"]
    trace.op("aten::mm", begin + 10, 80, dims=dims, types=bf16, concrete=hidden, **more)
    types = [secret("type"), "float"]
    trace.op("aten::linear", begin + 200, 80, dims=[[9, 9], secret("dims")], types=types)
    told = {"context": secret("context"), "token": secret("argument")}
    trace.kernel("sm90_xmma_gemm_bf16", begin + 100, 500 * US, launch_ns=begin + 20, **told)
    collective = {
        "Collective name": secret("collective"),
        "Process Group Name": secret("pg_name"),
        "Process Group Description": secret("pg_description"),
        "Process Group Ranks": "[0, 1]",
        "dtype": secret("dtype"),
        "In msg nelems": 10,
        "Group size": 2,
    }
    name = "ncclDevKernel_AllReduce_Sum"
    at = begin + 500 * US + 200
    trace.kernel(name, at, 100 * US, launch_ns=begin + 95, stream=20, **collective)


@pytest.fixture
def traces(tmp_path: Path) -> list[str]:
    paths = [tmp_path / f"rank{rank}.json" for rank in (0, 1)]
    for rank, path in enumerate(paths):
        path.write_text(json.dumps(hostile(rank)))
    return list(map(str, paths))


def leaks(text: str) -> set[str]:
    return set(re.findall(r"ghp_(\w*?)SECRET", text))


def test_the_traces_are_full_of_secrets(traces: list[str]) -> None:
    assert len(leaks(Path(traces[0]).read_text())) > 40


@pytest.mark.parametrize("shape", [[], ["--json"], ["--csv"], ["--md"], ["--edges", "cpu"]])
@pytest.mark.parametrize("what", ["one", "ranks", "diff"])
def test_no_answer_has_a_secret(
    traces: list[str], what: str, shape: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    argv = {"one": traces[:1], "ranks": traces, "diff": ["--diff", *traces]}[what]
    assert main(["explain", *argv, "--top", "50", *shape]) == 0
    captured = capsys.readouterr()
    assert leaks(captured.out + captured.err) == set()


def test_no_error_has_a_secret(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    whole = json.dumps(hostile())
    for number, text in enumerate((whole[:-200], whole.replace("cpu_op", secret("category")))):
        path = tmp_path / f"{number}.json"
        path.write_text(text)
        main(["explain", str(path), "--step-name", "none of these"])
        captured = capsys.readouterr()
        assert leaks(captured.out + captured.err) == set()


def test_a_clean_copy_has_no_secret(
    traces: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    clean = tmp_path / "clean.json"
    assert main(["explain", traces[0], "--scrub", str(clean)]) == 0
    assert leaks(clean.read_text() + capsys.readouterr().out) == set()
    assert main(["explain", str(clean)]) == 0


def test_only_names_of_kernels_ops_and_the_device_stay_in_a_copy_as_it_says(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    document = hostile()
    document["deviceProperties"][0]["name"] = secret("device")
    for event in document["traceEvents"]:
        if event["name"] == "sm90_xmma_gemm_bf16":
            event["name"] = secret("kernel")
        elif event["name"] == "aten::mm":
            event["name"] = f"mine::{secret('op')}"
    trace, clean = tmp_path / "trace.json", tmp_path / "clean.json"
    trace.write_text(json.dumps(document))
    assert main(["explain", str(trace), "--scrub", str(clean)]) == 0
    assert leaks(clean.read_text()) == {"device", "kernel", "op"}
    said = " ".join(capsys.readouterr().out.split())
    assert "names of kernels, operators, calls, process groups and the device" in said
