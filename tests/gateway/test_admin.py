"""The internal listener: who may, what is shown, what an order does to the requests that follow."""

import asyncio
import json
import logging
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.gateway.test_relay import CHAT, UNARY, WHOLE
from tests.support.gateway import RunningGateway, gateway
from tests.support.upstream import answers, sends, upstream
from tests.valkey_server import ValkeyServer

ADMIN = {"scopes": ["admin", "inference"]}


async def act(gw: RunningGateway, **action: object) -> tuple[int, dict[str, Any]]:
    async with gw.session.post(f"{gw.internal_url}/admin/v1/actions", json=action) as response:
        return response.status, await response.json()


async def overview(gw: RunningGateway) -> dict[str, Any]:
    async with gw.session.get(f"{gw.internal_url}/admin/v1/overview") as response:
        assert response.status == 200, await response.text()
        seen: dict[str, Any] = await response.json()
        return seen


async def ask(gw: RunningGateway) -> int:
    async with gw.session.post(f"{gw.url}/chat/completions", json=CHAT) as response:
        await response.read()
        return response.status


@pytest.mark.parametrize(
    ("headers", "status"),
    [({"authorization": ""}, 401), ({"authorization": "Bearer sk-wrong"}, 401), ({}, 403)],
)
async def test_without_the_scope_nothing_is_shown_and_nothing_done(
    tmp_path: Path, headers: dict[str, str], status: int
) -> None:
    async with gateway(tmp_path, ["http://127.0.0.1:1"]) as gw:
        async with gw.session.get(f"{gw.internal_url}/admin/v1/overview", headers=headers) as response:
            assert response.status == status
        body = {"action": "drain", "deployment": "d0", "force": True}
        async with gw.session.post(f"{gw.internal_url}/admin/v1/actions", json=body, headers=headers) as response:
            assert response.status == status
        assert not gw.state.snapshot.fleet.deployments["d0"].draining


async def test_a_key_for_the_console_alone_gets_no_answers_of_models(tmp_path: Path) -> None:
    async with gateway(tmp_path, ["http://127.0.0.1:1"], key={"scopes": ["admin"]}) as gw:
        assert await ask(gw) == 403
        assert (await overview(gw))["deployments"][0]["name"] == "d0"


async def test_neither_the_admin_api_nor_the_console_is_on_the_public_listener(tmp_path: Path) -> None:
    async with gateway(tmp_path, ["http://127.0.0.1:1"], key=ADMIN) as gw:
        public = gw.url.removesuffix("/api/v1")
        for path in ("/console", "/admin/v1/overview", "/metrics", "/api/v1/admin/v1/overview"):
            async with gw.session.get(public + path) as response:
                assert response.status == 404, path


async def test_a_deployment_that_is_full_has_not_failed(tmp_path: Path) -> None:
    """As the alerts have it: being busy says nothing against it."""
    async with upstream(answers(b"{}", status=529)) as full, upstream(answers(b"{}", status=500)) as broken:
        for url, failed in ((full.url, 0), (broken.url, 1)):
            folder = tmp_path / str(failed)
            folder.mkdir()
            async with gateway(folder, [url], key=ADMIN) as gw:
                await overview(gw)
                assert await ask(gw) != 200
                await asyncio.sleep(1.1)
                (shown,) = (await overview(gw))["deployments"]
                assert (shown["attempts"], shown["attempts_failed"]) == (1, failed)


