"""The small decisions of the local stack."""

import json
import socket
from pathlib import Path

import pytest
import yaml

from prime_inference.local import memory
from prime_inference.local.backoff import LONGEST_PAUSE_S, STEADY_AFTER_S, ends_after, pause_s
from prime_inference.local.credentials import gateway_secret, write_frontend, write_running
from prime_inference.local.errors import UpError
from prime_inference.local.instances import Instances, instances_in
from prime_inference.local.model import describe, find_model
from prime_inference.local.ports import listening
from prime_inference.local.state_dir import StateDir


def test_pauses_double_up_to_the_longest() -> None:
    pauses = [pause_s(ends) for ends in range(1, 12)]
    assert pauses == sorted(pauses)
    assert pauses[0] < 1
    assert pauses[-1] == LONGEST_PAUSE_S


def test_a_process_that_ran_steadily_starts_counting_anew() -> None:
    assert ends_after(5, STEADY_AFTER_S + 1) == 1
    assert ends_after(5, 1) == 6


def test_a_port_in_use_is_told_with_the_cure() -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        with pytest.raises(UpError, match="--port"):
            listening("127.0.0.1", listener.getsockname()[1])


def test_an_address_that_is_not_ours_is_told() -> None:
    with pytest.raises(UpError, match="cannot listen"):
        listening("192.0.2.77", 8000)


def test_too_little_memory_is_told_before_anything_starts() -> None:
    memory.check_memory(10_000_000_000, memory.cpu_stack_bytes(2, 269_000_000))
    with pytest.raises(UpError, match="too little memory"):
        memory.check_memory(4_000_000_000, memory.cpu_stack_bytes(2, 269_000_000))
    with pytest.raises(UpError, match="too little memory"):
        memory.check_memory(16_000_000_000, memory.mocker_stack_bytes(128))


def test_a_containers_limit_counts_where_it_is_less(tmp_path: Path) -> None:
    limit = tmp_path / "memory.max"
    assert memory.available_bytes(9, limit) == 9
    for text, expected in (("max\n", 9), ("4\n", 4), ("12\n", 9)):
        limit.write_text(text)
        assert memory.available_bytes(9, limit) == expected


def test_instances_are_counted_by_pool() -> None:
    listed = [
        {"component": "backend", "endpoint": "generate"},
        {"component": "backend", "endpoint": "clear_kv_blocks"},
        {"component": "prefill", "endpoint": "generate"},
    ]
    assert instances_in(json.dumps({"instances": listed}).encode()) == Instances(prefill=1, decode=1)
    assert instances_in(b"not json") == instances_in(b"{}") == Instances(0, 0)


def test_one_state_folder_serves_one_stack(tmp_path: Path) -> None:
    state = StateDir(tmp_path / "state")
    with state.locked():
        with pytest.raises(UpError, match="another `prime-inference up`"), state.locked():
            pass
    with state.locked():
        pass


def test_a_folder_of_something_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("years of work")
    mode = tmp_path.stat().st_mode
    with pytest.raises(UpError, match="something else"), StateDir(tmp_path).locked():
        pass
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]
    assert tmp_path.stat().st_mode == mode


def test_what_a_killed_stack_left_is_not_taken_for_a_running_one(tmp_path: Path) -> None:
    state = StateDir(tmp_path / "state")
    with state.locked():
        write_running(state, url="http://127.0.0.1:1")
    assert state.running_file.exists()
    with state.locked():
        assert not state.running_file.exists()


def test_key_and_secret_are_kept_and_an_empty_file_is_made_anew(tmp_path: Path) -> None:
    state = StateDir(tmp_path / "state")
    with state.locked():
        state.secret_file.write_text("")
        secret = gateway_secret(state)
        assert len(secret) > 20
        assert gateway_secret(state) == secret
        assert state.secret_file.stat().st_mode & 0o077 == 0


def test_a_new_frontend_changes_our_deployment_and_leaves_others_alone(tmp_path: Path) -> None:
    state = StateDir(tmp_path)
    others = {"name": "burst", "frontends": ["http://elsewhere:8000"]}
    ours = {"name": "local", "frontends": ["http://127.0.0.1:1"]}
    state.fleet_file.write_text(yaml.safe_dump({"deployments": [ours, others]}))
    write_frontend(state, 2)
    written = yaml.safe_load(state.fleet_file.read_text())["deployments"]
    assert written == [{"name": "local", "frontends": ["http://127.0.0.1:2"]}, others]


def test_a_state_folder_that_cannot_be_made_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UpError, match="--state-dir"), StateDir(tmp_path / "file" / "state").locked():
        pass


@pytest.mark.parametrize("wanted", ["no-such-model", "./nowhere", "/nowhere", "a/b/c"])
def test_an_unknown_model_is_told(wanted: str) -> None:
    with pytest.raises(UpError, match="unknown model"):
        find_model(wanted, print)


@pytest.mark.parametrize(
    ("name", "files", "words"),
    [
        ("my model", {}, "Rename the folder"),
        ("m", {"config.json": b"[]"}, "config.json is not a JSON object"),
        ("m", {"config.json": b"\xff"}, "cannot read .*config.json"),
        ("m", {"config.json": b"{}", "tokenizer_config.json": b"[]", "m.safetensors": b""}, "is not a JSON object"),
        (
            "m",
            {"config.json": b"{}", "tokenizer.json": b"{}", "m.safetensors": b"", "chat_template.jinja": b"\xff"},
            "cannot read .*jinja",
        ),
    ],
)
def test_whatever_is_wrong_with_a_models_folder_is_told(
    tmp_path: Path, name: str, files: dict[str, bytes], words: str
) -> None:
    (tmp_path / name).mkdir()
    for file, content in files.items():
        (tmp_path / name / file).write_bytes(content)
    with pytest.raises(UpError, match=words):
        find_model(str(tmp_path / name), print)


def test_a_hub_id_that_cannot_be_one_is_told() -> None:
    with pytest.raises(UpError, match="cannot fetch the model foo bar/baz"):
        find_model("foo bar/baz", print)


def test_a_folder_that_is_no_model_is_told(tmp_path: Path) -> None:
    with pytest.raises(UpError, match=r"config\.json"):
        describe(tmp_path, "m")
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(UpError, match="not JSON"):
        describe(tmp_path, "m")
    (tmp_path / "config.json").write_text('{"max_position_embeddings": 77}')
    with pytest.raises(UpError, match="tokenizer"):
        describe(tmp_path, "m")
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(UpError, match="weights"):
        describe(tmp_path, "m")
    (tmp_path / "model.safetensors").write_bytes(b"12345")
    assert describe(tmp_path, "m").max_context_tokens == 77
