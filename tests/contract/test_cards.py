"""Every domain that the registry knows has a current error card, and that card lets it be trained on."""

from __future__ import annotations

import pytest

from temper.core import registry
from temper.core.errors import MissingError
from temper.verifiers.audit import cards


@pytest.mark.nightly
@pytest.mark.parametrize("name", sorted(registry.names("domains")))
def test_a_domain_may_be_trained_on_without_an_exception(name: str) -> None:
    try:
        problem = cards.problem(name)
    except MissingError as error:
        pytest.skip(str(error))
    assert problem == "", f"temper audit {name}"


@pytest.mark.nightly
@pytest.mark.parametrize("name", sorted(registry.names("domains")))
def test_a_card_stands_on_enough_tasks_each_way(name: str) -> None:
    card = cards.load(registry.find("domains", name))
    assert card is not None
    assert min(card.false_positives.tasks, card.false_negatives.tasks) >= cards.DISTINCT
