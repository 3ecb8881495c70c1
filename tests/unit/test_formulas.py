"""The table of formulas gives what evaluating each size alone gives."""

import json

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from sartor.fitting.formulas import FormulaBuilder, Formulas
from sartor.sizes import ceildiv, evaluate, floordiv, maximum, minimum, modulo, symbol

NAMES = ("batch", "height", "width")


def dims():
    leaves = st.one_of(st.integers(-9, 9), st.sampled_from(NAMES).map(symbol))

    def extend(inner):
        positive = st.integers(1, 7)
        return st.one_of(
            st.tuples(inner, inner).map(lambda t: t[0] + t[1]),
            st.tuples(inner, inner).map(lambda t: t[0] * t[1]),
            st.tuples(inner, positive).map(lambda t: floordiv(*t)),
            st.tuples(inner, positive).map(lambda t: ceildiv(*t)),
            st.tuples(inner, positive).map(lambda t: modulo(*t)),
            st.tuples(inner, inner).map(lambda t: minimum(*t)),
            st.tuples(inner, inner).map(lambda t: maximum(*t)),
        )

    return st.recursive(leaves, extend, max_leaves=6)


@given(st.lists(dims(), max_size=8), st.tuples(*[st.integers(0, 50)] * 3))
def test_all_formulas_at_once_equal_each_alone(wanted, numbers):
    sizes = dict(zip(NAMES, numbers, strict=True))
    builder = FormulaBuilder()
    entries = [builder(d) for d in wanted]
    table = builder.finish()
    values = table.evaluate(sizes)
    assert values.dtype == np.int64
    assert [values[e] for e in entries] == [evaluate(d, sizes) for d in wanted]


def test_equal_formulas_share_an_entry():
    builder = FormulaBuilder()
    n, m = symbol("n"), symbol("m")
    assert builder(n * m + 3) == builder(3 + m * n)
    before = len(builder.finish())
    builder((n * m + 3) * 2)
    builder(n * m)
    assert len(builder.finish()) == before + 4  # 2, 6, the product with 2, the sum


def test_data_is_json_and_comes_back():
    builder = FormulaBuilder()
    entry = builder(ceildiv(symbol("n") * 3 + 1, 4))
    table = builder.finish()
    again = Formulas.from_data(json.loads(json.dumps(table.to_data())))
    assert again == table
    assert again.evaluate({"n": 10})[entry] == 8


def test_a_symbol_not_known_yet_counts_as_nothing():
    builder = FormulaBuilder()
    entry, quotient = builder(symbol("found") + 2), builder(floordiv(symbol("n"), symbol("found")))
    values = builder.finish().evaluate({"n": 5})
    assert values[entry] == 2
    assert values[quotient] == 0


def test_large_products_do_not_wrap_at_32_bits():
    builder = FormulaBuilder()
    entry = builder(symbol("n") * symbol("n") * 3)
    assert builder.finish().evaluate({"n": 100_000})[entry] == 30_000_000_000
