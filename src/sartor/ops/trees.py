"""Ensembles of decision trees: nodes of all trees in one table, which is checked here so that every walk ends."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from sartor.errors import ModelError
from sartor.graph.layer import Tensor
from sartor.ops.classical import transformed
from sartor.ops.context import Array, Call, Context, DeclinedError
from sartor.ops.elementwise import Operator
from sartor.ops.indexing import emit_gather

LEAF, MEMBER = -1, 6
MODES = {"BRANCH_LEQ": 0, "BRANCH_LT": 1, "BRANCH_GTE": 2, "BRANCH_GT": 3, "BRANCH_EQ": 4, "BRANCH_NEQ": 5, "LEAF": LEAF}


@dataclass
class Forest:
    """Nodes as the `trees` kind has them, with their thresholds; where each tree starts; votes by leaf."""

    nodes: Array
    thresholds: Array
    roots: Array
    weights: Array
    targets: Array


def _checked(call: Call, nodes: Array, roots: Sequence[int], votes: int) -> None:
    """Raises `ModelError` where a node leads outside of the table, or back to one above it."""
    inner = nodes[:, 1] != LEAF
    places = np.concatenate([nodes[inner, 2:4].reshape(-1), np.asarray(roots, np.int64)])
    if ((places < 0) | (places >= len(nodes))).any() or (nodes[inner, 0] < 0).any() or not (0 <= nodes[:, 4:].min(initial=0)
                                                                                        <= nodes[:, 4:].max(initial=0) <= votes):
        raise ModelError(f"{call} has a node, feature or leaf outside of its tables")
    state = np.zeros(len(nodes), np.int8)  # 1 while above the node looked at, 2 when done
    for start in range(len(nodes)):
        stack = [(start, False)]
        while stack:
            node, done = stack.pop()
            if done:
                state[node] = 2
            elif state[node] == 0:
                state[node] = 1
                stack.append((node, True))
                if inner[node]:
                    stack += [(int(child), False) for child in nodes[node, 2:4] if state[child] != 2]
                    if any(state[child] == 1 for child in nodes[node, 2:4]):
                        raise ModelError(f"{call} has a tree that leads back to a node above its node {node}")


def _numbers(call: Call, name: str) -> Array:
    """An attribute's numbers: of a list, or of the tensor that may stand for it."""
    tensor = call.get(f"{name}_as_tensor")
    return np.asarray(tensor.numpy()).reshape(-1) if tensor is not None else np.asarray(call.get(name) or [], np.float32)


def _forest(call: Call, votes: str) -> Forest:
    """The trees of TreeEnsembleRegressor and TreeEnsembleClassifier, whose nodes are numbered within their trees."""
    trees, numbers = call["nodes_treeids"], call["nodes_nodeids"]
    index = {key: place for place, key in enumerate(zip(trees, numbers, strict=True))}
    missing = call.get("nodes_missing_value_tracks_true") or [0] * len(trees)
    thresholds = _numbers(call, "nodes_values")
    nodes = np.zeros((len(trees), 6), np.int64)
    lists = (call["nodes_featureids"], call["nodes_modes"], call["nodes_truenodeids"], call["nodes_falsenodeids"], missing)
    if any(len(values) != len(trees) for values in (*lists, thresholds)) or len(index) != len(trees):
        raise ModelError(f"{call} describes its nodes by lists of different lengths, or one twice")
    children = set()
    for place, (tree, feature, mode, yes, no, tracks) in enumerate(zip(trees, *lists, strict=True)):
        if mode not in MODES:
            raise ModelError(f"{call} has a node with the unknown mode {mode!r}")
        if MODES[mode] == LEAF:
            nodes[place] = (0, LEAF, 0, 0, 0, 0)
            continue
        below = [index.get((tree, child), -1) for child in (yes, no)]
        children.update(below)
        nodes[place] = (feature, MODES[mode] + 8 * bool(tracks), *below, 0, 0)
    roots = [place for place in range(len(trees)) if place not in children]
    if sorted({trees[place] for place in roots}) != sorted(trees[place] for place in roots) or len(roots) != len(set(trees)):
        raise ModelError(f"{call} has a tree with other than one root")
    leaves = [index.get(key, -1) for key in zip(call[f"{votes}_treeids"], call[f"{votes}_nodeids"], strict=True)]
    order = np.argsort(leaves, kind="stable")
    weights, targets = _numbers(call, f"{votes}_weights"), np.asarray(call[f"{votes}_ids"], np.int64)
    if len(weights) != len(leaves) or len(targets) != len(leaves) or -1 in leaves:
        raise ModelError(f"{call} has votes for leaves that no tree has")
    for place, leaf in enumerate(np.asarray(leaves, np.int64)[order]):
        first = nodes[leaf, 4] if nodes[leaf, 5] else place
        nodes[leaf, 4:] = first, place + 1
    return Forest(nodes, thresholds, np.asarray(roots, np.int64), weights[order], targets[order])


