"""Back-off grows, is bounded, and spreads samples that failed together."""

from temper.scheduling.retry import FIRST, MOST, Breaker, backoff


def test_first_tries_do_not_wait_and_later_ones_wait_longer_up_to_a_bound():
    assert backoff(0, "rl-1-0-0") == 0.0
    for attempt in range(1, 40):
        whole = min(MOST, FIRST * 2 ** (attempt - 1))
        assert whole / 2 <= backoff(attempt, "rl-1-0") <= whole


def test_samples_that_failed_together_come_back_apart():
    waits = {backoff(3, f"rl-1-{slot}-3") for slot in range(64)}
    assert len(waits) == 64


def test_an_outage_lets_one_probe_through_at_a_time_until_something_works():
    breaker = Breaker(limit=3, cool=10.0)
    assert [breaker.failed(now) for now in (0.0, 1.0, 2.0, 3.0)] == [False, False, True, False]
    assert breaker.wait(3.0) == 10.0
    assert breaker.wait(13.0) == 0.0
    breaker.started(13.0)
    assert breaker.wait(13.5) == 9.5
    assert breaker.worked()
    assert breaker.wait(13.5) == 0.0
    assert not breaker.failed(14.0)
