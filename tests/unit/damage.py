"""Random damage to model files: to their bytes, and to what they say.

`byte_damage` changes a file as broken disks and downloads do; `proto_damage` changes any field of a parsed model, whatever it is;
`model_damage` makes what a careless or hostile exporter might: cycles, values made twice, lists without end, graphs within graphs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import onnx
from google.protobuf.message import Message

Random = np.random.Generator

INTEGERS = (-(1 << 63), -(1 << 62), -(1 << 31), -17, -5, -2, -1, 0, 1, 2, 3, 4, 7, 13, 64, 255, 1000, 65536, 1 << 31, 1 << 32,
            1 << 40, 1 << 62, (1 << 63) - 1)
FLOATS = (0.0, -0.0, 1.0, -1.0, 0.5, 1e-45, 1e38, -1e38, 3.4e38, float("inf"), float("-inf"), float("nan"))
WORDS = ("", " ", "x", "NOTSET", "SAME_UPPER", "linear", "constant", "?", "\x00", "a" * 3000, "../x", "%s{}\n", "ai.onnx", "ai.onnx.ml",
         "com.microsoft", "é中")


def byte_damage(data: bytes, random: Random) -> bytes:
    """Some bytes changed, left out, doubled, zeroed, moved from elsewhere, or the end cut off."""
    out = bytearray(data)
    for _ in range(int(random.choice([1, 1, 1, 2, 8]))):
        place, length = int(random.integers(len(out) or 1)), int(random.choice([1, 2, 8, 64, 512]))
        other = int(random.integers(len(out) or 1))
        match random.integers(7):
            case 0:
                out[place : place + 1] = random.bytes(1)
            case 1:
                del out[place : place + length]
            case 2:
                out[place:place] = out[place : place + length]
            case 3:
                out[place : place + length] = bytes(len(out[place : place + length]))
            case 4:
                out[place : place + length] = out[other : other + length]
            case 5:
                out[place : place + length] = random.bytes(length)
            case _ if random.integers(3) == 0:
                del out[place:]
            case _:
                out[place:place] = out[other : other + length]
    return bytes(out)


# --- any field ------------------------------------------------------------------------------------------------------------


def messages(message: Message) -> Iterator[Message]:
    """A message and all within it."""
    yield message
    for field, value in message.ListFields():
        if field.type == field.TYPE_MESSAGE:
            for inner in value if field.is_repeated else [value]:
                yield from messages(inner)


def proto_damage(data: bytes, random: Random) -> bytes:
    """A few fields of the model, whichever they are, given other contents."""
    model = onnx.ModelProto.FromString(data)
    for _ in range(int(random.choice([1, 1, 1, 2, 4]))):
        everything = list(messages(model))
        message = everything[random.integers(len(everything))]
        fields = [f for f in message.DESCRIPTOR.fields if message.ListFields() and (random.integers(8) == 0 or _is_set(message, f))]
        if fields:
            _change(message, fields[random.integers(len(fields))], everything, random)
    return model.SerializeToString()


def _is_set(message: Message, field: Any) -> bool:
    return any(f.number == field.number for f, _ in message.ListFields())


def _change(message: Message, field: Any, everything: list[Message], random: Random) -> None:
    if field.is_repeated:
        _change_list(getattr(message, field.name), field, everything, random)
    elif field.type == field.TYPE_MESSAGE:
        alike = [m for m in everything if m.DESCRIPTOR.full_name == field.message_type.full_name and m is not message]
        if not alike or random.integers(3) == 0:
            message.ClearField(field.name)
        else:
            copy = alike[random.integers(len(alike))].SerializeToString()
            getattr(message, field.name).ParseFromString(copy)
    elif random.integers(6) == 0:
        message.ClearField(field.name)
    else:
        setattr(message, field.name, _scalar(field, everything, random))


def _change_list(values: Any, field: Any, everything: list[Message], random: Random) -> None:
    place = int(random.integers(len(values))) if len(values) else 0
    match random.integers(6):
        case 0 if len(values):
            del values[place]
        case 1 if len(values):
            del values[place:]
        case 2 if len(values) > 1:
            other = int(random.integers(len(values)))
            copies = [v if not isinstance(v, Message) else type(v).FromString(v.SerializeToString()) for v in values]
            copies[place], copies[other] = copies[other], copies[place]
            del values[:]
            values.extend(copies)
        case 3 if field.type != field.TYPE_MESSAGE and random.integers(8) == 0:
            values.extend([_scalar(field, everything, random)] * int(random.choice([9, 1000, 100000])))
        case 4 if field.type != field.TYPE_MESSAGE and len(values):
            values[place] = _scalar(field, everything, random)
        case _ if field.type == field.TYPE_MESSAGE:
            alike = [m for m in everything if m.DESCRIPTOR.full_name == field.message_type.full_name]
            if alike:
                values.add().ParseFromString(alike[random.integers(len(alike))].SerializeToString())
        case _:
            values.append(_scalar(field, everything, random))


def _scalar(field: Any, everything: list[Message], random: Random) -> Any:
    """A value for a field: an absurd one, or one that stands elsewhere in the model."""
    if field.type == field.TYPE_ENUM:
        return int(random.choice([v.number for v in field.enum_type.values]))
    if field.type in (field.TYPE_FLOAT, field.TYPE_DOUBLE):
        return float(random.choice(FLOATS))
    if field.type == field.TYPE_BYTES:
        return random.bytes(int(random.choice([0, 1, 4, 8, 100]))) if random.integers(2) else random.choice(WORDS).encode()
    if field.type == field.TYPE_STRING:
        known = [n for m in everything for n in (*getattr(m, "input", ()), *getattr(m, "output", ())) if isinstance(n, str)]
        known += [m.op_type for m in everything if isinstance(m, onnx.NodeProto)]
        return str(random.choice(known)) if known and random.integers(4) else str(random.choice(WORDS))
    number = int(random.choice(INTEGERS)) if random.integers(3) else int(random.integers(-3, 30))
    wide = field.type in (field.TYPE_INT64, field.TYPE_UINT64)
    low, high = (0, (1 << 64) - 1) if field.type in (field.TYPE_UINT64, field.TYPE_UINT32) else (-(1 << 63), (1 << 63) - 1)
    return number if wide and low <= number <= high else min(max(number, low, -(1 << 31)), (1 << 31) - 1)


# --- whole models ---------------------------------------------------------------------------------------------------------


def model_damage(data: bytes, random: Random) -> bytes:
    """One thing done to a model as a whole."""
    model = onnx.ModelProto.FromString(data)
    change = CHANGES[random.integers(len(CHANGES))]
    change(model, random)
    return model.SerializeToString()


def _pick(items: Any, random: Random) -> Any:
    return items[int(random.integers(len(items)))] if len(items) else None


def swap_operator(model: onnx.ModelProto, random: Random) -> None:
    node = _pick(model.graph.node, random)
    names = sorted({s.name for s in onnx.defs.get_all_schemas()})
    if node is not None:
        node.op_type, node.domain = str(random.choice(names)), ""


def drop_input(model: onnx.ModelProto, random: Random) -> None:
    node = _pick(model.graph.node, random)
    if node is not None and node.input:
        place = int(random.integers(len(node.input)))
        if random.integers(2):
            node.input[place] = ""
        else:
            del node.input[place]


def rewire(model: onnx.ModelProto, random: Random) -> None:
    """Another value read: an earlier one, a later one (a cycle), the node's own result."""
    node = _pick(model.graph.node, random)
    names = [n for other in model.graph.node for n in (*other.output, *other.input)] + [v.name for v in model.graph.input]
    if node is not None and node.input and names:
        choices = (str(random.choice(names)), node.output[0] if node.output else "")
        node.input[int(random.integers(len(node.input)))] = choices[int(random.integers(4) == 0)]


