"""Decision trees: each row walks down every tree, and the leaves it comes to are added up, or the least or greatest taken, in f64."""

from __future__ import annotations

from sartor.devices.device import Device
from sartor.graph.layer import Problem
from sartor.loops.language import Builder, Type, Value
from sartor.sizes import ceildiv, maximum
from sartor.templates.base import Config, Implementation, KernelCall, Knobless
from sartor.templates.slots import Slots

WORK = 1 << 6  # trees worth a slice of their own
COMPARISONS = ("le", "lt", "ge", "gt", "eq", "ne")
FIELDS = 6  # of a node: feature, comparison, where to go if it holds and if not, first and end of a leaf's votes


class Trees(Knobless):
    """See the module."""

    name = "trees"

    def applies(self, problem: Problem, device: Device) -> bool:
        return problem.layer.kind == "trees" and problem.input(0).dtype in ("f32", "f64") and problem.output().dtype in ("f32", "f64")

    def build(self, problem: Problem, config: Config, device: Device) -> Implementation:
        b = Builder("trees")
        slots = Slots(b, problem)
        names = ("x", "thresholds", "nodes", "roots", "weights", "targets")
        x, thresholds, nodes, roots, weights, targets = (slots.pointer(n, v) for n, v in zip(names, problem.layer.inputs, strict=True))
        y = slots.pointer("y", problem.layer.outputs[0])
        features, count = slots.size("features", problem.input(0).shape[1]), slots.size("count", problem.input(3).elements)
        columns = slots.size("columns", problem.output().columns)
        op = problem["op"]
        totals, met = b.scratch("f64"), b.scratch("f64", columns * 8)
        with b.loop("row", b.begin, b.end) as row:
            with b.loop("column", 0, columns) as column:
                b.store(totals, column, 0.0)
                b.store(met, column, 0.0)
            with b.loop("tree", 0, count) as tree:
                node = b.variable("node", b.load(roots, tree))
                with b.repeat_while() as test:
                    how = b.load(nodes, node.get() * FIELDS + 1)
                    b.proceed(test, how >= 0)
                    at = node.get() * FIELDS
                    value = b.load(x, row * features + b.load(nodes, at))
                    holds = _holds(b, how, value, b.load(thresholds, node.get()))
                    node.set(b.select(holds, b.load(nodes, at + 2), b.load(nodes, at + 3)))
                at = node.get() * FIELDS
                with b.loop("vote", b.load(nodes, at + 4), b.load(nodes, at + 5)) as vote:
                    target, weight = b.load(targets, vote), b.cast(b.load(weights, vote), "f64")
                    old = b.load(totals, target)
                    if op == "sum":
                        b.store(totals, target, old + weight)
                    else:
                        better = weight < old if op == "min" else weight > old
                        b.store(totals, target, b.select(better | b.load(met, target).eq(0.0), weight, old))
                        b.store(met, target, 1.0)
            with b.loop("column", 0, columns) as column:
                b.store(y, row * columns + column, b.cast(b.load(totals, column), y.scalar))
        grain = maximum(1, ceildiv(WORK, maximum(problem.input(3).elements, 1)))
        call = KernelCall(b.finish(), slots.arguments, problem.output().rows, grain=grain,
                          scratch=16 * maximum(problem.output().columns, 1), bytes=problem.input(0).bytes + problem.output().bytes)
        return Implementation((call,))


def _holds(b: Builder, how: Value, value: Value, threshold: Value) -> Value:
    """The comparison of a node; from 8 on the numbers of comparisons that hold for NaN."""
    which = how & 7
    result = b.constant(False, Type("bool"))
    for number, predicate in enumerate(COMPARISONS):
        result = result | (which.eq(number) & b.compare(predicate, value, threshold))
    return result | ((how >= 8) & value.ne(value))
