"""The run file: what is written can be read, and what cannot be read says why."""

from __future__ import annotations

import io
import json
import math
from pathlib import Path

import pytest
from samples import count, entries, header, run, step, term

from mfu_torch.figures import Figures, run_figures
from mfu_torch.insight.report import render_report
from mfu_torch.records import Earlier, End, Entry, MFUError, Pause, Run, Window
from mfu_torch.run.runfile import RunFileSink, read_run


def write(directory: Path, records: list[Entry], rank: int = 0) -> Path:
    sink = RunFileSink(directory, rank)
    for record in records:
        sink.write(record)
    sink.close()
    return sink.path


def lines_of(path: Path) -> list[bytes]:
    return path.read_bytes().splitlines(keepends=True)


def test_what_is_written_is_read_back_equal(tmp_path: Path) -> None:
    assert read_run(write(tmp_path, entries())) == Run.from_entries(entries())


def test_every_line_is_one_json_object_with_its_type(tmp_path: Path) -> None:
    tags = [json.loads(line)["type"] for line in lines_of(write(tmp_path, entries()))]
    expected = "header peak peak count pause pause window pause window end"
    assert tags == expected.split()


def test_a_line_can_be_read_as_soon_as_it_is_written(tmp_path: Path) -> None:
    sink = RunFileSink(tmp_path)
    for number, record in enumerate(entries(), 1):
        sink.write(record)
        assert len(lines_of(sink.path)) == number
    sink.close()


def test_a_run_that_goes_on_has_no_end(tmp_path: Path) -> None:
    made = read_run(write(tmp_path, entries()[:-1]))
    assert made.end is None
    assert made.notes == ()
    assert made.wall_s == 19.0


def test_figures_are_not_written(tmp_path: Path) -> None:
    sink = RunFileSink(tmp_path)
    sink.write(Figures(step=1, steps=1, time_s=1.0))
    assert sink.path.read_bytes() == b""
    sink.close()


def test_closing_twice_is_allowed_and_writing_afterwards_is_not(tmp_path: Path) -> None:
    sink = RunFileSink(tmp_path)
    sink.close()
    sink.close()
    with pytest.raises(ValueError, match="closed"):
        sink.write(header())


def test_no_two_sinks_share_a_file(tmp_path: Path) -> None:
    sinks = [RunFileSink(tmp_path / "a" / "b", rank) for rank in (0, 0, 3, 0, 3)]
    names = [sink.path.name for sink in sinks]
    assert names == [
        "run.jsonl",
        "run-2.jsonl",
        "run.rank3.jsonl",
        "run-3.jsonl",
        "run-2.rank3.jsonl",
    ]
    for sink in sinks:
        sink.close()


def test_of_a_directory_the_run_that_started_last_is_read(tmp_path: Path) -> None:
    # The first file is the newest run: its header says so, whatever the file's name and age.
    write(tmp_path, [header(started="2026-03-01T00:00:00+00:00", log_every=1)])
    write(tmp_path, [header(started="2026-01-01T00:00:00+00:00", log_every=2)])
    write(tmp_path, [header(started="2026-02-01T00:00:00+00:00", log_every=3)])
    made = read_run(str(tmp_path))
    assert made.header.log_every == 1
    assert made.notes == (
        "read run.jsonl; other run files lie beside it: run-2.jsonl, run-3.jsonl",
    )


def test_of_runs_that_started_together_the_higher_number_is_read(tmp_path: Path) -> None:
    for log_every in range(1, 12):  # run-11 comes after run-9
        write(tmp_path, [header(log_every=log_every)])
    made = read_run(tmp_path)
    assert made.header.log_every == 11
    assert made.notes[0].endswith("run-10.jsonl, run-2.jsonl, run-3.jsonl, run-4.jsonl and 6 more")


def test_rank_0_is_read_where_it_is_there(tmp_path: Path) -> None:
    write(tmp_path, [header(rank=0, world_size=8)])
    write(tmp_path, [header(rank=3, world_size=8, started="2027-01-01")], rank=3)
    assert read_run(tmp_path).header.rank == 0


def test_the_lowest_rank_is_read_where_rank_0_is_not_there(tmp_path: Path) -> None:
    for rank in (11, 3):
        write(tmp_path, [header(rank=rank, world_size=16)], rank=rank)
    assert read_run(tmp_path).header.rank == 3


