"""BFCL's records as samples, with records of our own in the shapes of its files."""

import json
from pathlib import Path
from typing import Any

from benchmarks.toolcalls.bfcl_files import read
from prime_inference.toolcalls.suite.public import BFCL_FILES

PARAMETERS: dict[str, Any] = {
    "type": "dict",
    "properties": {
        "radius": {"type": "float"},
        "style": {"type": "dict", "properties": {"width": {"type": "integer"}, "colour": {"type": "string"}}},
        "unit": {"type": "string"},
    },
    "required": ["radius"],
}


def written(folder: Path, *calls: dict[str, Any]) -> None:
    (folder / "possible_answer").mkdir()
    for category in BFCL_FILES:
        name = f"BFCL_v4_{category}.json"
        records: tuple[list[Any], list[Any]] = ([], [])
        if category == "simple_python":
            for number, call in enumerate(calls):
                records[0].append(
                    {"id": f"{number}", "question": [], "function": [{"name": "f", "parameters": PARAMETERS}]}
                )
                records[1].append({"id": f"{number}", "ground_truth": [{"f": call}]})
        for path, lines in zip((folder / name, folder / "possible_answer" / name), records, strict=True):
            path.write_text("".join(json.dumps(line) + "\n" for line in lines))


def test_an_answer_becomes_a_right_call_in_declared_order_and_wrong_ones_beside_it(tmp_path: Path) -> None:
    written(tmp_path, {"unit": ["m", ""], "style": [{"colour": ["red"], "width": [2, 3]}], "radius": [1.5, 2]})
    (sample,) = read(tmp_path).samples
    assert [json.dumps(one) for one in sample.right] == [
        '{"radius": 1.5, "style": {"width": 2, "colour": "red"}, "unit": "m"}'
    ]
    assert ("missing_key", {"style": {"width": 2, "colour": "red"}, "unit": "m"}) in sample.wrong
    assert [name for name, _ in sample.wrong] == ["missing_key", *["another_type"] * 3]


def test_answers_that_their_own_schema_forbids_or_does_not_speak_of_are_left_out_and_counted(tmp_path: Path) -> None:
    written(tmp_path, {"radius": ["wide"]}, {"radius": [1], "style": [{"size": [1]}]}, {"radius": [1], "unit": [""]})
    taken = read(tmp_path)
    assert (taken.functions, taken.answers, taken.not_fitting, taken.with_undeclared_keys) == (1, 3, 1, 1)
    assert taken.samples[0].right == ({"radius": 1},)
