from hypothesis import given
from hypothesis import strategies as st

from gateway.relay.affinity import salt_of, session_of

SECRET = b"secret"
OPENING = [{"role": "system", "content": "s"}, {"role": "user", "content": "first"}]


def session(body: dict[str, object], header: str | None = None, tenant: str = "t") -> str:
    return session_of(tenant, body, header, SECRET)


def test_a_later_turn_has_the_session_of_the_first() -> None:
    later = [*OPENING, {"role": "assistant", "content": "a"}, {"role": "user", "content": "second"}]
    assert session({"messages": OPENING}) == session({"messages": later})
    assert session({"messages": OPENING}) != session({"messages": [{"role": "user", "content": "other"}]})


def test_the_first_named_source_wins() -> None:
    body = {"session_id": "a", "prompt_cache_key": "b", "messages": OPENING}
    assert session(body, "h") == session({"session_id": "a"})
    assert session({**body, "session_id": None}, "h") == session({}, "h")
    assert session({"prompt_cache_key": "b", "messages": OPENING}) == session({"prompt_cache_key": "b"})


def test_a_header_names_the_same_session_as_the_body_field() -> None:
    assert session({"session_id": "a"}) == session({}, "a")


@given(st.text(min_size=1), st.text("ab", min_size=1, max_size=3), st.text("ab", min_size=1, max_size=3))
def test_tenants_never_share_a_session_or_a_salt(name: str, one: str, other: str) -> None:
    if one != other:
        assert session({"session_id": name}, tenant=one) != session({"session_id": name}, tenant=other)
        assert salt_of(one, SECRET) != salt_of(other, SECRET)
    assert len(session({"session_id": name}, tenant=one)) == 32


def test_the_secret_keys_the_names() -> None:
    assert session_of("t", {"session_id": "a"}, None, b"1") != session_of("t", {"session_id": "a"}, None, b"2")


def test_a_bare_prompt_names_its_session_by_its_beginning() -> None:
    assert session({"prompt": "x" * 5000}) == session({"prompt": "x" * 5000 + "more"})
    assert session({"prompt": [1, 2, 3]}) != session({"prompt": [1, 2, 4]})
