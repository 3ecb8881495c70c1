"""A random model from a seed."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from onnx import helper
from tests.cpu.random_models.maker import Array, Maker, RandomModel, SkipError, Source
from tests.cpu.random_models.table import available

NEWEST = onnx.defs.onnx_opset_version()


def random_model(seed: int, only: tuple[str, ...] = ()) -> RandomModel:
    """The model of this seed: one to six nodes; of the operators `only`, where some are given."""
    rng = np.random.default_rng(seed)
    opset = int(rng.choice([NEWEST, int(rng.integers(7, NEWEST + 1)), int(rng.integers(7, NEWEST + 1))]))
    maker = Maker(rng, opset)
    entries = {op: e for op, e in available(opset).items() if not only or op in only}
    if not entries:
        opset = maker.opset = NEWEST
        entries = {op: e for op, e in available(opset).items() if op in only}
    names, weights = list(entries), np.array([e.weight for e in entries.values()])
    count = 1 if only and rng.random() < 0.7 else int(rng.integers(1, 7))
    for _ in range(60):
        if len(maker.nodes) >= count:
            break
        _try(maker, entries, str(rng.choice(names, p=weights / weights.sum())))
    return _finish(maker, seed)


def _try(maker: Maker, entries: dict[str, Any], op: str) -> None:
    """Makes a node, or leaves the maker as it was where that does not come out."""
    sources, values, hidden = dict(maker.sources), dict(maker.values), set(maker.hidden)
    try:
        entries[op].make(maker, op)
        large = any(a.size > 20000 or a.ndim > 8 for a in maker.values.values())
        odd = [a.dtype for a in maker.values.values() if a.dtype.kind not in "fiubV" or a.dtype.name.startswith(("float8", "int4", "uint4"))]
        if not large and not odd:
            return
        maker.nodes.pop()
    except SkipError:
        pass
    except Exception as error:
        maker.notes.append(f"{op}-{maker.opset}: {type(error).__name__}: {str(error).strip().splitlines()[0][:150] if str(error) else ''}")
    maker.sources, maker.values, maker.hidden = sources, values, hidden


def _finish(maker: Maker, seed: int) -> RandomModel:
    rng = maker.rng
    read = {n for node in maker.nodes for n in node.input}
    made = [n for node in maker.nodes for n in node.output if n]
    outputs = made if rng.random() < 0.5 else [n for n in made if n not in read or rng.random() < 0.15]
    sources = {n: s for n, s in maker.sources.items() if n in read}
    symbols = _symbols(maker, sources)
    graph = helper.make_graph(
        maker.nodes, f"random_{seed}", [_info(s.name, s.dtype, [s.symbols.get(i, d) for i, d in enumerate(s.shape)])
                                        for s in sources.values() if not s.constant],
        [_info(n, maker.values[n].dtype.name, [None] * maker.values[n].ndim) for n in outputs],
        [onnx.numpy_helper.from_array(np.ascontiguousarray(maker.values[n]).reshape(s.shape), n) for n, s in sources.items() if s.constant],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", maker.opset)], ir_version=min(10, onnx.IR_VERSION))
    feeds = [{n: maker.values[n] for n, s in sources.items() if not s.constant}]
    for _ in range(2):
        sizes = {v: int(v[1:]) + int(rng.integers(0, 4)) if rng.random() < 0.8 else int(rng.choice([0, 1, 13])) if rng.random() < 0.3 else 13 for v in sorted(symbols)}
        feeds.append(_feeds(rng, sources, sizes))
    operators = tuple(dict.fromkeys(n.op_type for n in maker.nodes))
    result = RandomModel(seed, model, sources, tuple(feeds), maker.opset, operators)
    result.notes.extend(maker.notes)
    return result


def _symbols(maker: Maker, sources: dict[str, Source]) -> set[str]:
    """Makes symbols of some sizes of the fed values: all of a size are one symbol, since what must be equal is not known here."""
    if maker.rng.random() < 0.5:
        return set()
    sizes = sorted({d for s in sources.values() if not s.constant and s.name not in maker.hidden for d in s.shape if d != 1})
    chosen = {d for d in sizes if maker.rng.random() < 0.6}
    for source in sources.values():
        if not source.constant and source.name not in maker.hidden:
            source.symbols.update({i: f"n{d}" for i, d in enumerate(source.shape) if d in chosen})
    return {label for s in sources.values() for label in s.symbols.values()}


def _feeds(rng: np.random.Generator, sources: dict[str, Source], sizes: dict[str, int]) -> dict[str, Array]:
    feeds = {}
    for name, source in sources.items():
        if not source.constant:
            shape = tuple(sizes[source.symbols[i]] if i in source.symbols else d for i, d in enumerate(source.shape))
            try:
                array = np.asarray(source.fill(rng, source.dtype, shape))
            except Exception:  # a fill that fits the sizes it was made for
                return {}
            if array.shape != shape:
                return {}
            feeds[name] = array
    return feeds


def _info(name: str, dtype: str, shape: list[Any]) -> onnx.ValueInfoProto:
    kind = onnx.TensorProto.BFLOAT16 if dtype == "bfloat16" else helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    return helper.make_tensor_value_info(name, kind, shape)
