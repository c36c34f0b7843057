# SPDX-License-Identifier: Apache-2.0
import pytest
from hypothesis import given
from hypothesis import strategies as st

from anvil_attention.bench.batch_spec import GRAMMAR, format_batch, kind, parse
from anvil_attention.synthetic_batch import Request


@pytest.mark.parametrize(
    ("text", "requests"),
    [
        ("q2k", [(2048, 2048)]),
        ("q100", [(100, 100)]),
        ("8q1s4k", [(1, 4096)] * 8),
        ("q4s1000", [(4, 1000)]),
        ("2q2k_32q1s1k", [(2048, 2048)] * 2 + [(1, 1024)] * 32),
        ("q1s1k_q7_q1s1k", [(1, 1024), (7, 7), (1, 1024)]),
        ("q1", [(1, 1)]),
    ],
)
def test_what_a_text_means(text: str, requests: list[tuple[int, int]]) -> None:
    assert parse(text) == tuple(Request(*lengths) for lengths in requests)


lengths = st.one_of(st.integers(1, 5000), st.integers(1, 64).map(lambda n: n * 1024))
requests = st.tuples(lengths, lengths).map(lambda pair: Request(min(pair), max(pair)))


@given(
    groups=st.lists(st.tuples(st.integers(1, 5), requests), min_size=1, max_size=6),
)
def test_round_trip(groups: list[tuple[int, Request]]) -> None:
    batch = tuple(request for count, request in groups for _ in range(count))
    assert parse(format_batch(batch)) == batch


@pytest.mark.parametrize("text", ["q2k", "8q1s4k", "2q2k_32q1s1k", "q5s7_3q1s9"])
def test_shortest_text(text: str) -> None:
    assert format_batch(parse(text)) == text


@pytest.mark.parametrize(
    ("text", "group", "why"),
    [
        ("", "", "does not follow the grammar"),
        ("2k", "2k", "does not follow"),
        ("q2K", "q2K", "does not follow"),
        ("q2k_", "", "does not follow"),
        ("q2k_8s4", "8s4", "does not follow"),
        ("q2k s4k", "q2k s4k", "does not follow"),
        ("q-1", "q-1", "does not follow"),
        ("q٣", "q٣", "does not follow"),
        ("q1kv1k", "q1kv1k", "does not follow"),
        ("q1s1k_0q1s1k", "0q1s1k", "no requests"),
        ("q0s5", "q0s5", "no query tokens"),
        ("q2k_q8s4", "q8s4", "sequence of 4 tokens cannot end with 8 query tokens"),
        ("999999999q1", "999999999q1", "more than"),
        ("q999999999k", "q999999999k", "more than"),
    ],
)
def test_errors_name_the_group_and_show_the_grammar(text: str, group: str, why: str) -> None:
    with pytest.raises(ValueError) as caught:
        parse(text)
    assert repr(group) in str(caught.value)
    assert why in str(caught.value)
    assert GRAMMAR in str(caught.value)


@pytest.mark.parametrize(
    ("text", "expected"),
    [("8q1s4k", "decode"), ("q2k", "prefill"), ("q4s1k", "extend"), ("q2k_q1s1k", "mixed")],
)
def test_kind(text: str, expected: str) -> None:
    assert kind(parse(text)) == expected