def test_a_file_without_a_header_yet_is_not_the_newest(tmp_path: Path) -> None:
    write(tmp_path, [header()])
    write(tmp_path, [])
    made = read_run(tmp_path)
    assert made.header == header()
    assert made.notes == ("read run.jsonl; other run files lie beside it: run-2.jsonl",)


@pytest.mark.parametrize("keep", [1, 10, -2])
def test_a_last_line_cut_short_is_left_out_and_noted(tmp_path: Path, keep: int) -> None:
    path = write(tmp_path, entries())
    *whole, last = lines_of(path)
    path.write_bytes(b"".join(whole) + last[:keep])
    made = read_run(path)
    assert made.end is None
    assert len(made.windows) == 2
    assert made.notes == ("line 10 is cut short and was left out",)


def test_a_complete_last_line_needs_no_newline(tmp_path: Path) -> None:
    path = write(tmp_path, entries())
    path.write_bytes(path.read_bytes().rstrip(b"\n"))
    assert read_run(path) == run()


def test_a_broken_line_in_the_middle_is_an_error_with_its_number(tmp_path: Path) -> None:
    path = write(tmp_path, entries())
    lines = lines_of(path)
    lines[6] = lines[6][:30] + b"\n"
    path.write_bytes(b"".join(lines))
    with pytest.raises(MFUError) as caught:
        read_run(path)
    message = str(caught.value)
    assert f"{path}: line 7 is broken: Input data was truncated" in message
    assert """seen '{"type":"window","steps":[[0,1'""" in message
    assert "expected one complete record; remove that line" in message


def test_a_record_that_lacks_a_field_is_broken(tmp_path: Path) -> None:
    path = write(tmp_path, [header()])
    path.write_bytes(path.read_bytes() + b'{"type":"pause","name":"eval"}\n')
    with pytest.raises(MFUError, match="line 2 is broken: Object missing required field"):
        read_run(path)


def test_records_of_a_later_version_are_left_out_with_one_note(tmp_path: Path) -> None:
    path = write(tmp_path, entries()[:4])
    more = b'{"type":"forecast","power_w":[700]}\n'
    path.write_bytes(path.read_bytes() + 3 * more + b'{"type":"end","wall_s":2,"reason":"x"}\n')
    made = read_run(path)
    assert made.end == End(wall_s=2.0, reason="x")
    assert made.notes == (
        "line 5 and 2 more left out: record 'forecast' is not known to this version",
    )


def test_fields_of_a_later_version_are_ignored(tmp_path: Path) -> None:
    path = write(tmp_path, [header()])
    path.write_bytes(path.read_bytes().replace(b'"rank"', b'"new_field":[1],"rank"'))
    assert read_run(path).header == header()


def test_a_newer_schema_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    path.write_text('{"type":"header","schema":2,"everything":"else"}\n')
    with pytest.raises(MFUError, match=r"line 1 has schema 2; .* up to 1; upgrade mfu_torch"):
        read_run(path)