def double_node(model: onnx.ModelProto, random: Random) -> None:
    node = _pick(model.graph.node, random)
    if node is not None:
        model.graph.node.add().CopyFrom(node)


def drop_node(model: onnx.ModelProto, random: Random) -> None:
    if model.graph.node:
        del model.graph.node[int(random.integers(len(model.graph.node)))]


def set_attributes(model: onnx.ModelProto, random: Random) -> None:
    """All attributes of a node, or one the operator has and the node lacks, absurd."""
    node = _pick(model.graph.node, random)
    if node is None:
        return
    number, real = int(random.choice(INTEGERS)), float(random.choice(FLOATS))
    if onnx.defs.has(node.op_type, node.domain) and random.integers(2):
        schema = onnx.defs.get_schema(node.op_type, node.domain)
        for name, attribute in schema.attributes.items():
            if random.integers(2) and name not in {a.name for a in node.attribute}:
                node.attribute.add(name=name, type=int(attribute.type.value))
    for attribute in node.attribute:
        if random.integers(3) == 0:
            continue
        if attribute.type == onnx.AttributeProto.INT:
            attribute.i = number
        elif attribute.type == onnx.AttributeProto.FLOAT:
            attribute.f = real
        elif attribute.type == onnx.AttributeProto.INTS:
            attribute.ints[:] = [number] * int(random.choice([0, 1, len(attribute.ints), len(attribute.ints) + 1, 30, 5000]))
        elif attribute.type == onnx.AttributeProto.FLOATS:
            attribute.floats[:] = [real] * int(random.choice([0, 1, len(attribute.floats), 30, 5000]))
        elif attribute.type == onnx.AttributeProto.STRING:
            attribute.s = str(random.choice(WORDS)).encode()
        elif attribute.type == onnx.AttributeProto.STRINGS:
            attribute.strings[:] = [str(random.choice(WORDS)).encode()] * int(random.choice([0, 1, len(attribute.strings), 30]))


