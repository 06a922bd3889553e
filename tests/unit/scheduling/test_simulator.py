"""The simulator against closed forms and the published policies' simulated table (long-context notes, part B)."""

import pytest
from msgspec.structs import replace

from temper.core import config
from temper.core.errors import ConfigError, TemperError
from temper.scheduling.baselines import Rounds, WindowedFifo
from temper.scheduling.ledger import Ledger
from temper.scheduling.pacing import Config, Pacing, Wait
from temper.scheduling.scenario import Scenario, compare, simulate
from temper.scheduling.simulator import Cluster, Load, Simulation

TAIL = Cluster(decode=1024)
EVEN = Load(median=10.0, between=0.0, within=0.0)


@pytest.mark.parametrize(
    ("policy", "goodput", "bias"),
    [
        (lambda: Rounds(128, 16, "all"), 0.22, 1.0),
        (lambda: Rounds(128, 16, "all", 0.25, "cancel"), 0.36, 0.68),
        (lambda: Rounds(128, 16, "all", 1.0, "carry"), 0.96, 0.98),
        (lambda: WindowedFifo(128, 16, "all", 384), 0.74, 1.0),
    ],
    ids=["fifo", "cancel", "partial", "window"],
)
def test_published_policies_come_out_as_in_the_notes(policy, goodput, bias):
    outcome = Simulation(policy(), [Load()], TAIL, 16).run(40)
    assert outcome.goodput == pytest.approx(goodput, abs=0.02)
    assert outcome.length_bias == pytest.approx(bias, abs=0.015)


def test_ours_leaves_nothing_idle_within_the_age_bound_and_without_bias():
    policy = Pacing(Config(batch=2048, group=16, eta=4, capacity=1024), {"all": 1})
    outcome = Simulation(policy, [Load()], Cluster(decode=1024, gradient=774), 16).run(40)
    assert outcome.goodput >= 0.95
    assert outcome.age_max <= 4
    assert abs(outcome.length_bias - 1) <= 0.02  # 40 steps: what is in flight at the end weighs more than in 200
    assert outcome.cancelled == 0


@pytest.mark.parametrize("seed", range(3))
def test_makespan_of_an_area_bound_trace_is_near_its_lower_bound(seed):
    policy = Pacing(Config(batch=512 * 16, group=16, eta=0, capacity=256), {"all": 1}, until=1)
    outcome = Simulation(policy, [Load()], Cluster(decode=256), 16, seed).run(1)
    assert outcome.seconds / outcome.bound <= 1.06


def test_spare_groups_report_the_bias_of_cancelling():
    policy = Pacing(Config(batch=512, group=16, eta=0, capacity=256, spare=0.25), {"all": 1})
    outcome = Simulation(policy, [Load()], Cluster(decode=256), 16).run(10)
    assert outcome.cancelled > 0
    assert outcome.length_bias < 0.8
    assert policy.kept_over_started < 1


def test_equal_rollouts_take_their_closed_form():
    policy = Pacing(Config(batch=8, group=4, eta=0), {"all": 1}, until=3)
    load = Load(median=10.0, between=0.0, within=0.0, verify=2.0)
    outcome = Simulation(policy, [load], Cluster(decode=4, verify=1, gradient=5.0), 4).run(3)
    # eight on four slots end at 10 and 20; one verifier grades the last four one after the other; then the step
    assert outcome.seconds == pytest.approx(3 * (20 + 4 * 2 + 5))
    assert outcome.utilisation["verify"] == pytest.approx(8 * 2 / 33)
    assert outcome.age_max == 0


def test_those_that_wait_for_a_worker_are_served_by_priority_and_then_in_order():
    served = []

    class Told(Pacing):
        def finished(self, ticket, oldest_version, tokens=1.0):
            served.append((ticket.domain, ticket.group))
            super().finished(ticket, oldest_version, tokens)

    loads = [replace(EVEN, name="low"), replace(EVEN, name="urgent", priority=1)]
    policy = Told(Config(batch=6, group=1, eta=0), {"low": 1, "urgent": 1}, until=1)
    Simulation(policy, loads, Cluster(decode=1), 1).run(1)
    # they are opened in turns, and the first of them finds the worker free
    assert served == [("low", 0), ("urgent", 1), ("urgent", 3), ("urgent", 5), ("low", 2), ("low", 4)]


def test_lost_rollouts_are_drawn_again_one_by_one():
    policy = Pacing(Config(batch=4096, group=16, eta=0, attempts=8), {"all": 1}, until=1)
    outcome = Simulation(policy, [EVEN], Cluster(decode=0, failure=0.05), 16).run(1)
    assert outcome.trained == 4096
    assert outcome.started == 4096 + outcome.failed
    assert outcome.failed / 4096 == pytest.approx(0.05 / 0.95, abs=0.012)  # p / (1 - p)


def test_a_policy_that_stops_is_found():
    class Stuck(Rounds):
        def admit(self):
            return Wait("nothing")

    with pytest.raises(TemperError, match="nothing runs"):
        Simulation(Stuck(1, 1, "all"), [EVEN], TAIL, 1).run(1)


def test_the_bottleneck_is_named_with_what_widening_it_brings():
    ledger = Ledger()
    ledger.spend("decode", "a", 80.0)
    ledger.spend("verify", "a", 60.0)
    ledger.spend("verify", "b", 60.0)
    # decode 80 / 2 = 40; verification 120 / 2 = 60, with three workers 40 too
    assert str(ledger.suggestion({"decode": 2, "verify": 2})) == ("verify is the bottleneck: 3 workers would add 50%")
    assert ledger.suggestion({"decode": 2, "verify": 3}) is None


def test_a_scenario_compares_policies_under_the_same_rules():
    scenario = Scenario(
        steps=3, policy=Config(batch=64, group=8, eta=2, capacity=64), cluster=Cluster(decode=64, verify=1),
        loads=(Load(verify=200.0),),
    )  # fmt: skip
    outcome, suggestion = simulate(scenario)
    assert outcome.trained == 192
    assert suggestion is not None
    assert suggestion.stage == "verify"
    assert {name: row.trained for name, row in compare(scenario).items()} == dict.fromkeys(compare(scenario), 192)


def test_a_cluster_that_loses_nearly_all_is_given_up():
    scenario = Scenario(
        steps=1, policy=Config(batch=8, group=8, capacity=8), cluster=Cluster(decode=8, failure=0.99), loads=(EVEN,)
    )
    with pytest.raises(ConfigError, match=r"cluster\.failure below 0\.99"):
        simulate(scenario)


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ({"steps": 0}, "steps"),
        ({"cluster": {"failure": float("nan")}}, "cluster.failure"),
        ({"cluster": {"failure": 1.0}}, "cluster.failure"),
        ({"cluster": {"gradient": float("inf")}}, "cluster.gradient"),
        ({"cluster": {"tool": -1}}, "cluster.tool"),
        ({"loads": [{"cap": 0}]}, r"loads\[0\].cap"),
    ],
)
def test_a_scenario_of_no_amounts_is_refused(wrong, named):
    with pytest.raises(ConfigError, match=f"scenario: {named}: Expected"):
        config.build(Scenario, wrong, "scenario")