def _emit(context: Context, call: Call, forest: Forest, count: int, op: str, dtype: str, base: Sequence[float]) -> str:
    """Emits the walk, the mean of it where that is wanted, and the base values."""
    _checked(call, forest.nodes, forest.roots.tolist(), len(forest.weights))
    x = call.inputs[0]
    tensor = context.tensor(x)
    if tensor.dtype not in ("f32", "f64", "i32", "i64"):
        raise DeclinedError(f"{call} works on elements of type {tensor.dtype}")
    if len(tensor.shape) != 2 or count < 1 or (len(forest.targets) and not 0 <= forest.targets.min() <= forest.targets.max() < count):
        raise ModelError(f"{call} has votes for other than its {count} targets, or an input of type {tensor}")
    context.require_at_least(tensor.shape[1], int(forest.nodes[:, 0].max(initial=0)) + 1)
    if tensor.dtype[0] == "i":
        x = context.elementwise([x], lambda e, v: e("cast", v, dtype="f32"), tensor.shape, suffix="single")
    numbers = np.float64 if context.dtype(x) == "f64" else np.float32
    arrays = {"thresholds": forest.thresholds.astype(numbers), "nodes": forest.nodes, "roots": forest.roots, "weights": forest.weights,
              "targets": forest.targets}
    constants = [context.new_constant(array, f"{call.outputs[0]}.{name}") for name, array in arrays.items()]
    shape = (tensor.shape[0], count)
    made = context.layer("trees", [x, *constants], Tensor(dtype, shape), op={"AVERAGE": "sum"}.get(op, op.lower()))
    factor = 1 / max(len(forest.roots), 1) if op == "AVERAGE" else 1.0
    if not base and factor == 1:
        return made
    shift = context.new_constant(np.asarray(base or [0.0], np.float64 if dtype == "f64" else np.float32), f"{call.outputs[0]}.base")
    if len(base) not in (0, 1, count):
        raise ModelError(f"{call} has {len(base)} base values for {count} targets")
    return context.elementwise([made, shift], lambda e, v, s: e("add", e("mul", v, e.constant(factor, dtype)), s), shape, suffix="based")


def _regressor(context: Context, call: Call) -> None:
    op = call.get("aggregate_function", "SUM")
    if op not in ("SUM", "AVERAGE", "MIN", "MAX"):
        raise ModelError(f"{call} has the unknown aggregate function {op!r}")
    scores = _emit(context, call, _forest(call, "target"), call.get("n_targets", 1), op, "f32", _numbers(call, "base_values").tolist())
    transformed(context, call, scores, call.outputs[0])


def _classifier(context: Context, call: Call) -> None:
    """Scores of two classes follow rules of their own, which are left to the reference."""
    labels = call.get("classlabels_int64s")
    if not labels or len(labels) < 3 or len(set(call["class_ids"])) < 2:
        raise DeclinedError(f"{call} has labels that are no numbers, or two classes")
    scores = _emit(context, call, _forest(call, "class"), len(labels), "SUM", "f32", _numbers(call, "base_values").tolist())
    rows = context.shape(scores)[0]
    best = context.layer("reduce", [scores], Tensor("i64", (rows, 1)), suffix="best", op="argmax", axes=(1,), select_last=False)
    table = context.new_constant(np.asarray(labels, np.int64), f"{call.outputs[0]}.labels")
    emit_gather(context, table, context.reshape(best, (rows,)), 0, call.outputs[0])
    if call.output(1):
        transformed(context, call, scores, call.outputs[1])


