"""Networks written in PyTorch, through both of its exporters, with fixed and with dynamic sizes: the outputs are PyTorch's."""

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("onnxscript")

from tests.slow.torch_exporting import measured  # noqa: E402
from tests.slow.torch_networks import NETWORKS  # noqa: E402
from tests.slow.torch_pieces import ALONE, PIECES, together  # noqa: E402

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]
TORCHSCRIPT = [c for c in PIECES if "torchscript" in c.exporters]
DYNAMO = [*together(), *(c for c in PIECES if "dynamo" in c.exporters and (c.name in ALONE or len(c.arguments()[0]) > 1 or c.tolerance > 1e-4))]


def ways(cases, exporter=None):
    """Of each case: with which exporter, and whether its sizes stay open."""
    return [pytest.param(case, how, dynamic, id=f"{case.name[:60]}-{how}-{'dynamic' if dynamic else 'fixed'}")
            for case in cases for how in ([exporter] if exporter else case.exporters)
            for dynamic in ([False, True] if case.dynamic and how not in case.fixed_only else [False])]


@pytest.mark.parametrize(("case", "exporter", "dynamic"), [*ways(NETWORKS), *ways(TORCHSCRIPT, "torchscript"), *ways(DYNAMO, "dynamo")])
def test_outputs_are_those_of_pytorch(case, exporter, dynamic):
    try:
        error, fallbacks = measured(case, exporter, dynamic)
    except torch.onnx.OnnxExporterError as unable:
        pytest.skip(f"the exporter cannot: {str(unable).splitlines()[0]}")
    assert error <= case.tolerance
    assert tuple(f.rpartition("(")[2].rstrip(")") for f in fallbacks) == (case.hosted if dynamic or not case.dynamic else ())
