"""The meaning of element-wise expressions in NumPy, one function an operation.

Floats are computed in the type of the arrays given (those of 16 bits and fewer in f32); arrays of float64 stay float64 throughout,
which is how the wide reference works: a cast to another float type of 16 bits or more then changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np

from sartor.errors import GraphError
from sartor.graph import codes
from sartor.graph.expression import Expression, Node
from sartor.types import from_numpy, to_numpy, working

Array: TypeAlias = np.ndarray[Any, Any]

FLOATS = ("f16", "bf16", "f32", "f64")

# erf after fdlibm's s_erf.c (Sun Microsystems, 1993): rational approximations on four intervals, error below 1 ulp in float64.
_ERF_SMALL = ((1.28379167095512558561e-01, -3.25042107247001499370e-01, -2.84817495755985104766e-02, -5.77027029648944159157e-03,
               -2.37630166566501626084e-05),
              (1.0, 3.97917223959155352819e-01, 6.50222499887672944485e-02, 5.08130628187576562776e-03, 1.32494738004321644526e-04,
               -3.96022827877536812320e-06))
_ERF_ONE = 8.45062911510467529297e-01
_ERF_MIDDLE = ((-2.36211856075265944077e-03, 4.14856118683748331666e-01, -3.72207876035701323847e-01, 3.18346619901161753674e-01,
                -1.10894694282396677476e-01, 3.54783043256182359371e-02, -2.16637559486879084300e-03),
               (1.0, 1.06420880400844228286e-01, 5.40397917702171048937e-01, 7.18286544141962662868e-02, 1.26171219808761642112e-01,
                1.36370839120290507362e-02, 1.19844998467991074170e-02))
_ERF_LARGE = ((-9.86494403484714822705e-03, -6.93858572707181764372e-01, -1.05586262253232909814e+01, -6.23753324503260060396e+01,
               -1.62396669462573470355e+02, -1.84605092906711035994e+02, -8.12874355063065934246e+01, -9.81432934416914548592e+00),
              (1.0, 1.96512716674392571292e+01, 1.37657754143519042600e+02, 4.34565877475229228821e+02, 6.45387271733267880336e+02,
               4.29008140027567833386e+02, 1.08635005541779435134e+02, 6.57024977031928170135e+00, -6.04244152148580987438e-02))
_ERF_HUGE = ((-9.86494292470009928597e-03, -7.99283237680523006574e-01, -1.77579549177547519889e+01, -1.60636384855821916062e+02,
              -6.37566443368389627722e+02, -1.02509513161107724954e+03, -4.83519191608651397019e+02),
             (1.0, 3.03380607434824582924e+01, 3.25792512996573918826e+02, 1.53672958608443695994e+03, 3.19985821950859553908e+03,
              2.55305040643316442583e+03, 4.74528541206955367215e+02, -2.24409524465858183362e+01))


def erf(x: Array) -> Array:
    """The error function, computed in float64 to about one unit in its last place."""

    def ratio(coefficients: tuple[tuple[float, ...], tuple[float, ...]], t: Array) -> Array:
        return np.asarray(np.polyval(coefficients[0][::-1], t) / np.polyval(coefficients[1][::-1], t))

    wide = np.asarray(x, np.float64)
    a = np.minimum(np.abs(wide), 6.0)
    out = np.array(np.sign(wide))
    out[np.isnan(wide)] = np.nan
    small, middle = a < 0.84375, (a >= 0.84375) & (a < 1.25)
    large, huge = (a >= 1.25) & (a < 1 / 0.35), (a >= 1 / 0.35) & (a < 6.0)
    t = wide[small]
    out[small] = t + t * ratio(_ERF_SMALL, t * t)
    out[middle] *= _ERF_ONE + ratio(_ERF_MIDDLE, a[middle] - 1.0)
    for where, coefficients in ((large, _ERF_LARGE), (huge, _ERF_HUGE)):
        t = a[where]
        out[where] *= 1.0 - np.exp(-t * t - 0.5625 + ratio(coefficients, 1.0 / (t * t))) / t
    return out


def _divide(a: Array, b: Array) -> Array:
    if a.dtype.kind == "f":
        return np.divide(a, b)
    quotient = np.floor_divide(a, b)
    if a.dtype.kind == "u":
        return quotient
    return quotient + ((np.remainder(a, b) != 0) & ((a < 0) != (b < 0)))  # type: ignore[no-any-return]


def _power(a: Array, b: Array) -> Array:
    if a.dtype.kind == "f":
        return np.asarray(np.power(a, b.astype(a.dtype)))
    if b.dtype.kind == "f" or (b.dtype.kind == "i" and np.any(b < 0)):
        return codes.cast(np.power(a.astype(np.float64), b.astype(np.float64)), from_numpy(a.dtype))
    return np.asarray(np.power(a, b.astype(a.dtype)))


def _sigmoid(x: Array) -> Array:
    e = np.exp(-np.abs(x))
    return np.where(x >= 0, 1, e) / (1 + e)  # type: ignore[no-any-return]


def _shift(function: Callable[[Array, Array], Array]) -> Callable[[Array, Array], Array]:
    def shift(a: Array, b: Array) -> Array:
        bits = a.dtype.itemsize * 8
        return np.where(b < bits, function(a, np.minimum(b, bits - 1).astype(a.dtype)), 0).astype(a.dtype)

    return shift


def _is_inf(x: Array, sign: str) -> Array:
    found = np.isinf(x)
    if sign == "both":
        return found
    return found & (x > 0) if sign == "positive" else found & (x < 0)


def _erf_of(x: Array) -> Array:
    """Of integers as a single: what is 1 to its precision is 1."""
    return (erf(x) if x.dtype.kind == "f" else erf(x).astype(np.float32)).astype(x.dtype)


_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "add": np.add, "sub": np.subtract, "mul": np.multiply, "div": _divide, "min": np.minimum, "max": np.maximum, "pow": _power,
    "mod": np.remainder, "fmod": np.fmod, "atan2": np.arctan2, "neg": np.negative, "abs": np.abs, "sqrt": np.sqrt, "exp": np.exp,
    "log": np.log, "tanh": np.tanh, "erf": _erf_of, "sigmoid": _sigmoid, "sin": np.sin, "cos": np.cos,
    "tan": np.tan, "asin": np.arcsin, "acos": np.arccos, "atan": np.arctan, "sinh": np.sinh, "cosh": np.cosh, "asinh": np.arcsinh,
    "acosh": np.arccosh, "atanh": np.arctanh, "floor": np.floor, "ceil": np.ceil, "round": np.rint, "sign": np.sign,
    "reciprocal": np.reciprocal, "softplus": lambda x: np.logaddexp(x, x.dtype.type(0)),
    "relu": lambda x: np.maximum(x, x.dtype.type(0)), "eq": np.equal, "ne": np.not_equal, "lt": np.less, "le": np.less_equal,
    "gt": np.greater, "ge": np.greater_equal, "and": np.logical_and, "or": np.logical_or, "xor": np.logical_xor,
    "not": np.logical_not, "bit_and": np.bitwise_and, "bit_or": np.bitwise_or, "bit_xor": np.bitwise_xor, "bit_not": np.invert,
    "shift_left": _shift(np.left_shift), "shift_right": _shift(np.right_shift), "is_nan": np.isnan, "select": np.where,
}
_FLOAT_ONLY_IDENTITY = ("floor", "ceil", "round")  # on integers these change nothing


def _compute_dtype(name: str, wide: bool) -> np.dtype[Any]:
    if name in FLOATS:
        return np.dtype(np.float64 if wide or name == "f64" else np.float32)
    return to_numpy(working(name))


def _node(node: Node, args: list[Array], sources: list[str], wide: bool) -> Array:
    dtype = _compute_dtype(node.dtype, wide)
    if node.op == "constant":
        return np.asarray(node.value, dtype)
    if node.op == "cast":
        if wide and node.dtype in FLOATS:
            return args[0].astype(dtype)
        return codes.cast(args[0], node.dtype, None if node.value is None else str(node.value)).astype(dtype, copy=False)
    if node.op == "bitcast":
        return codes.bitcast(args[0], sources[0], node.dtype).astype(dtype, copy=False)
    if node.op == "is_inf":
        return _is_inf(args[0], str(node.value))
    if node.op in _FLOAT_ONLY_IDENTITY and args[0].dtype.kind != "f":
        return args[0]
    function = _FUNCTIONS.get(node.op)
    if function is None:
        raise GraphError(f"an expression has the unknown operation {node.op}")
    return np.asarray(function(*args)).astype(dtype, copy=False)


def evaluate_expression(expression: Expression, operands: Sequence[Array]) -> Array:
    """The expression on arrays, one for each operand, broadcast against each other.

    Floats wider than their operand's declared type (float64 for f32) make the whole computation wide; the result then is float64
    where the expression gives a float.
    """
    declared = [node.dtype for node in expression.nodes[:expression.operands]]
    wide = any(t in FLOATS and t != "f64" and np.asarray(o).dtype == np.float64 for t, o in zip(declared, operands, strict=True))
    return _evaluate(expression, operands, wide)


def _evaluate(expression: Expression, operands: Sequence[Array], wide: bool) -> Array:
    values: list[Array] = []
    with np.errstate(all="ignore"):
        for index, node in enumerate(expression.nodes):
            if index < expression.operands:
                values.append(np.asarray(operands[index]).astype(_compute_dtype(node.dtype, wide), copy=False))
            else:
                values.append(_node(node, [values[a] for a in node.args], [expression.nodes[a].dtype for a in node.args], wide))
    result = values[expression.result]
    return result if wide else result.astype(to_numpy(expression.dtype), copy=False)
