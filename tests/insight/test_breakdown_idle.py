"""Why the device stands empty, rule by rule, in traces whose times are in microseconds."""

from __future__ import annotations

from hand_trace import AUTOGRAD, COPY, GEMM, MAIN, NCCL, OTHER, WORKER, Hand, Span, Work

from mfu_torch.insight.breakdown.codes import BASE_BUCKETS
from mfu_torch.insight.breakdown.labels import Labels
from mfu_torch.insight.breakdown.partition import labels_of

US = 1000


def us(start: int, end: int, thread: str = MAIN) -> Span:
    return Span(start * US, end * US, thread=thread)


def kernel(start: int, end: int, launch: int, name: str = GEMM, **more: object) -> Work:
    at = launch * US if launch >= 0 else -1
    return Work(name, start * US, end * US, at, **more)  # type: ignore[arg-type]


def gap(launch: int, **host: list[Span]) -> Hand:
    """Empty from 100 to 200, after a kernel and before one that is launched at ``launch``."""
    return Hand(work=[kernel(0, 100, 0), kernel(200, 300, launch)], **host)


def idle_us(hand: Hand, edges: str = "trace") -> dict[str, float]:
    return {
        name.removeprefix("idle/"): time / US
        for name, time in times(labels_of(hand.trace(), edges=edges)).items()
        if name.startswith("idle/")
    }


def times(labels: Labels) -> dict[str, int]:
    found = {
        name: int(labels.length_ns[labels.bucket == code].sum())
        for code, name in enumerate(BASE_BUCKETS)
    }
    return {name: time for name, time in found.items() if time}


def test_a_late_launch_is_launch_bound_up_to_it() -> None:
    assert idle_us(gap(launch=195)) == {"launch_bound": 95, "device_gap": 5}


def test_a_start_up_to_10_us_after_the_launch_is_a_device_gap() -> None:
    assert idle_us(gap(launch=190)) == {"launch_bound": 90, "device_gap": 10}
    one_more = Hand(work=[kernel(0, 100, 0), Work(GEMM, 200 * US, 300 * US, 190 * US - 1)])
    assert idle_us(one_more) == {"launch_bound": 89.999, "queued_wait": 10.001}


def test_work_that_was_launched_before_the_gap_waits_in_the_queue() -> None:
    assert idle_us(gap(launch=50)) == {"queued_wait": 100}


def test_the_time_inside_a_slow_launching_call_is_not_in_the_queue() -> None:
    # The call begins at 110 and returns at 170: it loads the module of the kernel.
    hand = gap(launch=110)
    hand.work[1] = kernel(200, 300, 110, call=60 * US)
    assert idle_us(hand) == {"launch_bound": 70, "queued_wait": 30}
    hand.work[1] = kernel(200, 300, 110, call=85 * US)
    assert idle_us(hand) == {"launch_bound": 95, "device_gap": 5}
    hand.work[1] = kernel(200, 300, 110, call=500 * US)  # it starts before the call returns
    assert idle_us(hand) == {"launch_bound": 100}


def test_a_prompt_start_inside_the_launching_call_stays_a_device_gap() -> None:
    hand = gap(launch=195)
    hand.work[1] = kernel(200, 300, 195, call=8 * US)
    assert idle_us(hand) == {"launch_bound": 95, "device_gap": 5}


def test_the_staging_of_a_blocking_copy_is_host_sync() -> None:
    hand = gap(launch=110, syncs=[us(110, 205)])
    hand.work[1] = kernel(200, 210, 110, COPY, call=95 * US)
    assert idle_us(hand) == {"launch_bound": 10, "host_sync": 90}


def test_without_a_launch_record_the_whole_gap_is_unknown() -> None:
    assert idle_us(gap(launch=-1, data_waits=[us(100, 200)], syncs=[us(50, 250)])) == {
        "unknown": 100
    }


def test_data_wait_before_sync_before_alloc_before_launch_bound() -> None:
    hand = gap(
        launch=195,
        data_waits=[us(110, 130)],
        syncs=[us(120, 150)],
        allocs=[us(140, 170)],
    )
    assert idle_us(hand) == {
        "data_wait": 20,
        "host_sync": 20,
        "alloc": 20,
        "launch_bound": 10 + 25,
        "device_gap": 5,
    }


def test_what_the_host_does_after_the_launch_holds_nothing_up() -> None:
    assert idle_us(gap(launch=150, data_waits=[us(140, 200)], syncs=[us(160, 170)])) == {
        "launch_bound": 40,
        "data_wait": 10,
        "queued_wait": 50,
    }


