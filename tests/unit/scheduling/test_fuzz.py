"""A seeded fuzzer of `Pacing`: the age bound holds, nothing is lost or doubled, nothing deadlocks."""

import random

import pytest

from temper.scheduling.pacing import Config, Pacing, Ticket, Wait


def test_thousands_of_sequences_keep_every_promise():
    assert sum(sequence(seed) for seed in range(10_000)) > 100_000


@pytest.mark.nightly
@pytest.mark.timeout(7200)
def test_a_million_sequences_keep_every_promise():
    for seed in range(10_000, 1_010_000):
        sequence(seed)


def sequence(seed: int) -> int:
    """Run one sequence to its end; gives the number of events. Raises AssertionError where a promise is broken.

    The promises: no token is trained older than eta; a step has exactly its batch, of groups whose every slot finished
    once; no slot runs twice at a time; running samples stay within capacity and untrained ones within the slots;
    something always runs or may be trained until the last step; what was preempted is the next to start, and is never
    quarantined for it.
    """
    rng = random.Random(seed)
    size, steps = rng.randint(1, 4), rng.randint(1, 5)
    config = Config(
        group=size, batch=size * rng.randint(1, 4), eta=rng.randint(0, 4), capacity=rng.choice([0, 1, 3, 8]),
        attempts=rng.randint(1, 3), spare=rng.choice([0.0, 0.0, 0.0, 0.5]),
    )  # fmt: skip
    failure, slow = rng.choice([0.0, 0.1, 0.4]), rng.choice([0.05, 0.5])
    pacing = Pacing(config, {"a": 1, "b": rng.random(), "c": 2}, until=steps)
    running: dict[tuple[int, int], tuple[Ticket, int]] = {}
    finished: dict[int, dict[int, int]] = {}
    gone: set[int] = set()
    preempted: list[int] = []  # groups of such samples, the last one first
    begun: dict[tuple[int, int], int] = {}  # versions of samples that wait to go on with the tokens they have
    now, events = 0.0, 0
    while pacing.version < steps:
        now += rng.expovariate(1.0)
        pacing.tick(now)
        while rng.random() > slow and isinstance(ticket := pacing.admit(), Ticket):
            key = (ticket.group, ticket.slot)
            preempted = [number for number in preempted if number not in gone]
            assert not preempted or ticket.group == preempted.pop(0), "others go before what was preempted"
            assert key not in running, "a sample runs twice"
            assert ticket.group not in gone, "a group that is gone runs again"
            assert ticket.slot not in finished.get(ticket.group, {}), "a finished sample runs again"
            running[key] = (ticket, begun.pop(key, pacing.version))
            if rng.random() < 0.1:
                pacing.expect(ticket.group, rng.expovariate(0.1))
        assert not config.capacity or len(running) <= config.capacity
        assert pacing.running == len(running)
        chosen = pacing.batch()
        if not isinstance(chosen, Wait) and rng.random() > slow:
            assert len(chosen) * size == config.batch
            for number in chosen:
                versions = finished.pop(number)
                assert len(versions) == size, "a sample is missing"
                assert pacing.version - min(versions.values()) <= config.eta, "a token is too old"
            gone.update(chosen)
            for number in pacing.trained(chosen):
                assert config.spare, "a group was cancelled though nobody asked for it"
                gone.add(number)
                finished.pop(number, None)
                running = {key: value for key, value in running.items() if key[0] != number}
        elif running:
            key = rng.choice(sorted(running))
            ticket, version = running.pop(key)
            if rng.random() < failure / 2:
                assert pacing.failed(ticket, worker="w", preempted=True).startswith("preempted")
                preempted.insert(0, ticket.group)
            elif rng.random() < failure:
                if rng.random() < 0.5:
                    begun[key] = version
                said = pacing.failed(ticket, quarantine=rng.random() < 0.1, begun=key in begun)
                if said.startswith("quarantined"):
                    gone.add(ticket.group)
                    finished.pop(ticket.group, None)
                    running = {key: value for key, value in running.items() if key[0] != ticket.group}
            else:
                version = rng.randint(version, pacing.version)  # its first token may be newer than its start
                pacing.finished(ticket, version, rng.random())
                finished.setdefault(ticket.group, {})[ticket.slot] = version
        else:
            ticket = pacing.admit()
            stuck = isinstance(ticket, Wait) and isinstance(chosen, Wait)
            assert not stuck, f"deadlock: {ticket}, {chosen}"
            if isinstance(ticket, Ticket):
                preempted = [number for number in preempted if number not in gone][1:]
                key = (ticket.group, ticket.slot)
                running[key] = (ticket, begun.pop(key, pacing.version))
        assert pacing.occupied <= (config.eta + 1) * config.batch * (1 + config.spare)
        events += 1
    return events
