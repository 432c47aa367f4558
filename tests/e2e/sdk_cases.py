"""What an OpenAI SDK user does, as cases. Run as a script with whatever major of `openai` is on the path:

python sdk_cases.py URL KEY MODEL     prints {"version": ..., "cases": {name: "ok" | the traceback}}
"""

import concurrent.futures
import json
import sys
import time
import traceback
import warnings
from collections.abc import Callable

import openai
from openai import OpenAI

CASES: list[Callable[[OpenAI, str], None]] = []
# Every token of the answer leads the next likely by a logit or more: bfloat16 rounding in another kernel, which flips the
# near ties of so small a model (docs/adr/0004), does not change it.
QUESTION = [{"role": "user", "content": "Name the capital of France."}]


def case(function: Callable[[OpenAI, str], None]) -> Callable[[OpenAI, str], None]:
    CASES.append(function)
    return function


@case
def models_are_listed(client: OpenAI, model: str) -> None:
    assert model in [entry.id for entry in client.models.list()]
    assert client.models.retrieve(model).owned_by == "prime-inference"


@case
def a_chat_is_answered_rightly(client: OpenAI, model: str) -> None:
    answer = client.chat.completions.create(model=model, messages=QUESTION, max_tokens=20, temperature=0)
    assert "Paris" in (answer.choices[0].message.content or "")
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage is not None
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens


@case
def a_stream_has_the_order_sdks_rely_on(client: OpenAI, model: str) -> None:
    options = {"include_usage": True}
    stream = client.chat.completions.create(
        model=model, messages=QUESTION, max_tokens=20, temperature=0, stream=True, stream_options=options
    )
    chunks = list(stream)
    *parts, last = chunks
    assert parts[0].choices[0].delta.role == "assistant"
    assert all(part.choices[0].finish_reason is None for part in parts[:-1])
    assert parts[-1].choices[0].finish_reason == "stop"
    assert last.choices == []
    assert last.usage is not None
    assert last.usage.completion_tokens > 0
    assert len({(part.id, part.created, part.model) for part in chunks}) == 1
    assert "Paris" in "".join(part.choices[0].delta.content or "" for part in parts)


@case
def a_stream_without_the_option_has_no_usage_chunk(client: OpenAI, model: str) -> None:
    chunks = list(client.chat.completions.create(model=model, messages=QUESTION, max_tokens=3, stream=True))
    assert all(chunk.choices for chunk in chunks)


@case
def the_streaming_helper_gives_the_same_answer(client: OpenAI, model: str) -> None:
    if not hasattr(client.chat.completions, "stream"):
        return
    with client.chat.completions.stream(model=model, messages=QUESTION, max_tokens=20, temperature=0) as stream:
        content = stream.get_final_completion().choices[0].message.content
    assert "Paris" in (content or "")


@case
def completions_are_answered_streaming_and_not(client: OpenAI, model: str) -> None:
    whole = client.completions.create(model=model, prompt="Once upon a time", max_tokens=8, temperature=0)
    parts = client.completions.create(model=model, prompt="Once upon a time", max_tokens=8, temperature=0, stream=True)
    assert whole.choices[0].text == "".join(part.choices[0].text for part in parts if part.choices)
    assert whole.choices[0].finish_reason == "length"


@case
def the_second_turn_finds_the_first_in_the_cache(client: OpenAI, model: str) -> None:
    story = " ".join(f"Fact {n}: the number {n} comes before {n + 1}." for n in range(40))
    messages: list[dict[str, str]] = [{"role": "user", "content": f"{story} Say yes. {time.time()}"}]
    first = client.chat.completions.create(model=model, messages=messages, max_tokens=8, temperature=0)
    messages += [
        {"role": "assistant", "content": first.choices[0].message.content or ""},
        {"role": "user", "content": "And now?"},
    ]
    second = client.chat.completions.create(model=model, messages=messages, max_tokens=8, temperature=0)
    assert first.usage is not None
    assert second.usage is not None
    assert second.usage.prompt_tokens_details is not None
    cached = second.usage.prompt_tokens_details.cached_tokens or 0
    assert cached >= first.usage.prompt_tokens - 64, (cached, first.usage.prompt_tokens)


@case
def parallel_requests_are_all_answered(client: OpenAI, model: str) -> None:
    def ask(number: int) -> str:
        messages = [{"role": "user", "content": f"Say the number {number}."}]
        answer = client.chat.completions.create(model=model, messages=messages, max_tokens=8, temperature=0)
        return answer.id

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        assert len(set(pool.map(ask, range(8)))) == 8


@case
def a_stream_can_be_left_in_the_middle(client: OpenAI, model: str) -> None:
    messages = [{"role": "user", "content": "Tell me a long story about the sea."}]
    stream = client.chat.completions.create(model=model, messages=messages, max_tokens=400, stream=True)
    for count, _ in enumerate(stream):
        if count == 3:
            break
    stream.close()


@case
def errors_have_the_sdks_classes(client: OpenAI, model: str) -> None:
    def raised(error: type[Exception], call: Callable[[], object]) -> Exception:
        try:
            call()
        except error as caught:
            return caught
        raise AssertionError(f"no {error.__name__}")

    def create(**fields: object) -> Callable[[], object]:
        return lambda: client.chat.completions.create(**{"model": model, "messages": QUESTION, **fields})  # type: ignore[call-overload]

    wrong_key = client.with_options(api_key="sk-wrong")
    raised(openai.AuthenticationError, wrong_key.models.list)
    raised(openai.NotFoundError, create(model="no-such-model"))
    raised(openai.BadRequestError, create(temperature=9))
    long = raised(openai.BadRequestError, create(messages=[{"role": "user", "content": "a " * 20_000}]))
    assert getattr(long, "code", None) == "context_length_exceeded", long
    assert getattr(long, "request_id", None)


def main(url: str, key: str, model: str) -> None:
    warnings.simplefilter("ignore")
    results: dict[str, str] = {}
    with OpenAI(base_url=url, api_key=key, max_retries=0, timeout=120) as client:
        for run in CASES:
            try:
                run(client, model)
                results[run.__name__] = "ok"
            except Exception:  # noqa: BLE001 - the boundary of a case: what went wrong is its result
                results[run.__name__] = traceback.format_exc()
    print(json.dumps({"version": openai.__version__, "cases": results}))


if __name__ == "__main__":
    main(*sys.argv[1:])
