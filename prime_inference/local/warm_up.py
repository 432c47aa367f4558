"""The last step of starting: the frontend knows the workers, and one request has gone the whole way."""

import asyncio
import json
import time

from prime_inference.local.errors import UpError
from prime_inference.local.instances import Instances, instances_in
from prime_inference.local.probes import get, post

ASK_EVERY_S = 0.25
INSTANCES_WITHIN_S = 60.0
"""A ready worker registers within a second; a starved machine may take ten."""
SAMPLINGS: tuple[dict[str, float], ...] = ({"temperature": 0}, {"temperature": 1}, {"temperature": 0.7, "top_p": 0.9})
"""Without a warm-up of its own, the first sampled request on a CPU took 7 s more than the second."""
MODEL_SERVED_WITHIN_S = 20.0
"""The frontend reads tokenizer and template: a second or two."""
WARM_UP_WITHIN_S = 300.0
"""First requests of a shape compile kernels: seconds on a CPU, a minute for graphs on a GPU."""


async def until_instances(frontend_port: int, prefill: int, decode: int) -> None:
    """Returns when the frontend lists that many workers of each pool. Raises UpError."""
    seen = Instances(0, 0)
    try:
        async with asyncio.timeout(INSTANCES_WITHIN_S):
            while not seen.at_least(prefill, decode):
                await asyncio.sleep(ASK_EVERY_S)
                _, body = await get(f"http://127.0.0.1:{frontend_port}/health")
                seen = instances_in(body)
    except TimeoutError:
        raise UpError(
            f"the frontend knows {seen.prefill} of {prefill} prefill and {seen.decode} of {decode} decode workers after "
            f"{INSTANCES_WITHIN_S:g} s."
        ) from None


async def until_model_is_served(frontend_port: int, model: str) -> None:
    """Returns when the frontend lists the model, or after MODEL_SERVED_WITHIN_S: then the warm-up says what is wrong.

    Asked of the frontend itself: 503s through the gateway would open its breaker, and the first users would find it so.
    """
    give_up = time.monotonic() + MODEL_SERVED_WITHIN_S
    while time.monotonic() < give_up:
        status, body = await get(f"http://127.0.0.1:{frontend_port}/v1/models")
        if status == 200 and model in models_in(body):
            return
        await asyncio.sleep(ASK_EVERY_S)


def models_in(body: bytes) -> set[str]:
    """Of an answer of `/v1/models`; none of one that cannot be read."""
    try:
        return {entry["id"] for entry in json.loads(body)["data"]}
    except (ValueError, KeyError, TypeError):
        return set()


async def warm_up(gateway_url: str, key: str, model: str) -> None:
    """Requests through gateway, frontend, prefill, NIXL and decode, one for each way of sampling: the engines compile the
    code of each at its first use. Raises UpError with what came back.

    A frontend needs a moment after it lists the workers until it serves their model: 503 is asked again for so long.
    """
    give_up = time.monotonic() + MODEL_SERVED_WITHIN_S
    headers = {"content-type": "application/json", "authorization": f"Bearer {key}"}
    for sampling in SAMPLINGS:
        fields = {"model": model, "messages": [{"role": "user", "content": "Say hello."}], "max_tokens": 8, **sampling}
        status, answer = 503, b""
        while status == 503:
            status, answer = await post(
                f"{gateway_url}/chat/completions", json.dumps(fields).encode(), headers, WARM_UP_WITHIN_S
            )
            if status == 503 and time.monotonic() < give_up:
                await asyncio.sleep(ASK_EVERY_S)
            elif status != 200:
                raise UpError(
                    f"the warm-up request got {status or 'no answer'}: {answer.decode(errors='replace')[:300]}\n"
                    "Why is in the logs of the frontend and the workers."
                )
