"""Random names: none is given twice, whatever is left of what was drawn."""

from __future__ import annotations

from pdplugins.gateway.randomness import DRAWN, Randomness, fresh_name


def test_bytes_are_given_once() -> None:
    source = Randomness()
    given = [source.take(size) for size in (16, 8) * 2 * (DRAWN // 16)]
    assert [len(each) for each in given] == [16, 8] * 2 * (DRAWN // 16)
    assert len(set(given)) == len(given)


def test_names_differ_and_have_128_bits() -> None:
    names = {fresh_name() for _ in range(1000)}
    assert len(names) == 1000
    assert {len(name) for name in names} == {32}