def change_attribute_type(model: onnx.ModelProto, random: Random) -> None:
    node = _pick(model.graph.node, random)
    attribute = None if node is None else _pick(node.attribute, random)
    if attribute is not None:
        attribute.type = int(random.integers(15))


def change_contents(model: onnx.ModelProto, random: Random) -> None:
    """Contents of a small constant: axes, shapes, indices, scales beyond all measure."""
    tensors = [t for t in model.graph.initializer if onnx.numpy_helper.to_array(t).size <= 64]
    tensors += [a.t for n in model.graph.node for a in n.attribute if a.HasField("t")]
    tensor = _pick(tensors, random)
    if tensor is None:
        return
    array = np.array(onnx.numpy_helper.to_array(tensor))
    if array.dtype.kind in "iu":
        wide = np.array(int(random.choice(INTEGERS)), np.int64)
        with np.errstate(all="ignore"):
            array[...] = np.where(random.integers(0, 2, array.shape).astype(bool), wide.astype(array.dtype), array)
    elif array.dtype.kind == "f":
        array[...] = np.where(random.integers(0, 2, array.shape).astype(bool), np.float32(random.choice(FLOATS)), array)
    tensor.CopyFrom(onnx.numpy_helper.from_array(array, tensor.name))


def change_dims(model: onnx.ModelProto, random: Random) -> None:
    """The shape of an initializer, with its contents or without."""
    tensor = _pick(model.graph.initializer, random)
    if tensor is None:
        return
    array = np.array(onnx.numpy_helper.to_array(tensor))
    match random.integers(4):
        case 0:
            tensor.CopyFrom(onnx.numpy_helper.from_array(array.reshape(-1), tensor.name))
        case 1:
            tensor.CopyFrom(onnx.numpy_helper.from_array(array[None], tensor.name))
        case 2:
            tensor.CopyFrom(onnx.numpy_helper.from_array(array.reshape(-1)[: int(random.integers(3))], tensor.name))
        case _:
            tensor.dims[:] = [int(random.choice(INTEGERS)) for _ in range(int(random.integers(5)))]


