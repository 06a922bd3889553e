"""Settings as people mistype them: the error names the part that is wrong, and what came."""

from typing import Annotated

import pytest
from msgspec import Meta, Struct

from temper.core import config
from temper.core.errors import ConfigError, MissingError


class Stage(Struct, frozen=True, forbid_unknown_fields=True):
    share: Annotated[float, Meta(gt=0)] = 1.0


class Settings(Struct, frozen=True, forbid_unknown_fields=True):
    stages: tuple[Stage, ...] = ()
    budget: dict[str, config.Amount] = {}


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("stages.7.share=1", "below 2 after stages, got '7'"),
        ("stages.share=1", "below 2 after stages, got 'share'"),
        ("stages.-1.share=1", "got '-1'"),
        ("name.x=1", "name is a value, not a table"),
        ("stages.0.share.x=1", "stages.0.share is a value"),
        ("stages", "a setting like evaluation.tasks=40, got 'stages'"),
    ],
)
def test_an_override_that_fits_nowhere_is_named_where_it_goes_wrong(override, words):
    tree = {"name": "x", "stages": [{"share": 1.0}, {}]}
    with pytest.raises(ConfigError, match=words):
        config.apply(tree, [override])
    assert tree == {"name": "x", "stages": [{"share": 1.0}, {}]}


def test_overrides_reach_entries_of_lists_and_tables_that_are_not_there_yet():
    tree = {"stages": [{}, {}]}
    assert config.apply(tree, ("stages.1.share=2", "engine.slots=4", "stages.0={ share = 3 }")) is tree
    assert tree == {"stages": [{"share": 3}, {"share": 2}], "engine": {"slots": 4}}


@pytest.mark.parametrize(
    ("tree", "words"),
    [
        ({"stages": [{}, {"share": 0}]}, r"stages\[1\].share: Expected `float` > 0.0, got 0"),
        ({"stages": [{"share": float("nan")}]}, "> 0.0, got nan"),
        ({"budget": {"tokens": float("inf")}}, r"budget.*got \{'tokens': inf\}"),
        ({"budget": {"tokens": "many"}}, "Expected `float`, got `str`$"),
    ],
)
def test_a_value_out_of_bounds_is_said_with_what_came(tree, words):
    with pytest.raises(ConfigError, match=words):
        config.build(Settings, tree)


def test_a_file_that_is_not_there_or_is_a_directory_is_called_what_it_should_be(tmp_path):
    with pytest.raises(MissingError, match="no scenario at"):
        config.load(tmp_path / "none.toml", what="scenario")
    with pytest.raises(ConfigError, match=r"expected a TOML file at .*irectory"):
        config.load(tmp_path)