def _tensor(call: Call, name: str) -> Array:
    value: Any = call.get(name)
    return np.zeros(0) if value is None else np.asarray(value.numpy()).reshape(-1)


def _ensemble(context: Context, call: Call) -> None:
    """TreeEnsemble: inner nodes and leaves in tables of their own; a test for members is a chain of tests for equality."""
    modes, splits = _tensor(call, "nodes_modes").astype(np.int64), _tensor(call, "nodes_splits")
    count = len(modes)
    missing = call.get("nodes_missing_value_tracks_true") or [0] * count
    lists = [call[f"nodes_{name}"] for name in ("featureids", "truenodeids", "falsenodeids", "trueleafs", "falseleafs")]
    if any(len(values) != count for values in (*lists, splits, missing)) or not set(modes.tolist()) <= set(range(MEMBER + 1)):
        raise ModelError(f"{call} describes its nodes by lists of different lengths, or by unknown modes")
    members = _members(call, int((modes == MEMBER).sum()))
    leaves, weights = call["leaf_targetids"], _tensor(call, "leaf_weights")
    nodes = [(0, LEAF, 0, 0, place, place + 1) for place in range(len(leaves))]
    start = len(nodes)  # inner nodes come behind the leaves, the further links of chains behind these
    rows: list[tuple[int, ...]] = []
    thresholds, links = [0.0] * start + splits.tolist(), []
    for place, (feature, yes, no, yes_leaf, no_leaf) in enumerate(zip(*lists, strict=True)):
        below = [child if leaf else start + child for child, leaf in ((yes, yes_leaf), (no, no_leaf))]
        if modes[place] == MEMBER:
            values = next(members)
            thresholds[start + place] = values[0]
            for value in values[:0:-1]:
                links.append((feature, 4, below[0], below[1], 0, 0))
                thresholds.append(value)
                below = [below[0], start + count + len(links) - 1]
            rows.append((feature, 4, *below, 0, 0))
        else:
            rows.append((feature, int(modes[place]) + 8 * bool(missing[place]), *below, 0, 0))
    table = np.asarray([*nodes, *rows, *links], np.int64).reshape(-1, 6)
    forest = Forest(table, np.asarray(thresholds), np.asarray(call["tree_roots"], np.int64) + start, weights, np.asarray(leaves, np.int64))
    op = {0: "AVERAGE", 1: "SUM", 2: "MIN", 3: "MAX"}.get(call.get("aggregate_function", 1))
    post = {0: "NONE", 1: "SOFTMAX", 2: "LOGISTIC"}.get(call.get("post_transform", 0))
    dtype = context.dtype(call.inputs[0])
    if op is None or post is None or len(leaves) != len(weights) or dtype not in ("f32", "f64"):
        raise DeclinedError(f"{call} joins or transforms its results in another way")
    transformed(context, call, _emit(context, call, forest, call["n_targets"], op, dtype, []), call.outputs[0], post)


def _members(call: Call, count: int) -> Any:
    """The members of each set, which NaN separates in one list."""
    sets: list[list[float]] = [[]]
    for value in _tensor(call, "membership_values").tolist():
        if value != value:  # noqa: PLR0124 -- NaN
            sets.append([])
        else:
            sets[-1].append(value)
    sets = sets if sets[-1] else sets[:-1]
    if len(sets) < count or not all(sets):
        raise ModelError(f"{call} has {len(sets)} sets of members for {count} nodes, or an empty one")
    return iter(sets)


_DOMAIN = "ai.onnx.ml"
OPERATORS: dict[tuple[str, str], Operator] = {
    (_DOMAIN, "TreeEnsemble"): _ensemble,
    (_DOMAIN, "TreeEnsembleClassifier"): _classifier,
    (_DOMAIN, "TreeEnsembleRegressor"): _regressor,
}
