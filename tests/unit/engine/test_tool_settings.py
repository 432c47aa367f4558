"""Who parses a GLM worker's calls, as its command line says it."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from prime_inference.engine.tool_settings import Parsing, tool_arguments


def test_a_worker_behind_our_gateway_names_no_parser_so_that_the_grammar_holds_from_the_first_token() -> None:
    for thinks in (True, False):
        assert tool_arguments(Parsing.GATEWAY, thinks=thinks) == ["--dyn-structural-tag", "false"]


def test_a_worker_whose_frontend_parses_names_both_parsers_and_says_the_tag_aloud() -> None:
    arguments = tool_arguments(Parsing.FRONTEND, thinks=True)
    pairs = dict(zip(arguments[::2], arguments[1::2], strict=True))
    assert json.loads(pairs.pop("--dyn-structural-tag")) == {"scope": "always", "schema": "auto"}
    assert pairs == {
        "--reasoning-parser": "glm45",
        "--dyn-tool-call-parser": "glm47",
        "--dyn-reasoning-parser": "glm45",
    }
    assert "--dyn-reasoning-parser" not in tool_arguments(Parsing.FRONTEND, thinks=False)


def test_of_a_model_of_another_format_nothing_is_said() -> None:
    assert tool_arguments(Parsing.NONE, thinks=True) == []


ASK = """
import json, sys
from prime_inference.engine.tool_settings import Parsing, tool_arguments
from prime_inference.engine.worker import stand_in_for_image_processor
stand_in_for_image_processor()
from dynamo.vllm.args import parse_args
from vllm.reasoning import ReasoningParserManager
seen = {}
for parsing in Parsing:
    config = parse_args(["--model", sys.argv[1], *tool_arguments(parsing, thinks=True)])
    tag = config.structural_tag and {key: config.structural_tag[key] for key in ("scope", "schema")}
    seen[parsing] = [config.dyn_tool_call_parser, config.dyn_reasoning_parser, tag, config.engine_args.reasoning_parser]
seen["engine"] = ReasoningParserManager.get_reasoning_parser("glm45").__name__
print(json.dumps(seen))
"""


@pytest.mark.slow
def test_dynamo_and_vllm_understand_the_settings(tmp_path: Path) -> None:
    """In a process of its own: both warn on import, and warnings are errors here."""
    (tmp_path / "config.json").write_text(json.dumps({"architectures": ["LlamaForCausalLM"], "model_type": "llama"}))
    command = (sys.executable, "-c", ASK, str(tmp_path))
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
    seen = json.loads(done.stdout.splitlines()[-1])
    assert seen["gateway"] == [None, None, None, ""]
    assert seen["frontend"] == ["glm47", "glm45", {"scope": "always", "schema": "auto"}, "glm45"]
    assert seen["engine"].startswith("Glm")