def test_a_sync_that_drained_the_queue_has_the_whole_wait_for_the_next_launch() -> None:
    assert idle_us(gap(launch=195, syncs=[us(50, 110)])) == {"host_sync": 95, "device_gap": 5}


def test_a_sync_up_to_20_us_before_the_gap_drained_it_the_clocks_agree_no_better() -> None:
    assert idle_us(gap(launch=195, syncs=[us(50, 80)]))["host_sync"] == 95
    assert "host_sync" not in idle_us(gap(launch=195, syncs=[us(50, 79)]))


def test_a_sync_that_begins_in_the_gap_has_only_its_own_time() -> None:
    assert idle_us(gap(launch=195, syncs=[us(120, 130)])) == {
        "launch_bound": 85,
        "host_sync": 10,
        "device_gap": 5,
    }


def test_data_wait_after_a_drained_queue_is_data_wait() -> None:
    hand = gap(launch=195, syncs=[us(50, 105)], data_waits=[us(110, 180)])
    assert idle_us(hand) == {"host_sync": 10 + 15, "data_wait": 70, "device_gap": 5}


def test_a_thread_that_drives_nothing_holds_nothing_up() -> None:
    hand = gap(
        launch=195,
        syncs=[us(100, 150, WORKER)],
        allocs=[us(100, 150, WORKER)],
        data_waits=[us(100, 150, WORKER)],
    )
    assert idle_us(hand) == {"launch_bound": 95, "device_gap": 5}


def test_a_sync_of_the_autograd_thread_holds_up() -> None:
    hand = gap(launch=195, syncs=[us(120, 150, AUTOGRAD)])
    hand.work.append(kernel(0, 10, 0, thread=AUTOGRAD))
    assert idle_us(hand)["host_sync"] == 30


def test_the_gap_ends_with_whichever_stream_starts_first() -> None:
    hand = gap(launch=50)
    hand.work.append(kernel(160, 220, 155, OTHER, stream=9))
    assert idle_us(hand) == {"launch_bound": 55, "device_gap": 5}


def test_of_work_that_starts_at_once_the_first_launched_ends_the_gap() -> None:
    hand = gap(launch=195)
    hand.work += [kernel(200, 210, 150, OTHER, stream=9), kernel(200, 210, -1, NCCL, stream=11)]
    assert idle_us(hand) == {"launch_bound": 50, "queued_wait": 50}


def test_work_without_a_length_ends_no_gap_and_fills_no_time() -> None:
    hand = gap(launch=195)
    hand.work.append(kernel(150, 150, 10))
    assert idle_us(hand) == {"launch_bound": 95, "device_gap": 5}


def test_gaps_are_split_between_steps_and_keep_their_cause() -> None:
    # The edge cuts the 12 us of queued wait into 6 and 6: neither half is a short gap.
    hand = Hand(
        work=[kernel(0, 100, 0), kernel(200, 300, 188)],
        steps=[us(0, 194), us(194, 300)],
    )
    labels = labels_of(hand.trace(), edges="cpu")
    queued = labels.per_step_ns(labels.bucket == BASE_BUCKETS.index("idle/queued_wait"))
    assert queued.tolist() == [6 * US, 6 * US]


def test_the_head_of_a_step_of_the_host_waits_for_its_first_launch() -> None:
    hand = Hand(
        work=[kernel(50, 100, 45)], steps=[us(0, 120)], data_waits=[us(0, 30)], syncs=[us(100, 110)]
    )
    assert idle_us(hand, "cpu") == {
        "data_wait": 30,
        "launch_bound": 15,
        "device_gap": 5,
        # After the last work nothing is launched; the sync that begins with the gap drained it.
        "host_sync": 20,
    }


def test_the_kernel_that_ends_a_gap_is_named() -> None:
    labels = labels_of(gap(launch=195).trace(), edges="trace")
    idle = labels.cause >= 0
    assert labels.work[idle].tolist() == [1, 1]
    assert labels.per_work_ns(idle).tolist() == [0, 100 * US]


def test_communication_beside_compute_is_not_exposed() -> None:
    hand = Hand(
        work=[kernel(0, 100, 0, NCCL, stream=9), kernel(20, 50, 0), kernel(90, 120, 0, COPY)]
    )
    labels = labels_of(hand.trace())
    assert times(labels) == {
        "matrix": 30 * US,
        "exposed_communication": 70 * US,
        "exposed_memcpy": 20 * US,
    }
    assert labels.length_ns[labels.communicates].sum() == 100 * US
