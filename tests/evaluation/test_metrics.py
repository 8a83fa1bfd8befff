"""The definitions of the numbers, with a clock that the test moves."""

from __future__ import annotations

import math

import pytest

from elman.evaluation import metrics
from elman.evaluation.metrics import LossMeter, Throughput, TrainingClock
from elman.evaluation.result import DEFINITIONS


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Return a one-element list: the time that the clock reads."""
    time = [1000.0]
    monkeypatch.setattr(metrics.time, "perf_counter", lambda: time[0])
    return time


def test_loss_is_the_mean_of_the_last_hundred_steps() -> None:
    meter = LossMeter()
    assert meter.mean is None
    for step in range(250):
        meter.add(float(step))
    assert meter.count == 100
    assert meter.mean == pytest.approx(sum(range(150, 250)) / 100)


def test_loss_of_a_short_run_is_over_its_steps_and_says_so() -> None:
    meter = LossMeter()
    for loss in (4.0, 2.0):
        meter.add(loss)
    assert (meter.mean, meter.count) == (3.0, 2)


def test_bits_per_byte() -> None:
    assert metrics.bits_per_byte(math.log(2) * 8) == pytest.approx(8.0)


def test_clock_stands_still_in_pauses_and_before_the_start(now: list[float]) -> None:
    clock = TrainingClock()
    now[0] += 5
    assert clock.seconds() == 0
    clock.start()
    now[0] += 3
    with clock.pause("validation"):
        now[0] += 100
        assert clock.seconds() == 3
    now[0] += 1
    assert clock.seconds() == 4
    assert clock.pauses == {"validation": 100, "checkpoint": 0}


def test_a_stopped_clock_keeps_its_time_and_still_counts_pauses(now: list[float]) -> None:
    clock = TrainingClock()
    clock.start()
    now[0] += 3
    clock.stop()
    now[0] += 100
    with clock.pause("checkpoint"):
        now[0] += 7
    now[0] += 100
    assert (clock.seconds(), clock.work()) == (3, 10)
    assert clock.state_dict()["seconds"] == 3


def test_resumed_clock_continues_from_the_saved_time(now: list[float]) -> None:
    first = TrainingClock()
    first.start()
    now[0] += 30
    second = TrainingClock()
    second.load_state_dict(first.state_dict())
    now[0] += 1000  # the time between the sessions does not count
    second.start()
    now[0] += 2
    assert second.seconds() == 32


@pytest.mark.parametrize(
    ("steps", "expected"),
    [(1, 100.0), (2, 100.0), (19, 100.0), (20, 100.0)],
    ids=["one step", "two steps", "short run", "long run"],
)
def test_throughput_leaves_out_the_slow_first_steps(steps: int, expected: float) -> None:
    rate = Throughput()
    rate.begin(0, 0.0)
    seconds = 0.0
    for step in range(1, steps + 1):
        # In a long run ten steps are slow, in a short one the first; a single step is all there is.
        slow = step <= 10 if steps >= 20 else step == 1 and steps > 1
        seconds += 5.0 if slow else 1.0
        rate.step(100 * step, seconds)
    assert rate.rate() == pytest.approx(expected)


def test_throughput_of_a_resumed_run_counts_both_sessions_without_their_starts() -> None:
    first = Throughput()
    first.begin(0, 0.0)
    for step in range(1, 31):
        first.step(100 * step, float(step))
    second = Throughput()
    second.load_state_dict(first.state_dict())
    second.begin(3000, 30.0)
    for step in range(1, 31):
        second.step(3000 + 50 * step, 30.0 + step)
    assert second.rate() == pytest.approx((20 * 100 + 20 * 50) / 40)


def test_throughput_counts_until_the_device_has_done_the_last_step() -> None:
    rate = Throughput()
    rate.begin(0, 0.0)
    rate.step(100, 5.0)
    rate.step(200, 5.1)  # asked of the device, not done yet
    rate.settle(6.0)
    assert rate.rate() == pytest.approx(100.0)


def test_window_rate_starts_anew_each_time() -> None:
    rate = Throughput()
    rate.begin(0, 0.0)
    rate.step(100, 1.0)
    assert rate.window() == 100
    rate.step(400, 2.0)
    assert rate.window() == 300


def test_mfu_only_where_the_peak_is_known() -> None:
    assert metrics.model_flops_utilization(100, 1.0, "AMD EPYC") is None
    known = metrics.model_flops_utilization(10**8, 10**5, "NVIDIA H100 80GB HBM3")
    assert known == pytest.approx(6e13 / 989e12)


@pytest.mark.parametrize(
    ("device", "peak"),
    [
        ("NVIDIA H100 80GB HBM3", 989e12),
        ("NVIDIA H100 PCIe", 756e12),
        ("NVIDIA H100 NVL", 835e12),
        ("NVIDIA H200", 989e12),
        ("NVIDIA H200 NVL", 835e12),
        ("NVIDIA B200", 2250e12),
        ("NVIDIA GB200", 2500e12),
        ("NVIDIA A100-SXM4-80GB", 312e12),
        ("NVIDIA L40S", 362e12),
        ("NVIDIA RTX 6000 Ada Generation", 364e12),
        ("NVIDIA GeForce RTX 4090", 165e12),
        ("NVIDIA GeForce RTX 4090 D", None),
        ("NVIDIA GeForce RTX 4090 Laptop GPU", None),
        ("NVIDIA H100 80GB HBM3 MIG 1g.10gb", None),
        ("NVIDIA L40", None),
    ],
)
def test_each_device_has_its_own_peak(device: str, peak: float | None) -> None:
    used = metrics.model_flops_utilization(10**8, 10**5, device)
    assert used == (None if peak is None else pytest.approx(6e13 / peak))


def test_every_definition_is_one_sentence_of_text() -> None:
    assert all(text and "\n" not in text for text in DEFINITIONS.values())
