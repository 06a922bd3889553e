"""What every domain promises, checked on each that the registry knows: streams, splits, gold answers, no free lunch.

Gold answers and attacks are played through the real environment, sandbox and verifier.
"""

from __future__ import annotations

import asyncio
import itertools
import random
import sys
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Any, get_args, get_type_hints

import msgspec
import pytest

from temper.core import registry
from temper.core.protocols import Domain, Resources, SamplingParams, SandboxBackend, Verifier
from temper.core.task import Message, Split, Task, ToolCall
from temper.core.trace import Trace, Verdict
from temper.engines.scripted import ScriptedChat
from temper.models.chat import ChatFormat, chatml
from temper.models.load import DEFAULT, load
from temper.rollouts.episode import run_episode
from temper.verifiers.grading import grade
from temper.verifiers.pool import Pool

Play = Callable[[Domain, Sequence[tuple[Task, Sequence[Message]]]], list[tuple[Trace, Verdict]]]

NAMES = sorted(registry.names("domains"))
LEVELS = [(name, level) for name in NAMES for level in (1, 2, 3)]
SPINE = ["arithmetic", "code_repair", "sql", "tools"]  # which the recipes train on a CPU
AT_ONCE = 8


def domain_of(name: str) -> Domain:
    module, config = registry.configure("domains", name)
    return module.create(config)


