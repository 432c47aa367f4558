"""The KV of a request is computed by the prefill worker, published to the router, and pulled by the decode worker."""

import json
import re
import time
import uuid

import httpx
import pytest

from tests.support.stack import Stack

pytestmark = pytest.mark.e2e

BLOCK_TOKENS = 32


def kv_bytes_a_token(stack: Stack) -> int:
    """From the model's own configuration: keys and values of every layer, in bfloat16."""
    logged = (stack.state / "logs" / "decode-0.log").read_text(errors="replace")
    folder = logged.split("model='", 1)[1].split("'", 1)[0]
    with open(f"{folder}/config.json", encoding="utf-8") as file:
        config = json.load(file)
    head = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    return int(2 * config["num_hidden_layers"] * config["num_key_value_heads"] * head * 2)


def block_tokens(stack: Stack) -> int:
    """By the engine's own account: 32 on a CPU, vLLM's 16 on a GPU."""
    text = httpx.get(f"{stack.running['worker_urls']['decode-0']}/metrics", timeout=10).text
    (size,) = set(re.findall(r'vllm:cache_config_info{.*block_size="([0-9]+)"', text))
    return int(size)


def test_a_requests_kv_crosses_nixl_from_prefill_to_decode(real_stack: Stack) -> None:
    stack = real_stack

    def read() -> dict[str, float]:
        return {
            "transfers": stack.metric("decode-0", "vllm:nixl_xfer_time_seconds_count"),
            "bytes": stack.metric("decode-0", "vllm:nixl_bytes_transferred_sum"),
            "failed": stack.metric("decode-0", "vllm:nixl_num_failed_transfers_total"),
            "prefilled": stack.metric("prefill-0", "vllm:prompt_tokens_total"),
            "pulled": stack.metric("decode-0", "vllm:prompt_tokens_by_source_total", source="external_kv_transfer"),
            "cached": stack.metric("decode-0", "vllm:prompt_tokens_by_source_total", source="local_cache_hit"),
            "published": stack.metric(
                "prefill-0", "dynamo_component_kv_publisher_zmq_events_total", event_type="stored", stage="accepted"
            ),
            "applied": stack.metric(
                "frontend", "dynamo_component_kv_cache_events_applied_total", event_type="stored", status="ok"
            ),
        }

    before = read()
    text = " ".join(f"{uuid.uuid4().hex[:6]} is item {n}." for n in range(20))
    usage = stack.chat(f"{text} Which item is last?", max_tokens=4).raise_for_status().json()["usage"]
    deadline = time.monotonic() + 15
    while (after := read())["transfers"] == before["transfers"] or after["applied"] == before["applied"]:
        assert time.monotonic() < deadline, (before, after)
        time.sleep(0.5)
    grown = {name: after[name] - before[name] for name in before}

    # What the decode worker has of an earlier prompt's opening it does not pull (on a GPU blocks are small enough for
    # the template's first lines to be one).
    blocks = -(-(usage["prompt_tokens"] - int(grown["cached"])) // block_tokens(stack))
    assert usage["prompt_tokens"] > 4 * BLOCK_TOKENS
    assert grown["prefilled"] == usage["prompt_tokens"]
    assert grown["transfers"] == 1
    assert grown["failed"] == 0
    assert grown["cached"] < BLOCK_TOKENS
    assert grown["pulled"] + grown["cached"] >= usage["prompt_tokens"] - 1
    assert grown["bytes"] == blocks * block_tokens(stack) * kv_bytes_a_token(stack)
    assert grown["published"] >= 1
    assert grown["applied"] >= 1


def test_the_router_sends_a_known_prefix_where_it_lies_and_the_engine_finds_it(real_stack: Stack) -> None:
    text = " ".join(f"{uuid.uuid4().hex[:6]} is item {n}." for n in range(20))
    first = real_stack.chat(text, temperature=0).raise_for_status().json()
    deadline = time.monotonic() + 15
    while True:
        second = real_stack.chat(text, temperature=0).raise_for_status().json()
        if second["usage"]["prompt_tokens_details"]["cached_tokens"] > 0:
            break
        assert time.monotonic() < deadline, second
    assert first["usage"]["prompt_tokens_details"]["cached_tokens"] < BLOCK_TOKENS * 2
    assert second["usage"]["prompt_tokens_details"]["cached_tokens"] >= first["usage"]["prompt_tokens"] - BLOCK_TOKENS
    # Not the first's text: what is computed behind a cached prefix has other shapes, and these texts have near ties
    # (docs/kv.md; tests/e2e/test_kv_bytes.py compares the bytes).
    third = real_stack.chat(text, temperature=0).raise_for_status().json()
    assert third["usage"]["prompt_tokens_details"] == second["usage"]["prompt_tokens_details"]
    assert third["choices"][0]["message"]["content"] == second["choices"][0]["message"]["content"]


def test_a_settle_record_of_each_request_lies_in_valkey(real_stack: Stack) -> None:
    import redis

    request_id = f"settle-{uuid.uuid4().hex}"
    with real_stack.client() as client:
        body = {"model": real_stack.model, "messages": [{"role": "user", "content": "hi"}], "max_tokens": 3}
        client.post("/chat/completions", json=body, headers={"x-request-id": request_id}).raise_for_status()
    with redis.Redis(port=real_stack.running["valkey_port"]) as valkey:
        deadline = time.monotonic() + 5
        while True:
            records = [json.loads(fields[b"record"]) for _, fields in valkey.xrange("prime:settle")]
            found = [record for record in records if record["request_id"] == request_id]
            if found:
                break
            assert time.monotonic() < deadline
            time.sleep(0.1)
    assert found[0]["tenant"] == "local"
    assert found[0]["outcome"] == "ok"
    assert found[0]["completion_tokens"] > 0
    assert "hi" not in json.dumps(found[0]).replace("which", "")
