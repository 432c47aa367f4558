"""SmolLM2's chat template: its own prompt without tools, GLM's form of calls with them."""

import json
from pathlib import Path
from typing import Any

import pytest
from jinja2.sandbox import ImmutableSandboxedEnvironment

from prime_inference.local.credentials import write_gateway_files
from prime_inference.local.model import LocalModel, describe
from prime_inference.local.smollm2 import CHAT_TEMPLATE
from prime_inference.local.state_dir import StateDir
from prime_inference.toolcalls.declared import declare
from prime_inference.toolcalls.glm import Call, Decoder
from prime_inference.toolcalls.serving import ToolFormat

TOOL = {
    "type": "function",
    "function": {"name": "find", "parameters": {"properties": {"q": {"type": "string"}, "n": {"type": "array"}}}},
}
USER = {"role": "user", "content": "Hi"}


def rendered(messages: list[dict[str, Any]], **context: Any) -> str:
    """As transformers renders it; Dynamo's minijinja is met in tests/e2e."""
    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    environment.filters["tojson"] = json.dumps
    template = environment.from_string(CHAT_TEMPLATE.read_text(encoding="utf-8"))
    return template.render(messages=messages, add_generation_prompt=True, **context)


def test_without_tools_the_prompt_is_the_one_the_model_was_trained_on() -> None:
    assert rendered([USER]) == (
        "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
        "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    )
    assert rendered([{"role": "system", "content": "Be short."}, USER]).startswith(
        "<|im_start|>system\nBe short.<|im_end|>\n<|im_start|>user"
    )


def test_tools_stand_in_the_system_prompt_one_a_line() -> None:
    prompt = rendered([{"role": "system", "content": "Be short."}, USER], tools=[TOOL, TOOL])
    assert prompt.count(json.dumps(TOOL["function"]) + "\n") == 2
    assert prompt.startswith("<|im_start|>system\nBe short.\n\n")


def test_a_past_call_stands_in_the_very_form_that_the_gateway_reads() -> None:
    arguments = {"q": "a < b", "n": [1, "x"]}
    call = {"id": "c", "type": "function", "function": {"name": "find", "arguments": arguments}}
    prompt = rendered(
        [
            USER,
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "c", "content": [{"type": "text", "text": "found"}]},
        ],
        tools=[TOOL],
    )
    turn = prompt.split("<|im_start|>assistant\n")[1].split("<|im_end|>")[0]
    decoder = Decoder(declare([TOOL]).tools)
    assert [*decoder.feed(turn), *decoder.finish(natural=True)] == [Call("find", '{"q": "a < b", "n": [1, "x"]}')]
    assert "<|im_start|>tool\nfound<|im_end|>" in prompt


@pytest.mark.parametrize("where", ["chat_template.jinja", "tokenizer_config.json"])
@pytest.mark.parametrize(
    ("template", "format_", "thinks"),
    [
        ("{{ x }}", "engine", False),
        ("<arg_key>", "glm", False),
        ("<think><arg_key>", "glm", True),
        ("<think>", "engine", False),
    ],
)
def test_a_folders_chat_template_says_who_reads_its_calls(
    tmp_path: Path, where: str, template: str, format_: str, thinks: bool
) -> None:
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "model.safetensors").write_bytes(b"")
    (tmp_path / "tokenizer.json").write_text("{}")
    settings = {"chat_template": template}
    (tmp_path / where).write_text(template if where.endswith("jinja") else json.dumps(settings))
    model = describe(tmp_path, "m")
    assert (model.tool_format, model.thinks) == (ToolFormat(format_), thinks)


def test_the_gateway_learns_of_the_format_from_its_fleet_file(tmp_path: Path) -> None:
    from gateway.fleet.registry import load_fleet

    state = StateDir(tmp_path)
    for model in (LocalModel(tmp_path, "m", None, 1), LocalModel(tmp_path, "m", None, 1, ToolFormat.GLM, thinks=True)):
        write_gateway_files(state, model, None, 8101)
        tools = load_fleet(state.fleet_file).models["m"].tools
        assert tools.format is model.tool_format
        assert tools.thinking is model.thinks
        assert (tools.tokenizer == tmp_path) is (model.tool_format is ToolFormat.GLM)