def change_type(model: onnx.ModelProto, random: Random) -> None:
    """The element type of an input or an initializer; the contents of an initializer are converted."""
    number = int(random.integers(1, 27))
    if random.integers(2) or not model.graph.initializer:
        if (value := _pick(model.graph.input, random)) is not None:
            value.type.tensor_type.elem_type = number
        return
    tensor = _pick(model.graph.initializer, random)
    array = onnx.numpy_helper.to_array(tensor)
    kinds = {1: np.float32, 7: np.int64, 11: np.float64, 9: np.bool_, 2: np.uint8, 6: np.int32, 10: np.float16}
    if number in kinds and array.dtype.kind in "fiub":
        with np.errstate(all="ignore"):
            tensor.CopyFrom(onnx.numpy_helper.from_array(np.asarray(array).astype(kinds[number]), tensor.name))
    else:
        tensor.data_type = number


def change_input_shape(model: onnx.ModelProto, random: Random) -> None:
    value = _pick(model.graph.input, random)
    if value is None:
        return
    shape = value.type.tensor_type.shape
    match random.integers(4):
        case 0:
            shape.dim.add(dim_value=int(random.choice([0, 1, 2, 5, 1 << 40])))
        case 1 if shape.dim:
            del shape.dim[int(random.integers(len(shape.dim)))]
        case 2 if shape.dim:
            shape.dim[int(random.integers(len(shape.dim)))].dim_param = str(random.choice(["n", "h", "", "a b", "n*2"]))
        case _ if shape.dim:
            shape.dim[int(random.integers(len(shape.dim)))].dim_value = int(random.choice(INTEGERS))


def change_outputs(model: onnx.ModelProto, random: Random) -> None:
    """Outputs made by nothing, given out twice, of other types, or a value from the middle."""
    outputs = model.graph.output
    match random.integers(5):
        case 0:
            outputs.add(name="nowhere")
        case 1 if outputs:
            outputs.add().CopyFrom(outputs[0])
        case 2 if outputs:
            outputs[0].type.tensor_type.elem_type = int(random.integers(25))
        case 3:
            del outputs[:]
        case _:
            names = [n for node in model.graph.node for n in node.output] + [v.name for v in model.graph.input]
            if names:
                outputs.add(name=str(random.choice(names)))


def change_opset(model: onnx.ModelProto, random: Random) -> None:
    versions = (0, -5, 1, 6, 7, 9, 10, 11, 12, 13, 17, 18, 21, 10**9, (1 << 63) - 1)
    match random.integers(4):
        case 0:
            del model.opset_import[:]
        case 1:
            model.opset_import.add(domain=str(random.choice(["", "ai.onnx", "x", "ai.onnx.ml"])), version=int(random.choice(versions)))
        case _ if model.opset_import:
            model.opset_import[0].version = int(random.choice(versions))


def nest(model: onnx.ModelProto, random: Random, depth: int = 0) -> None:
    """Everything within branches within branches."""
    depth = depth or int(random.choice([1, 2, 5, 12]))
    names = [v.name for v in model.graph.output]
    for level in range(depth):
        inner, other = onnx.GraphProto(name=f"g{level}"), onnx.GraphProto(name=f"h{level}")
        inner.node.extend(model.graph.node)
        for name in names:
            inner.output.add(name=name)
            zero = onnx.numpy_helper.from_array(np.zeros((), np.float32))
            other.node.append(onnx.helper.make_node("Constant", [], [f"{name}.{level}.zero"], value=zero))
            other.output.add(name=f"{name}.{level}.zero")
        del model.graph.node[:]
        constant = bool(random.integers(2))
        condition = f"c{level}"
        if constant:
            model.graph.initializer.append(onnx.numpy_helper.from_array(np.array(bool(random.integers(2))), condition))
        elif condition not in {v.name for v in model.graph.input}:
            model.graph.input.append(onnx.helper.make_tensor_value_info(condition, onnx.TensorProto.BOOL, []))
        outer = [f"{n}.{level}" for n in names]
        model.graph.node.append(onnx.helper.make_node("If", [condition], outer, then_branch=inner, else_branch=other))
        names = outer
    types = [v.type for v in model.graph.output]
    del model.graph.output[:]
    for name, type_ in zip(names, types, strict=True):
        model.graph.output.add(name=name, type=type_)


