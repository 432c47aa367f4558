"""The loaders of the public suites, with records of our own in exactly the shapes of theirs (seen in their repositories)."""

import json
from pathlib import Path
from typing import Any

import pytest

from prime_inference.toolcalls.declared import declare
from prime_inference.toolcalls.suite.cases import Case
from prime_inference.toolcalls.suite.public import BFCL_FILES, UnknownLayout, public_cases
from prime_inference.toolcalls.verdict import Verdict, judge


def written(folder: Path, name: str, *lines: Any) -> None:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines), encoding="utf-8")


def parameters_of(case: Case) -> Any:
    return case.tools[0]["function"]["parameters"]


def verdict(case: Case, arguments: Any) -> Verdict:
    return judge(case.tools[0]["function"]["name"], json.dumps(arguments), declare(case.tools).tools).verdict


def test_suites_that_are_not_there_are_named(tmp_path: Path) -> None:
    assert public_cases(tmp_path) == ([], {f"public/{name}": f"no files in {name}/" for name in ("bfcl", "kimi", "k2")})


def test_bfcls_records_are_requests_with_pythons_types(tmp_path: Path) -> None:
    types = {
        "type": "dict",
        "properties": {
            "radius": {"type": "float", "description": "in m"},
            "corners": {"type": "tuple", "items": {"type": "float"}},
            "style": {"type": "dict", "properties": {"colour": {"type": "string", "enum": ["red"]}}},
            "tags": {"type": "array", "items": {"type": "string"}},
        },
        "required": ["radius"],
    }
    turns = [{"role": "system", "content": "Be exact."}, {"role": "user", "content": "draw\u2028it"}]
    record = {
        "id": "live_simple_7-0-0",
        "question": [turns],
        "function": [{"name": "shapes.circle", "description": "Draws.", "parameters": types}],
    }
    for category in BFCL_FILES:
        written(tmp_path, f"bfcl/BFCL_v4_{category}.json", {**record, "id": f"{category}_0"})
    written(tmp_path, "bfcl/BFCL_v4_multi_turn_base.json", {"id": "multi_turn_base_0", "initial_config": {}})
    cases, _ = public_cases(tmp_path)
    assert [case.id for case in cases] == [f"bfcl.{category}_0" for category in BFCL_FILES]
    assert list(cases[0].messages) == turns
    assert cases[0].tools[0]["function"]["name"] == "shapes_circle"
    right = {"radius": 0.5, "corners": [1.0, 2.5], "style": {"colour": "red"}, "tags": ["a"]}
    assert verdict(cases[0], right) is Verdict.OK
    assert verdict(cases[0], {**right, "radius": "wide"}) is Verdict.SCHEMA_MISMATCH
    written(tmp_path, "bfcl/BFCL_v4_multiple.json", {"id": "x", "question": [[]]})
    with pytest.raises(UnknownLayout, match=r"multiple\.1: needs id, question and function"):
        public_cases(tmp_path)


def test_kimis_lines_are_bare_schemas_of_any_type(tmp_path: Path) -> None:
    tree = {
        "type": "object",
        "properties": {"kids": {"type": "array", "items": {"$ref": "#"}}, "schema": {"type": "string"}},
        "required": ["kids"],
    }
    number = {"type": "number", "enum": [1, 2.5], "description": "one of two", "default": 1}
    listed = {
        "$defs": {"Leaf": {"type": ["string", "null"]}},
        "anyOf": [{"type": "array", "items": {"$ref": "#/$defs/Leaf"}}, {"$ref": "#/$defs/Leaf"}],
    }
    chain = {
        "anyOf": [{"type": "null"}, {"type": "object", "properties": {"next": {"$ref": "#"}}, "required": ["next"]}]
    }
    folder = "kimi/testdata/walle_validator_cases/validator_cases"
    written(tmp_path, f"{folder}/TestOne/valid.jsonl", tree, {}, number)
    written(tmp_path, f"{folder}/TestTwo/valid.jsonl", listed, chain)
    written(tmp_path, f"{folder}/TestTwo/invalid.jsonl", {"type": "nothing"})
    cases, absent = public_cases(tmp_path)
    assert [case.id for case in cases] == [
        *(f"kimi.TestOne.valid.{n}" for n in (1, 2, 3)),
        *(f"kimi.TestTwo.valid.{n}" for n in (1, 2)),
    ]
    assert set(absent) == {"public/bfcl", "public/k2"}
    assert parameters_of(cases[0]) == tree
    assert all(case.tool_choice == "required" and case.calls_wanted for case in cases)
    for case, right, wrong in (
        (cases[0], {"kids": [{"kids": []}]}, {"kids": [{}]}),
        (cases[2], {"value": 2.5}, {"value": 2}),
        (cases[3], {"value": ["a", None]}, {"value": [1]}),
        (cases[4], {"value": {"next": {"next": None}}}, {"value": {"next": 5}}),
    ):
        assert verdict(case, right) is Verdict.OK
        assert verdict(case, wrong) is Verdict.SCHEMA_MISMATCH
    assert verdict(cases[1], {"value": [1, "x", None]}) is Verdict.OK


def test_schemas_that_say_nothing_are_left_out_and_counted(tmp_path: Path) -> None:
    written(tmp_path, "kimi/TestRefs/valid.jsonl", {"$ref": "#/$defs/nowhere"}, {"type": "string"})
    cases, absent = public_cases(tmp_path)
    assert [case.id for case in cases] == ["kimi.TestRefs.valid.2"]
    assert absent["public/kimi/left-out"] == "1 cases whose schemas say nothing"


def test_k2s_lines_are_whole_requests(tmp_path: Path) -> None:
    tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}
    call = {"id": "functions.f:0", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    request = {
        "model": "theirs",
        "messages": [
            {"role": "_input", "content": "context"},
            {"role": "user", "content": "go"},
            {"role": "assistant", "content": "", "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "functions.f:0", "content": "done"},
        ],
        "tools": [tool],
        "temperature": 0.6,
        "max_tokens": 64000,
        "stream": True,
    }
    written(tmp_path, "k2/samples.jsonl", request, {"messages": [{"role": "user", "content": "hi"}]})
    cases, _ = public_cases(tmp_path)
    assert [turn["role"] for turn in cases[0].messages] == ["system", "user", "assistant", "tool"]
    assert cases[0].options == {"max_tokens": 64000, "temperature": 0.6}
    assert cases[0].tools == (tool,)
    assert not cases[0].calls_wanted
    assert cases[1].tools == ()
    written(tmp_path, "k2/samples.jsonl", {"data_index": 1, "request": request})
    with pytest.raises(UnknownLayout, match=r"samples\.1: needs messages"):
        public_cases(tmp_path)