def few(domain: Domain, n: int) -> int:
    """Of n episodes, as many as are played: a quarter where each loads a heavy library. Audits play hundreds."""
    return max(2, n // 4) if getattr(domain, "packages", ()) else n


def some(domain: Domain, level: int, n: int, split: Split = "train", seed: int = 0) -> list[Task]:
    return list(itertools.islice(domain.tasks(split, level, seed), n))


@pytest.fixture(scope="module")
def chat() -> ChatFormat:
    module, config = registry.configure("models.chat", "chatml")
    return module.create(config, load("tiny:").tokenizer)


@pytest.fixture(scope="module")
def play(chat: ChatFormat) -> Iterator[Play]:
    """play(domain, [(task, what the assistant says)]): each episode's trace and its verdict."""
    with asyncio.Runner() as runner:
        module, config = registry.configure("sandboxes", "local")
        backend = module.create(config)
        _, config = registry.configure("sandboxes", {"kind": "local", "paths": [sys.prefix]})
        stocked = module.create(config)  # for domains whose boxes need packages: those that are installed here
        pool = Pool(workers=1)
        runner.run(pool.__aenter__())
        verifiers: dict[str, Verifier] = {}  # to make one costs more than an episode

        def verifier(domain: Domain, task: Task, boxes: SandboxBackend) -> Verifier:
            name, settings = domain.verifier(task)
            key = f"{name} {sorted(settings.items())} {boxes is stocked}"
            if key not in verifiers:
                module, config = registry.configure("verifiers", {"kind": name, **settings})
                verifiers[key] = module.create(config, pool, boxes)
            return verifiers[key]

        async def one(domain: Domain, task: Task, script: Sequence[Message]) -> tuple[Trace, Verdict]:
            boxes = stocked if getattr(domain, "packages", ()) else backend
            resources = Resources(boxes, time.monotonic, random.Random(0))
            model = ScriptedChat(script, chat)
            limits = msgspec.structs.replace(task.limits, tokens=9999, turn_tokens=9999)  # a token is a byte here
            task = msgspec.structs.replace(task, limits=limits)
            trace, artifacts = await run_episode(
                task, domain.environment(task, resources), model, SamplingParams(max_tokens=9999), trace_id=task.id,
                seed=0, clock=time.monotonic,
            )  # fmt: skip
            return trace, await grade(task, trace, artifacts, verifier(domain, task, boxes))

        async def every(domain: Domain, plays: Sequence[tuple[Task, Sequence[Message]]]) -> list[Any]:
            room = asyncio.Semaphore(AT_ONCE)

            async def limited(work: Awaitable[Any]) -> Any:
                async with room:
                    return await work

            return await asyncio.gather(*(limited(one(domain, task, script)) for task, script in plays))

        def run(domain: Domain, plays: Sequence[tuple[Task, Sequence[Message]]]) -> list[Any]:
            for package in getattr(domain, "packages", ()):
                pytest.importorskip(package, reason=f"{domain.name} needs {package}, which an extra brings")
            return runner.run(every(domain, plays))

        yield run
        runner.run(pool.__aexit__(None, None, None))
        runner.run(backend.close())
        runner.run(stocked.close())


@pytest.mark.parametrize("most", [300, pytest.param(2000, marks=pytest.mark.nightly)])
@pytest.mark.parametrize(("name", "level"), LEVELS)
def test_a_level_has_thousands_of_distinct_tasks(name: str, level: int, most: int) -> None:
    domain = domain_of(name)
    for split, wanted in (("train", most), ("heldout", most // 4)):
        tasks = some(domain, level, wanted, split)  # type: ignore[arg-type]
        asked = {msgspec.json.encode([t.messages, t.start, t.sandbox and t.sandbox.files]) for t in tasks}
        assert len({task.id for task in tasks}) == len(asked) == wanted
        assert {(t.domain, t.split, t.level) for t in tasks} == {(domain.name, split, level)}


@pytest.mark.parametrize(("name", "level"), LEVELS)
def test_no_heldout_task_is_a_training_task_under_any_seed(name: str, level: int) -> None:
    domain = domain_of(name)

    def asked(split: Split, seed: int) -> set[bytes]:
        return {msgspec.json.encode([t.messages, t.reference]) for t in some(domain, level, 50, split, seed)}

    trained = set().union(*(asked("train", seed) for seed in range(3)))
    assert trained.isdisjoint(set().union(*(asked("heldout", seed) for seed in range(3))))


@pytest.mark.parametrize(("name", "level"), LEVELS)
def test_the_seed_decides_the_stream(name: str, level: int) -> None:
    domain, again = domain_of(name), domain_of(name)
    assert some(domain, level, 30, seed=7) == some(again, level, 30, seed=7)
    assert some(domain, level, 30, seed=7) != some(domain, level, 30, seed=8)


@pytest.mark.parametrize("name", NAMES)
def test_a_task_is_the_same_under_every_seed(name: str) -> None:
    domain = domain_of(name)
    first, second = ({t.id: t for t in some(domain, 1, 200, seed=seed)} for seed in (1, 2))
    for id in first.keys() & second.keys():
        provenance = first[id].provenance
        assert msgspec.structs.replace(second[id], provenance=provenance) == first[id]


@pytest.mark.parametrize(("name", "level"), LEVELS)
def test_gold_answers_score_one(name: str, level: int, play: Play) -> None:
    domain = domain_of(name)
    tasks = some(domain, level, few(domain, 8)) + some(domain, level, few(domain, 4), "heldout")
    for trace, verdict in play(domain, [(task, domain.gold(task)) for task in tasks]):
        assert verdict.score == 1.0, (verdict.evidence, trace.fault, trace.messages())


@pytest.mark.parametrize(("name", "level"), LEVELS)
def test_doing_nothing_and_echoing_the_prompt_score_zero(name: str, level: int, play: Play) -> None:
    domain = domain_of(name)
    tasks = some(domain, level, 4)
    plays = [(task, [Message("assistant", said)]) for task in tasks for said in ("done", "", task.messages[-1].content)]
    assert not any(verdict.score for _, verdict in play(domain, plays))


@pytest.mark.parametrize(("name", "level"), LEVELS)
def test_a_wrong_answer_scores_zero(name: str, level: int, play: Play) -> None:
    """The gold answer of a task is wrong for the next one that has another reference."""
    domain = domain_of(name)
    tasks = some(domain, level, few(domain, 8))
    plays = [
        (task, [*domain.gold(other), *[Message("assistant", "done")] * task.limits.turns])
        for task, other in itertools.pairwise(tasks)
        if domain.gold(task) != domain.gold(other)
    ]
    for trace, verdict in play(domain, plays):
        assert verdict.blame == "policy", (verdict, trace.fault)
        assert verdict.score == 0, trace.messages()


@pytest.mark.parametrize(("name", "level"), LEVELS)
def test_neither_the_prompt_nor_the_files_give_the_answer(name: str, level: int) -> None:
    domain = domain_of(name)
    for task in some(domain, level, 50):
        files = task.sandbox.files.values() if task.sandbox else ()
        seen = msgspec.json.encode([task.messages, task.tools, task.start]).decode() + b"".join(files).decode()
        said = [m.content for m in domain.gold(task) if len(m.content) > 4]
        said += [str(v) for m in domain.gold(task) for call in m.calls for v in call.arguments.values()]
        short = max(map(len, said), default=0) < 13  # words of the request, or of what is given
        assert short or not all(text in seen for text in said)
        assert msgspec.json.encode(task.reference).decode() not in seen


@pytest.mark.parametrize(("name", "level"), LEVELS)
def test_an_environment_runs_without_the_reference(name: str, level: int, play: Play) -> None:
    """What the model sees does not depend on it: the same conversation, to the letter."""
    domain = domain_of(name)
    tasks = some(domain, level, 2)
    seeing = [(task, domain.gold(task)) for task in tasks]
    blind = [(msgspec.structs.replace(task, reference=None), domain.gold(task)) for task in tasks]
    for (with_it, _), (without, _) in zip(play(domain, seeing), play(domain, blind), strict=True):
        assert without.fault is None
        assert with_it.messages() == without.messages()


@pytest.mark.parametrize(("name", "level"), LEVELS)
def test_wrong_calls_are_answered_and_may_be_followed_by_the_right_ones(name: str, level: int, play: Play) -> None:
    domain = domain_of(name)
    tasks = [task for task in some(domain, level, 2) if task.tools]
    for task in tasks:
        first, *rest = domain.gold(task)
        wrong = msgspec.structs.replace(first, calls=(ToolCall(first.calls[0].name, {"nonsense": 1}),))
        ((trace, verdict),) = play(domain, [(task, [wrong, first, *rest])])
        assert trace.messages()[2].content.startswith("error:"), trace.messages()
        assert verdict.score == 1.0, verdict


@pytest.mark.model
@pytest.mark.parametrize("style", get_args(get_type_hints(chatml.Config)["style"]))
@pytest.mark.parametrize("name", NAMES)
def test_the_gold_answer_is_within_the_limits_in_every_style_of_calls(name: str, style: str) -> None:
    """Counted by the default base's tokenizer, as a policy would sample it."""
    domain = domain_of(name)
    module, config = registry.configure("models.chat", {"kind": "chatml", "style": style})
    format = module.create(config, load(DEFAULT).tokenizer)
    for level in domain.levels:
        for task in some(domain, level, 40) + some(domain, level, 20, "heldout"):
            lengths = [len(format.write(message, task.tools)) for message in domain.gold(task)]
            assert max(lengths) <= task.limits.turn_tokens, (level, task.messages, domain.gold(task))
            assert sum(lengths) <= task.limits.tokens, (level, task.messages, domain.gold(task))
            assert len(lengths) <= task.limits.turns
            assert task.limits.turn_tokens <= SamplingParams().max_tokens  # what is sampled by default can be as long


@pytest.mark.model
@pytest.mark.parametrize("name", SPINE)
def test_an_episode_of_level_one_averages_at_most_96_tokens(name: str, play: Play) -> None:
    """Counted by the default base's tokenizer, prompt and tool outputs included, with the gold answer."""
    domain = domain_of(name)
    module, config = registry.configure("models.chat", "chatml")
    format = module.create(config, load(DEFAULT).tokenizer)
    tasks = some(domain, 1, 30)
    lengths = []
    for task, (trace, _) in zip(tasks, play(domain, [(task, domain.gold(task)) for task in tasks]), strict=True):
        ids: list[int] = []
        given: list[Message] = []
        after = None
        sampled = 0
        for message in trace.messages():
            if message.role == "assistant":
                ids += [*format.render(given, task.tools, after=after)]
                after = format.write(message, task.tools)
                ids += [*after]
                sampled += len(after)
                assert len(after) <= task.limits.turn_tokens
                given = []
            else:
                given.append(message)
        lengths.append(len(ids))
        assert sampled <= task.limits.tokens
    assert sum(lengths) / len(lengths) <= 96