@pytest.mark.parametrize(
    "content",
    [
        b"hello\n",
        b"[1, 2]\n",
        b'{"loss": 3.2}\n',
        b"\n\n{}\n",
        b"\x1f\x8b\x08\x00\n\xff\n",
        b'{"type":"window","steps":[],"wall_s":1}\n',
    ],
)
def test_another_file_is_refused_with_what_was_seen(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "other.jsonl"
    path.write_bytes(content)
    with pytest.raises(MFUError, match=r"is no run file: line 1 is .*expected \{\"type\":\"header"):
        read_run(path)


@pytest.mark.parametrize("content", [b"", b"\n", b'{"type":"header","sch', b"\x00\x00\x00"])
def test_a_file_without_a_complete_line_says_so(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "run.jsonl"
    path.write_bytes(content)
    with pytest.raises(MFUError, match="holds no complete line"):
        read_run(path)


def test_a_path_without_a_run_says_what_is_expected(tmp_path: Path) -> None:
    with pytest.raises(MFUError, match=r"no such file; expected a run file \(run\.jsonl\)"):
        read_run(tmp_path / "nothing")
    (tmp_path / "running.jsonl").touch()
    with pytest.raises(MFUError, match=r"holds no run file; expected run\.jsonl"):
        read_run(tmp_path)


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
def test_numbers_that_are_not_finite_make_valid_json_and_cost_one_line(
    tmp_path: Path, number: float
) -> None:
    broken = Window(steps=(step(0, number),), wall_s=number)
    whole = Window(steps=(step(1, 1.0),), wall_s=3.0)
    path = write(tmp_path, [header(), broken, whole])

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is not JSON")

    for line in lines_of(path):
        json.loads(line, parse_constant=refuse)
    made = read_run(path)
    assert made.windows == (whole,)
    assert made.notes == ("line 2 left out: record 'window' holds a number that is not finite",)


class VersionText(str):
    """Like torch.__version__, which is no plain str."""


def test_text_and_numbers_of_other_kinds_are_written_as_plain_ones(tmp_path: Path) -> None:
    numpy = pytest.importorskip("numpy")
    steps = (step(0, numpy.float32(0.5), data_wait_s=0.0, tokens=numpy.int64(1000)),)
    first = header(versions={"torch": VersionText("2.13.0+cpu")})
    made = read_run(write(tmp_path, [first, Window(steps=steps, wall_s=numpy.float64(3.0))]))
    assert made.header.versions == {"torch": "2.13.0+cpu"}
    plain = step(0, 0.5, data_wait_s=0.0, tokens=1000)
    assert made.windows == (Window(steps=(plain,), wall_s=3.0),)


def test_what_is_neither_text_nor_number_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TypeError):
        write(tmp_path, [header(clock=object())])


def test_flops_beyond_64_bits_survive(tmp_path: Path) -> None:
    huge = count(terms=(term("given", 2**70, 2**69),))
    assert read_run(write(tmp_path, [header(), huge])).counts[0] == huge


def test_a_folder_of_runs_names_the_runs_in_it(tmp_path: Path) -> None:
    for name in ("second", "first"):
        RunFileSink(tmp_path / name).close()
    with pytest.raises(MFUError, match="give one of the runs in it: first, second"):
        read_run(tmp_path)


# --- what makes no sense does not make a file unreadable ------------------------------------------


@pytest.mark.parametrize(
    "broken",
    [
        {"wall_s": None}, {"wall_s": -1.0}, {"steps": -3}, {"ideal_s": {"full": None}},
        {"ideal_s": {"half": 1.0}}, {"started": 3},
    ],
)  # fmt: skip
def test_a_header_whose_word_on_earlier_attempts_makes_no_sense_leaves_them_unknown(
    broken: dict[str, object], tmp_path: Path
) -> None:
    earlier = Earlier(started="2026-01-01T00:00:00+00:00", wall_s=4.0, steps=2)
    path = write(tmp_path, [header(earlier=earlier), *entries()[1:]])
    first, *others = lines_of(path)
    fields = json.loads(first)
    fields["earlier"] |= broken
    path.write_bytes(json.dumps(fields).encode() + b"\n" + b"".join(others))
    made = read_run(path)
    assert made.header.earlier is not None and len(list(made.steps)) == 5
    assert "line 1: what it says of earlier attempts was left out" in made.notes[0]
    absent = run_figures(made).absent["end_to_end"]
    assert absent == "of an earlier attempt: the run file does not say what it had done"
    assert render_report(made)


def test_a_header_that_is_broken_elsewhere_is_told(tmp_path: Path) -> None:
    path = write(tmp_path, entries())
    path.write_text(path.read_text().replace('"log_every":10', '"log_every":"ten"'))
    with pytest.raises(MFUError, match=r"line 1 is broken: .*log_every"):
        read_run(path)


def test_half_of_a_character_in_a_name_does_not_end_the_file(tmp_path: Path) -> None:
    odd = Pause(name="eval \udcff", after_step=1, duration_s=1.0)
    window = Window(steps=(step(0, 1.0, excluded="\ud800"),), wall_s=1.0)
    made = read_run(write(tmp_path, [header(), odd, window, End(wall_s=2.0, reason="completed")]))
    assert made.pauses == (Pause(name="eval \\udcff", after_step=1, duration_s=1.0),)
    assert [each.excluded for each in made.steps] == ["\\ud800"]
    assert made.end is not None


def test_a_disk_that_takes_a_line_in_parts_gets_all_of_it(tmp_path: Path) -> None:
    sink = RunFileSink(tmp_path)
    whole = sink._file

    class InParts:
        def write(self, data: memoryview) -> int:
            return whole.write(data[:7])

        close = whole.close

    sink._file = InParts()  # type: ignore[assignment]
    for record in entries():
        sink.write(record)
    sink.close()
    assert read_run(tmp_path) == Run.from_entries(entries())


def test_nothing_of_a_line_waits_in_the_process(tmp_path: Path) -> None:
    # A forked process has a copy of what waits, and would write it a second time.
    sink = RunFileSink(tmp_path)
    assert isinstance(sink._file, io.RawIOBase)
    sink.close()