def recurse(model: onnx.ModelProto, random: Random) -> None:
    """A function that calls itself, or another that calls it."""
    several = bool(random.integers(2))
    opset = [onnx.helper.make_opsetid("", 17), onnx.helper.make_opsetid("own", 1)]
    for name, other in (("f", "h" if several else "f"), ("h", "f")):
        node = onnx.helper.make_node(other, ["a"], ["b"], domain="own")
        model.functions.append(onnx.helper.make_function("own", name, ["a"], ["b"], [node], opset))
    model.opset_import.add(domain="own", version=1)
    if model.graph.input:
        model.graph.node.append(onnx.helper.make_node("f", [model.graph.input[0].name], ["recursive"], domain="own"))
        model.graph.output.add(name="recursive")


def explode(model: onnx.ModelProto, random: Random) -> None:
    """Functions that call one another twice each: 2 to the 30 nodes once they are inlined."""
    opset = [onnx.helper.make_opsetid("", 17), onnx.helper.make_opsetid("own", 1)]
    for level in range(30):
        below = f"f{level - 1}" if level else "Relu"
        nodes = [onnx.helper.make_node(below, ["a"], ["m"], domain="own" if level else ""),
                 onnx.helper.make_node(below, ["m"], ["b"], domain="own" if level else "")]
        model.functions.append(onnx.helper.make_function("own", f"f{level}", ["a"], ["b"], nodes, opset))
    model.opset_import.add(domain="own", version=1)
    if model.graph.input:
        model.graph.node.append(onnx.helper.make_node("f29", [model.graph.input[0].name], ["exploded"], domain="own"))
        model.graph.output.add(name="exploded")


def inflate(model: onnx.ModelProto, random: Random) -> None:
    """A value larger than any memory, made of a few bytes."""
    size = int(random.choice([1 << 24, 1 << 31, 1 << 40, 1 << 62]))
    shape = [size] if random.integers(2) else [1 << 20, size >> 20 or 1]
    kinds = (
        lambda: [onnx.helper.make_node("ConstantOfShape", ["big.shape"], ["big"])],
        lambda: [onnx.helper.make_node("Expand", ["big.zero", "big.shape"], ["big"])],
        lambda: [onnx.helper.make_node("Range", ["big.start", "big.end", "big.one"], ["big"])],
        lambda: [onnx.helper.make_node("Tile", ["big.vector", "big.repeats"], ["big"])],
        lambda: [onnx.helper.make_node("Pad", ["big.vector", "big.pads"], ["big"])],
        lambda: [onnx.helper.make_node("EyeLike", ["big.square"], ["big"]),
                 onnx.helper.make_node("ConstantOfShape", ["big.shape2"], ["big.square"])],
        lambda: [onnx.helper.make_node("OneHot", ["big.vector", "big.end", "big.values"], ["big"])],
        lambda: [onnx.helper.make_node("Resize", ["big.image", "", "", "big.sizes"], ["big"])],
    )
    constants = {"big.shape": shape, "big.start": 0, "big.end": size, "big.one": 1, "big.repeats": [size], "big.pads": [0, size],
                 "big.shape2": [1 << 20, 1 << 20], "big.vector": [1, 2], "big.values": [0, 1], "big.sizes": [1, 1, 1 << 16, size >> 16]}
    for name, value in constants.items():
        model.graph.initializer.append(onnx.numpy_helper.from_array(np.array(value, np.int64), name))
    for name, rank in (("big.zero", 0), ("big.image", 4)):
        model.graph.initializer.append(onnx.numpy_helper.from_array(np.zeros((1,) * rank, np.float32), name))
    model.graph.node.extend(kinds[random.integers(len(kinds))]())
    if random.integers(2):
        model.graph.output.add(name="big")
    else:
        model.graph.node.append(onnx.helper.make_node("ReduceSum", ["big"], ["small"], keepdims=0))
        model.graph.output.add(name="small")


CHANGES: tuple[Callable[[onnx.ModelProto, Random], None], ...] = (
    swap_operator, drop_input, rewire, double_node, drop_node, set_attributes, set_attributes, set_attributes,
    change_attribute_type, change_contents, change_contents, change_dims, change_type, change_input_shape, change_outputs, change_opset,
    nest, recurse, explode, inflate,
)
