"""The official JSON Schema test suite (MIT), drafts 4, 6, 7 and 2020-12 without the optional parts: as labelled."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from temper.verifiers import json_schema

DATA = Path(__file__).parents[3] / "shared" / "data"
VERSIONS = {
    "draft2020-12": "https://json-schema.org/draft/2020-12/schema",
    "draft7": "http://json-schema.org/draft-07/schema#",
    "draft6": "http://json-schema.org/draft-06/schema#",
    "draft4": "http://json-schema.org/draft-04/schema#",
}


def cases() -> Iterator[tuple[str, Any, Any, bool]]:
    """(name, schema, instance, whether it is valid)."""
    for draft, version in VERSIONS.items():
        for path in sorted(DATA.glob(f"**/tests/{draft}/*.json")):
            for group in json.loads(path.read_text("utf-8")):
                schema = group["schema"]
                if "localhost:1234" in json.dumps(schema) or path.stem in ("format", "vocabulary"):
                    continue  # a server that the suite expects; formats are annotations there and assertions here
                for test in group["tests"]:
                    whole = {"$schema": version, **schema} if isinstance(schema, dict) else schema
                    yield f"{draft}/{path.stem}: {test['description']}", whole, test["data"], test["valid"]


@pytest.mark.outside
def test_every_case_is_as_labelled() -> None:
    """Patterns with \\p{...}, which Python's expressions do not have, are refused and never misjudged."""
    pytest.importorskip("jsonschema", reason="the extra schema brings it")
    known = list(cases())
    if not known:
        pytest.skip("the JSON Schema test suite is not there")
    assert len(known) > 1500
    wrong, refused = [], 0
    for name, schema, instance, valid in known:
        try:
            right, _, _ = json_schema.check(json.dumps(instance), {"schema": schema, "equals": False})
        except json_schema.SchemaError:
            assert r"\\p{" in json.dumps(schema), name
            refused += 1
            continue
        if right != valid:
            wrong.append(name)
    assert not wrong
    assert refused < 10
