"""Small networks in ONNX as exporters write them: a convolution network, a transformer layer written out, an LSTM, a perceptron."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx.helper as oh
import onnx.numpy_helper as onh

Array = np.ndarray[Any, Any]


class Net:
    """Collects nodes and weights."""

    def __init__(self, seed: int = 5) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []
        self.random = np.random.default_rng(seed)

    def weight(self, *shape: int, scale: float = 0.2, shift: float = 0.0) -> str:
        return self.constant((self.random.standard_normal(shape) * scale + shift).astype(np.float32))

    def constant(self, array: Any) -> str:
        name = f"w{len(self.weights)}"
        self.weights.append(onh.from_array(np.asarray(array), name))
        return name

    def __call__(self, op: str, *inputs: str, outputs: int = 1, **attributes: Any) -> Any:
        names = [f"{op}_{len(self.nodes)}_{i}" for i in range(outputs)]
        self.nodes.append(oh.make_node(op, list(inputs), names, name=f"{op}_{len(self.nodes)}", **attributes))
        return names if outputs > 1 else names[0]

    def model(self, inputs: dict[str, tuple[int, list[Any]]], *outputs: str, opset: int = 17) -> onnx.ModelProto:
        values = [oh.make_tensor_value_info(n, kind, dims) for n, (kind, dims) in inputs.items()]
        graph = oh.make_graph(self.nodes, "net", values, [oh.make_empty_tensor_value_info(v) for v in outputs], self.weights)
        imports = [oh.make_opsetid("", opset), oh.make_opsetid("com.microsoft", 1)]
        model = oh.make_model(graph, opset_imports=imports, ir_version=10)
        return onnx.shape_inference.infer_shapes(model)


def convolutions() -> onnx.ModelProto:
    """Convolutions with a residual, concatenation, every kind of pool, activations, and a classifier."""
    net = Net()

    def conv(x: str, inputs: int, outputs: int, **attributes: Any) -> str:
        return str(net("Conv", x, net.weight(outputs, inputs, 3, 3), net.weight(outputs), pads=[1, 1, 1, 1], **attributes))

    a = net("Relu", conv("x", 3, 8, strides=[2, 2]))
    b = net("Add", net("LeakyRelu", conv(a, 8, 8), alpha=0.1), a)
    c = net("Concat", net("MaxPool", b, kernel_shape=[2, 2], strides=[2, 2]),
            net("AveragePool", b, kernel_shape=[2, 2], strides=[2, 2]), axis=1)
    gate = net("Sigmoid", net("Conv", net("GlobalAveragePool", c), net.weight(16, 16, 1, 1), net.weight(16)))
    d = net("Mul", c, gate)
    flat = net("Flatten", net("GlobalAveragePool", net("Relu", conv(d, 16, 16))))
    y = net("Softmax", net("Gemm", flat, net.weight(10, 16), net.weight(10), transB=1), axis=-1)
    return net.model({"x": (1, ["n", 3, 16, 16])}, y)


def perceptron() -> onnx.ModelProto:
    """Two products with biases."""
    net = Net()
    hidden = net("Relu", net("Add", net("MatMul", "x", net.weight(24, 32)), net.weight(32)))
    return net.model({"x": (1, ["n", "s", 24])}, net("Add", net("MatMul", hidden, net.weight(32, 8)), net.weight(8)))


def recurrent() -> onnx.ModelProto:
    """A bidirectional LSTM and a product."""
    net = Net()
    y = net("LSTM", "x", net.weight(2, 64, 12), net.weight(2, 64, 16), net.weight(2, 128), outputs=3, hidden_size=16,
            direction="bidirectional")[0]
    joined = net("Reshape", net("Transpose", y, perm=[0, 2, 1, 3]), net.constant(np.array([0, 0, 32], np.int64)))
    return net.model({"x": (1, ["s", "n", 12])}, net("MatMul", joined, net.weight(32, 6)))


def _norm(net: Net, x: str, width: int) -> str:
    """Layer normalisation written out."""
    centred = net("Sub", x, net("ReduceMean", x, axes=[-1]))
    square = net("Pow", centred, net.constant(np.float32(2)))
    root = net("Sqrt", net("Add", net("ReduceMean", square, axes=[-1]), net.constant(np.float32(1e-5))))
    return str(net("Add", net("Mul", net("Div", centred, root), net.weight(width, shift=1.0)), net.weight(width)))


def _heads(net: Net, x: str, width: int, heads: int, perm: list[int]) -> str:
    """A projection in heads."""
    dense = net("Add", net("MatMul", x, net.weight(width, width)), net.weight(width))
    return str(net("Transpose", net("Reshape", dense, net.constant(np.array([0, 0, heads, width // heads], np.int64))), perm=perm))


def transformer(width: int = 32, heads: int = 4) -> onnx.ModelProto:
    """Embeddings and one encoder layer as BERT's exporters write it, with a mask of the tokens."""
    net = Net()
    words = net("Gather", net.weight(50, width), "ids")
    tokens = net("Add", net("Add", words, net.weight(1, 8, width)), net("Gather", net.weight(2, width), "kinds"))
    x = _norm(net, tokens, width)
    mask = net("Cast", net("Unsqueeze", net("Unsqueeze", "mask", net.constant(np.array([1]))), net.constant(np.array([2]))), to=1)
    bias = net("Mul", net("Sub", net.constant(np.float32(1)), mask), net.constant(np.float32(-10000)))
    q, k, v = (_heads(net, x, width, heads, p) for p in ([0, 2, 1, 3], [0, 2, 3, 1], [0, 2, 1, 3]))
    scores = net("Add", net("Div", net("MatMul", q, k), net.constant(np.float32((width / heads) ** 0.5))), bias)
    context = net("Transpose", net("MatMul", net("Softmax", scores, axis=-1), v), perm=[0, 2, 1, 3])
    joined = net("Reshape", context, net.constant(np.array([0, 0, width], np.int64)))
    x = _norm(net, net("Add", net("Add", net("MatMul", joined, net.weight(width, width)), net.weight(width)), x), width)
    inner = net("Add", net("MatMul", x, net.weight(width, 2 * width)), net.weight(2 * width))
    erf = net("Add", net("Erf", net("Div", inner, net.constant(np.float32(2**0.5)))), net.constant(np.float32(1)))
    gelu = net("Mul", net("Mul", inner, erf), net.constant(np.float32(0.5)))
    y = _norm(net, net("Add", net("Add", net("MatMul", gelu, net.weight(2 * width, width)), net.weight(width)), x), width)
    kinds = {name: (7, ["n", 8]) for name in ("ids", "kinds", "mask")}
    return net.model(kinds, y, opset=13)


def feeds(name: str, batch: int = 2) -> dict[str, Array]:
    """Random inputs of a network by its name."""
    random = np.random.default_rng(len(name) + batch)
    if name == "convolutions":
        return {"x": random.standard_normal((batch, 3, 16, 16)).astype(np.float32)}
    if name == "perceptron":
        return {"x": random.standard_normal((batch, 5, 24)).astype(np.float32)}
    if name == "recurrent":
        return {"x": random.standard_normal((7, batch, 12)).astype(np.float32)}
    mask = np.ones((batch, 8), np.int64)
    mask[:, 6:] = 0
    return {"ids": random.integers(0, 50, (batch, 8)), "kinds": random.integers(0, 2, (batch, 8)), "mask": mask}


NETWORKS = {"convolutions": convolutions, "perceptron": perceptron, "recurrent": recurrent, "transformer": transformer}
