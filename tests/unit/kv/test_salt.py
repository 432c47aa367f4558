from hypothesis import given
from hypothesis import strategies as st

from prime_inference.kv.salt import FORBIDDEN, LONGEST, lawful


@given(st.text(max_size=300), st.text(max_size=300))
def test_different_salts_stay_different_and_every_one_is_lawful(one: str, other: str) -> None:
    for salt in (one, other):
        assert len(lawful(salt)) <= LONGEST
        assert not FORBIDDEN & set(lawful(salt))
    assert (lawful(one) == lawful(other)) == (one == other)


def test_an_ordinary_salt_is_kept_and_a_digest_cannot_be_asked_for_by_name() -> None:
    assert lawful("dynamo-cache-salt:abc") == "dynamo-cache-salt:abc"
    assert lawful("") == ""
    assert lawful(lawful("a@b")) != lawful("a@b")
