"""Which workers come and go; one number out of a metrics page; orders to a running stack."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from prime_inference.local.control import LONGEST_PATH, ORDER, Restart, Scale, check_path
from prime_inference.local.errors import UpError
from prime_inference.local.pools import Change, Target, next_name, number_of, resized
from prime_inference.local.readings import sum_of


@given(st.sets(st.integers(0, 30), min_size=1, max_size=10), st.integers(1, 12))
def test_a_pool_gets_the_size_that_was_asked_for_and_keeps_its_oldest(numbers: set[int], size: int) -> None:
    names = {f"decode-{number}" for number in numbers} | {"prefill-0", "frontend", "gateway"}
    change = resized("decode", names, size)
    assert len(numbers) + len(change.come) - len(change.go) == size
    assert not (change.come and change.go)
    assert not set(change.come) & names
    assert set(change.go) <= {name for name in names if name.startswith("decode-")}
    stay = {number for number in numbers if f"decode-{number}" not in change.go}
    assert all(number_of(name) > max(stay) for name in change.go)


def test_a_pool_of_the_size_asked_for_is_left_alone() -> None:
    assert resized("prefill", ["prefill-0"], 1) == Change()


def test_a_pool_is_never_emptied() -> None:
    with pytest.raises(ValueError, match="one worker"):
        resized("decode", ["decode-0"], 0)


def test_names_go_on_from_the_highest() -> None:
    assert next_name("gateway", ["gateway", "frontend"]) == "gateway-1"
    assert next_name("gateway", ["gateway-4"]) == "gateway-5"
    assert next_name("decode", []) == "decode-0"


def test_a_metric_is_summed_over_the_samples_that_carry_the_labels() -> None:
    page = b'# HELP a x\na_total{r="taken",m="x"} 2.0\na_total{r="taken",m="y"} 3\na_total{r="no"} 9\na_total_more 5\na 1 99\n'
    assert sum_of(page, "a_total", r="taken") == 5
    assert sum_of(page, "a_total") == 14
    assert sum_of(page, "a") == 1
    assert sum_of(page, "nothing") == 0


@pytest.mark.parametrize(
    "line",
    [b"", b"{}", b'{"op": "scale", "decode": 0}', b'{"op": "restart", "target": "all", "x": 1}', b'{"op": "end"}'],
)
def test_a_wrong_order_is_refused(line: bytes) -> None:
    with pytest.raises(ValidationError):
        ORDER.validate_json(line)


def test_orders_survive_the_socket() -> None:
    for order in (Scale(decode=3), Scale(prefill=1, decode=2), Restart(target=Target.ALL)):
        assert ORDER.validate_json(order.model_dump_json()) == order


def test_a_folder_whose_name_is_too_long_for_a_socket_is_told() -> None:
    from pathlib import Path

    check_path(Path("/tmp/control"))
    with pytest.raises(UpError, match="--state-dir"):
        check_path(Path("/tmp") / ("x" * LONGEST_PATH))
