"""Expressions as text."""

from __future__ import annotations

from sartor.graph.expression import Expression, ExpressionBuilder


def squared(times: int) -> Expression:
    """x, squared `times` times: each node is read twice by the next."""
    e = ExpressionBuilder(["f32"])
    node = 0
    for _ in range(times):
        node = e("mul", node, node)
    return e.finish(node)


def test_a_formula_reads_as_one() -> None:
    e = ExpressionBuilder(["f32", "f32"])
    assert str(e.finish(e("add", e("mul", 0, 1), e.constant(1.5, "f32")))) == "add(mul(x0, x1), 1.5)"


def test_nodes_read_twice_are_named_once() -> None:
    assert str(squared(3)) == "t0 = mul(x0, x0); t1 = mul(t0, t0); mul(t1, t1)"


def test_text_grows_with_the_nodes_and_not_with_the_paths() -> None:
    assert len(str(squared(200))) < 200 * 30
