"""Breakers, leases, limits and reloads in the request path, on real sockets and without Valkey."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.gateway.test_relay import CHAT, DONE, STREAM, UNARY, USAGE, WHOLE, chunk
from tests.support.gateway import RunningGateway, gateway
from tests.support.upstream import answers, breaks, hangs, sends, upstream

PATH = "/chat/completions"


async def status_of(gw: RunningGateway, body: dict[str, Any] = CHAT, **headers: str) -> tuple[int, dict[str, str]]:
    async with gw.session.post(gw.url + PATH, json=body, headers=headers) as response:
        await response.read()
        return response.status, {name.lower(): value for name, value in response.headers.items()}


async def test_five_failures_open_a_breaker_and_the_next_request_goes_elsewhere_at_once(tmp_path: Path) -> None:
    async with (
        upstream(answers(b"{}", status=500)) as bad,
        upstream(answers(UNARY)) as good,
        gateway(tmp_path, [bad.url, good.url]) as gw,
    ):
        for _ in range(8):
            assert (await status_of(gw))[0] == 200
            await asyncio.sleep(0.05)
        assert len(bad.requests) == 5
        assert gw.metric("prime_gateway_breaker_state", deployment="d0", state="open") == 1
        assert gw.metric("prime_gateway_attempt_endings_total", deployment="d0", ending="upstream_error") == 5
        assert gw.metric("prime_gateway_breaker_verdicts_total", deployment="d0", verdict="open") == 3


async def test_with_every_breaker_open_the_answer_is_503_and_a_trickle_goes_through(tmp_path: Path) -> None:
    async with upstream(answers(b"{}", status=503)) as bad, gateway(tmp_path, [bad.url]) as gw:
        for _ in range(30):
            status, headers = await status_of(gw)
            assert status == 503
            assert "retry-after" in headers
            await asyncio.sleep(0.02)
        assert 5 < len(bad.requests) < 25


async def test_a_busy_answer_is_not_counted(tmp_path: Path) -> None:
    async with upstream(answers(b"{}", status=529)) as busy, gateway(tmp_path, [busy.url]) as gw:
        for _ in range(8):
            assert (await status_of(gw))[0] == 429
        assert len(busy.requests) == 8


async def test_a_refusal_of_the_gateway_itself_is_a_502_and_no_reason_to_move(tmp_path: Path) -> None:
    async with upstream(answers(b"{}", status=401)) as refusing, gateway(tmp_path, [refusing.url]) as gw:
        assert (await status_of(gw))[0] == 502
        labels = {"deployment": "d0", "ending": "upstream_refused_us"}
        assert gw.metric("prime_gateway_attempt_endings_total", **labels) == 1


async def test_a_full_deployment_is_passed_over_and_a_full_fleet_is_a_429(tmp_path: Path) -> None:
    one = {"capacity": {"requests": 1}}
    async with (
        upstream(hangs(chunk("a"))) as first,
        upstream(hangs(chunk("a"))) as second,
        gateway(tmp_path, [first.url, second.url], deployment=one, queue_seconds=0.2) as gw,
    ):
        running = [await gw.session.post(gw.url + PATH, json=STREAM) for _ in range(2)]
        assert [len(first.requests), len(second.requests)] == [1, 1]
        status, headers = await status_of(gw)
        assert status == 429
        assert int(headers["retry-after"]) >= 1
        assert headers["x-should-retry"] == "true"
        for response in running:
            response.close()
        async with asyncio.timeout(1):
            while gw.metric("prime_gateway_admitted_requests", deployment="d0"):
                await asyncio.sleep(0.01)


async def test_who_waits_gets_the_capacity_that_comes_free(tmp_path: Path) -> None:
    async with upstream(answers(UNARY, pause_s=0.3)) as up:
        async with gateway(tmp_path, [up.url], deployment={"capacity": {"requests": 1}}) as gw:
            statuses = await asyncio.gather(*(status_of(gw) for _ in range(4)))
    assert [status for status, _ in statuses] == [200] * 4


async def test_batch_keys_do_not_wait_and_their_clients_should_not_retry_by_themselves(tmp_path: Path) -> None:
    async with upstream(hangs(chunk("a"))) as up:
        two = {"capacity": {"requests": 2}}
        async with gateway(tmp_path, [up.url], deployment=two, key={"priority": "batch"}) as gw:
            async with gw.session.post(gw.url + PATH, json=STREAM):
                status, headers = await status_of(gw)
                assert (status, headers["x-should-retry"]) == (429, "false")
                assert int(headers["retry-after"]) >= 10


async def test_what_is_reserved_stays_free_for_its_tenant(tmp_path: Path) -> None:
    promised = [{"name": "other", "reserved": [{"deployment": "d0", "requests": 4, "tokens": 4000}]}]
    async with upstream(hangs(chunk("a"))) as up:
        four = {"capacity": {"requests": 4, "tokens": 4000}}
        async with gateway(tmp_path, [up.url], deployment=four, tenants=promised, queue_seconds=0) as gw:
            running = [await gw.session.post(gw.url + PATH, json=STREAM) for _ in range(3)]
            assert [response.status for response in running] == [200] * 3
            # Idle promises are lent, but for the last quarter.
            assert (await status_of(gw))[0] == 429
            for response in running:
                response.close()


async def test_a_keys_limits_are_kept_and_told(tmp_path: Path) -> None:
    limits = {"requests_per_minute": 2, "tokens_per_minute": 100_000}
    async with upstream(answers(UNARY)) as up, gateway(tmp_path, [up.url], key=limits) as gw:
        status, headers = await status_of(gw)
        assert status == 200
        assert headers["x-ratelimit-limit-requests"] == "2"
        assert headers["x-ratelimit-remaining-requests"] == "1"
        # Nine tokens were used, whatever was reckoned before.
        assert int(headers["x-ratelimit-remaining-tokens"]) >= 100_000 - 9
        assert (await status_of(gw))[0] == 200
        status, headers = await status_of(gw)
        assert status == 429
        assert headers["x-ratelimit-remaining-requests"] == "0"
        assert 1 <= int(headers["retry-after"]) <= 30
        assert len(up.requests) == 2


async def test_a_request_larger_than_the_keys_minute_is_told_not_to_come_back(tmp_path: Path) -> None:
    async with upstream(answers(UNARY)) as up, gateway(tmp_path, [up.url], key={"tokens_per_minute": 100}) as gw:
        status, headers = await status_of(gw, {**CHAT, "max_tokens": 1000})
        assert (status, headers["x-should-retry"]) == (429, "false")
        assert "retry-after" not in headers


async def test_a_request_that_no_deployment_could_answer_costs_the_key_no_tokens(tmp_path: Path) -> None:
    async with upstream(answers(b"{}", status=500)) as bad:
        async with gateway(tmp_path, [bad.url], key={"tokens_per_minute": 1000}) as gw:
            status, headers = await status_of(gw, {**CHAT, "max_tokens": 900})
            assert status == 502
            assert int(headers["x-ratelimit-remaining-tokens"]) >= 980
            # The bucket hears of it with the next heartbeat.
            async with asyncio.timeout(5):
                while (await status_of(gw, {**CHAT, "max_tokens": 900}))[0] != 502:
                    await asyncio.sleep(0.2)


async def test_a_key_sees_only_its_models(tmp_path: Path) -> None:
    async with gateway(tmp_path, ["http://127.0.0.1:9"], key={"models": ["other"]}) as gw:
        assert (await status_of(gw))[0] == 404
        async with gw.session.get(f"{gw.url}/models") as response:
            assert (await response.json())["data"] == []


async def test_a_long_prefill_sends_comments_and_then_the_answer(tmp_path: Path) -> None:
    slow = sends(*WHOLE)

    async def after_a_while(request: Any) -> Any:
        await asyncio.sleep(0.5)
        return await slow(request)

    async with upstream(after_a_while) as up, gateway(tmp_path, [up.url], keepalive_seconds=0.1) as gw:
        async with gw.session.post(gw.url + PATH, json=STREAM) as response:
            body = await response.read()
    comments, _, answer = body.rpartition(b": keep-alive\n\n")
    assert comments.count(b": keep-alive\n\n") >= 2
    assert answer == b"".join(WHOLE).replace(USAGE, b"")


async def test_a_client_that_waits_a_short_time_gets_its_first_comment_earlier(tmp_path: Path) -> None:
    async with upstream(hangs()) as up, gateway(tmp_path, [up.url]) as gw:
        headers = {"x-stainless-read-timeout": "0.4"}
        async with asyncio.timeout(3), gw.session.post(gw.url + PATH, json=STREAM, headers=headers) as response:
            assert (await response.content.readany()).startswith(b": keep-alive")


async def test_after_a_comment_the_last_failure_is_an_event(tmp_path: Path) -> None:
    async with (
        upstream(hangs()) as one,
        upstream(hangs()) as other,
        gateway(tmp_path, [one.url, other.url], keepalive_seconds=0.1, first_event_timeout_seconds=0.3) as gw,
    ):
        async with gw.session.post(gw.url + PATH, json=STREAM) as response:
            assert response.status == 200
            body = await response.read()
    assert body.endswith(DONE)
    assert json.loads(body.split(b"\n\n")[-3].removeprefix(b"data: "))["error"]["code"] == "504"


async def test_failover_goes_on_after_a_comment(tmp_path: Path) -> None:
    async with (
        upstream(hangs()) as one,
        upstream(sends(*WHOLE)) as other,
        gateway(tmp_path, [one.url, other.url], keepalive_seconds=0.1, first_event_timeout_seconds=0.3) as gw,
    ):
        async with gw.session.post(gw.url + PATH, json=STREAM) as response:
            assert (await response.read()).endswith(b"".join(WHOLE).replace(USAGE, b""))


async def test_a_unary_answer_ends_when_its_client_would_stop_to_wait(tmp_path: Path) -> None:
    async with upstream(hangs()) as up, gateway(tmp_path, [up.url]) as gw:
        async with asyncio.timeout(5):
            assert (await status_of(gw, CHAT, **{"x-stainless-read-timeout": "0.4"}))[0] == 504


async def test_a_client_that_leaves_during_prefill_keeps_its_weight_for_the_prefills_rest(tmp_path: Path) -> None:
    slow = {"prefill_tokens_per_second": 10}
    async with upstream(hangs()) as up, gateway(tmp_path, [up.url], deployment=slow) as gw:
        task = asyncio.create_task(gw.session.post(gw.url + PATH, json=STREAM))
        while up.open_requests == 0:
            await asyncio.sleep(0.01)
        task.cancel()
        async with asyncio.timeout(1):
            while gw.metric("prime_gateway_admitted_requests", deployment="d0"):
                await asyncio.sleep(0.01)
        assert gw.metric("prime_gateway_admitted_tokens", deployment="d0") > 10


async def test_a_changed_fleet_file_rules_new_requests_and_a_wrong_one_rules_nobody(tmp_path: Path) -> None:
    async with (
        upstream(answers(UNARY)) as one,
        upstream(answers(UNARY)) as other,
        gateway(tmp_path, [one.url, other.url], reload_seconds=0.05) as gw,
    ):
        path = tmp_path / "fleet.yaml"
        fleet = yaml.safe_load(path.read_text())
        assert (await status_of(gw))[0] == 200
        path.write_text("models: [")
        async with asyncio.timeout(5):
            while not gw.metric("prime_gateway_files_refused"):
                await asyncio.sleep(0.02)
        assert (await status_of(gw))[0] == 200
        fleet["deployments"][0]["draining"] = True
        path.write_text(yaml.safe_dump(fleet))
        async with asyncio.timeout(5):
            while gw.metric("prime_gateway_files_refused"):
                await asyncio.sleep(0.02)
        assert (await status_of(gw))[0] == 200
        assert [len(one.requests), len(other.requests)] == [2, 1]


async def test_a_promise_at_an_unknown_deployment_is_refused(tmp_path: Path) -> None:
    async with upstream(answers(UNARY)) as up, gateway(tmp_path, [up.url], reload_seconds=0.05) as gw:
        path = tmp_path / "keys.yaml"
        keys = yaml.safe_load(path.read_text())
        keys["tenants"] = [{"name": "t", "reserved": [{"deployment": "nowhere", "requests": 1, "tokens": 1}]}]
        path.write_text(yaml.safe_dump(keys))
        async with asyncio.timeout(5):
            while not gw.metric("prime_gateway_file_reloads_total", result="refused"):
                await asyncio.sleep(0.02)
        assert (await status_of(gw))[0] == 200


@pytest.mark.parametrize("script", [breaks(chunk("a")), sends(chunk("a"), DONE), sends(b"data: {\n\n")])
async def test_every_ending_gives_the_capacity_back(tmp_path: Path, script: Any) -> None:
    async with upstream(script) as up, gateway(tmp_path, [up.url]) as gw:
        for _ in range(3):
            await status_of(gw, STREAM)
        async with asyncio.timeout(2):
            while gw.metric("prime_gateway_admitted_requests", deployment="d0"):
                await asyncio.sleep(0.01)


async def test_random_aborts_leave_no_lease_no_connection_and_no_task(tmp_path: Path) -> None:
    async with upstream(sends(*[chunk("a")] * 20, chunk("b", "stop"), DONE, pause_s=0.01)) as up:
        async with gateway(tmp_path, [up.url]) as gw:
            await status_of(gw, STREAM)
            before = len(asyncio.all_tasks())

            async def aborted(after_s: float) -> None:
                try:
                    async with asyncio.timeout(after_s):
                        await status_of(gw, STREAM)
                except TimeoutError:
                    pass

            for _ in range(5):
                await asyncio.gather(*(aborted(n * 0.002) for n in range(1, 21)))
            async with asyncio.timeout(5):
                while gw.metric("prime_gateway_admitted_requests", deployment="d0") or up.open_requests:
                    await asyncio.sleep(0.02)
                while len(asyncio.all_tasks()) > before + 5:
                    await asyncio.sleep(0.05)
            assert gw.state.settlements == 0


async def test_a_client_in_a_hurry_opens_no_breaker_and_touches_no_other_deployment(tmp_path: Path) -> None:
    async with (
        upstream(hangs()) as one,
        upstream(answers(UNARY)) as other,
        gateway(tmp_path, [one.url, other.url]) as gw,
    ):
        for _ in range(8):
            assert (await status_of(gw, CHAT, **{"x-stainless-read-timeout": "0.05"}))[0] == 504
        assert other.requests == []
        assert gw.metric("prime_gateway_breaker_state", deployment="d0", state="closed") == 1


async def test_requests_go_on_while_deployments_and_sites_come_move_and_go(tmp_path: Path) -> None:
    async with (
        upstream(answers(UNARY)) as one,
        upstream(answers(UNARY)) as other,
        gateway(tmp_path, [one.url, other.url], reload_seconds=0.02) as gw,
    ):
        path = tmp_path / "fleet.yaml"
        fleet = yaml.safe_load(path.read_text())
        both = fleet["deployments"]
        done = asyncio.Event()

        async def client() -> None:
            while not done.is_set():
                assert (await status_of(gw))[0] == 200

        clients = [asyncio.create_task(client()) for _ in range(3)]
        for turn in range(6):
            left = both[turn % 2]
            fleet["deployments"] = [{**left, "site": f"site-{turn}"}]
            fleet["models"][0]["deployments"] = [left["name"]]
            path.write_text(yaml.safe_dump(fleet))
            async with asyncio.timeout(5):
                while gw.metric("prime_gateway_file_reloads_total", result="taken") <= turn:
                    await asyncio.sleep(0.01)
            async with gw.session.get(f"{gw.internal_url}/metrics") as response:
                lines = (await response.text()).splitlines()
            series = [line.rsplit(" ", 1)[0] for line in lines if not line.startswith("#")]
            assert len(series) == len(set(series))
        done.set()
        await asyncio.gather(*clients)