async def test_a_drain_moves_what_comes_next_and_is_taken_back(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    answer = answers(UNARY)
    async with upstream(answer) as east, upstream(answer) as west:
        async with gateway(tmp_path, [east.url, west.url], key=ADMIN) as gw:
            assert await ask(gw) == 200
            with caplog.at_level(logging.WARNING, "gateway.admin"):
                status, done = await act(gw, action="drain", deployment="d0")
            assert (status, done["result"]) == (200, "done"), done
            assert await ask(gw) == 200
            assert (len(east.requests), len(west.requests)) == (1, 1)
            shown = await overview(gw)
            assert shown["deployments"][0]["drained_by"] == ["order"]
            assert shown["actions"][0]["key_name"] == "test"
            (line,) = [record for record in caplog.records if record.message == "admin action"]
            assert (line.__dict__["action"], line.__dict__["target"], line.__dict__["tenant"]) == ("drain", "d0", "t")
            await act(gw, action="undrain", deployment="d0")
            assert await ask(gw) == 200
            assert len(east.requests) == 2


async def test_the_last_deployment_of_a_model_is_drained_only_by_force(tmp_path: Path) -> None:
    async with gateway(tmp_path, ["http://127.0.0.1:1"], key=ADMIN) as gw:
        for refused in ({"action": "drain", "deployment": "d0"}, {"action": "drain_site", "site": "local"}):
            status, answer = await act(gw, **refused)
            assert (status, answer["error"]["code"]) == (409, "last_deployment")
        assert (await act(gw, action="drain", deployment="d0", force=True))[0] == 200
        assert await ask(gw) == 503


async def test_what_the_file_drains_no_order_brings_back(tmp_path: Path) -> None:
    async with gateway(tmp_path, ["http://127.0.0.1:1"], key=ADMIN, deployment={"draining": True}) as gw:
        status, answer = await act(gw, action="undrain", deployment="d0")
        assert (status, answer["error"]["code"]) == (409, "drained_by_file")


async def test_a_site_is_drained_as_a_whole(tmp_path: Path) -> None:
    async with gateway(tmp_path, ["http://127.0.0.1:1", "http://127.0.0.1:2"], key=ADMIN) as gw:
        assert (await act(gw, action="drain_site", site="local", force=True))[0] == 200
        assert all(each["draining"] for each in (await overview(gw))["deployments"])
        assert (await act(gw, action="undrain_site", site="local"))[0] == 200
        assert not any(each["draining"] for each in (await overview(gw))["deployments"])


@pytest.mark.parametrize(
    ("action", "status", "words"),
    [
        ({"action": "drain", "deployment": "nowhere"}, 404, "no deployment nowhere"),
        ({"action": "drain_site", "site": "nowhere"}, 404, "no site nowhere"),
        ({"action": "explode", "deployment": "d0"}, 400, "explode"),
        ({"action": "drain"}, 400, "deployment"),
        ({"action": "weight", "deployment": "d0", "weight": -1}, 400, "weight"),
        ({"action": "weight", "deployment": "d0", "weight": 1, "ramp_seconds": 1e9}, 400, "ramp_seconds"),
        ({"action": "drain", "deployment": "d0", "colour": "red"}, 400, "colour"),
    ],
)
async def test_a_wrong_action_is_refused_with_what_is_wrong(
    tmp_path: Path, action: dict[str, object], status: int, words: str
) -> None:
    async with gateway(tmp_path, ["http://127.0.0.1:1"], key=ADMIN) as gw:
        got, answer = await act(gw, **action)
        assert got == status
        assert words in json.dumps(answer)
        assert (await overview(gw))["sites"][0]["revision"] == 0


async def test_sites_that_share_a_valkey_have_orders_of_their_own(tmp_path: Path) -> None:
    server = ValkeyServer().start()
    settings: dict[str, Any] = {
        "key": ADMIN,
        "valkey_url": f"redis://127.0.0.1:{server.port}/0",
        "reload_seconds": 0.05,
    }
    try:
        async with gateway(tmp_path, ["http://127.0.0.1:1", "http://127.0.0.1:2"], **settings) as gw:
            fleet = yaml.safe_load((tmp_path / "fleet.yaml").read_text())
            fleet["deployments"][1]["site"] = "west"
            (tmp_path / "fleet.yaml").write_text(yaml.safe_dump(fleet))
            async with asyncio.timeout(5):
                while gw.state.snapshot.fleet.deployments["d1"].site != "west":
                    await asyncio.sleep(0.02)
            assert (await act(gw, action="drain_site", site="west"))[0] == 200
            await asyncio.sleep(0.2)
            assert [each["draining"] for each in (await overview(gw))["deployments"]] == [False, True]
    finally:
        server.close()


async def test_a_ramp_brings_an_overflow_deployment_in_step_by_step(tmp_path: Path) -> None:
    async with gateway(
        tmp_path,
        ["http://127.0.0.1:1", "http://127.0.0.1:2"],
        key=ADMIN,
        deployment={"overflow": True},
        reload_seconds=0.1,
    ) as gw:
        await act(gw, action="weight", deployment="d1", weight=1.0, start=0.0, ramp_seconds=2.0, overflow=False)
        seen = []
        async with asyncio.timeout(10):
            while not seen or seen[-1] < 1.0:
                seen.append(gw.state.snapshot.fleet.deployments["d1"].weight)
                await asyncio.sleep(0.05)
        assert seen == sorted(seen)
        assert len(set(seen)) > 5, seen
        assert not gw.state.snapshot.fleet.deployments["d1"].overflow
        await act(gw, action="weight", deployment="d1", weight=None)
        await act(gw, action="overflow", deployment="d1", overflow=None)
        assert gw.state.snapshot.fleet is gw.state.written.fleet, "the file's word again"


async def test_an_open_breaker_is_probed_at_once_and_a_closed_one_is_asked_without_a_report(tmp_path: Path) -> None:
    broken, well = answers(b"{}", status=500), answers(UNARY)
    mended = False

    async def script(request: Any) -> Any:
        if not mended:
            return await broken(request)
        if (await request.json()).get("stream"):
            return await sends(*WHOLE)(request)
        return await well(request)

    async with upstream(script) as east, upstream(well) as west:
        async with gateway(tmp_path, [east.url, west.url], key=ADMIN) as gw:
            _, done = await act(gw, action="probe", deployment="d0")
            assert done["detail"] == "probe: upstream_error"
            for _ in range(6):
                await ask(gw)
            await asyncio.sleep(0.1)
            assert (await overview(gw))["deployments"][0]["breaker"]["state"] == "open"
            mended = True
            _, done = await act(gw, action="probe", deployment="d0")
            assert done["detail"] == "the probe is due now"
            async with asyncio.timeout(4):  # the shortest cooldown is 4 s
                while (await overview(gw))["deployments"][0]["breaker"]["state"] != "closed":
                    await asyncio.sleep(0.05)


async def test_orders_reach_a_second_replica_and_outlive_both(tmp_path: Path) -> None:
    server = ValkeyServer().start()
    url = f"redis://127.0.0.1:{server.port}/0"
    settings: dict[str, Any] = {"key": ADMIN, "valkey_url": url, "reload_seconds": 0.1}
    frontends = ["http://127.0.0.1:1", "http://127.0.0.1:2"]
    try:
        folders = [tmp_path / "a", tmp_path / "b", tmp_path / "c"]
        for folder in folders:
            folder.mkdir()
        async with gateway(folders[0], frontends, **settings) as one, gateway(folders[1], frontends, **settings) as two:
            assert (await act(one, action="drain", deployment="d0"))[0] == 200
            async with asyncio.timeout(2):
                while not two.state.snapshot.fleet.deployments["d0"].draining:
                    await asyncio.sleep(0.02)
            (site,) = (await overview(two))["sites"]
            assert (site["valkey"], len(site["leases"])) == ("up", 2)
            assert (await overview(two))["deployments"][0]["held"] == {"requests": 0, "tokens": 0, "accounts": {}}
        async with gateway(folders[2], frontends, **settings) as three:
            assert three.state.snapshot.fleet.deployments["d0"].draining, "before its first request"
            server.kill()
            status, answer = await act(three, action="undrain", deployment="d0")
            assert status == 503
            assert "fleet file" in answer["error"]["message"]
            assert three.state.snapshot.fleet.deployments["d0"].draining, "the last orders stay"
            async with three.session.get(f"{three.internal_url}/admin/v1/overview") as response:
                assert response.status == 200
            server.start()
    finally:
        server.close()


async def test_a_reloaded_file_keeps_the_orders(tmp_path: Path) -> None:
    async with gateway(tmp_path, ["http://127.0.0.1:1", "http://127.0.0.1:2"], key=ADMIN, reload_seconds=0.05) as gw:
        await act(gw, action="drain", deployment="d0")
        fleet = yaml.safe_load((tmp_path / "fleet.yaml").read_text())
        fleet["deployments"][1]["weight"] = 7.0
        (tmp_path / "fleet.yaml").write_text(yaml.safe_dump(fleet))
        async with asyncio.timeout(5):
            while gw.state.snapshot.fleet.deployments["d1"].weight != 7.0:
                await asyncio.sleep(0.02)
        assert gw.state.snapshot.fleet.deployments["d0"].draining


async def test_the_page_allows_nothing_from_elsewhere(tmp_path: Path) -> None:
    async with gateway(tmp_path, ["http://127.0.0.1:1"]) as gw:
        for path, kind in (("", "text/html"), ("/console.js", "text/javascript"), ("/console.css", "text/css")):
            async with gw.session.get(f"{gw.internal_url}/console{path}") as response:
                text = await response.text()
                assert response.status == 200
                assert response.headers["content-type"].startswith(kind)
                assert "default-src 'none'" in response.headers["content-security-policy"]
                assert "http://" not in text
                assert "https://" not in text
                assert "innerHTML" not in text
