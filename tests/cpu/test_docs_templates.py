"""The example of docs/templates.md works as it stands there."""

import re
from pathlib import Path

import pytest
from tests.cpu import harness

from sartor.sizes import symbol
from sartor.templates.base import Template

PAGE = Path(__file__).parents[2] / "docs" / "templates.md"


@pytest.fixture(scope="module")
def namespace():
    found = {"__name__": "docs_templates"}
    for block in re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL):
        exec(compile(block, str(PAGE), "exec", dont_inherit=True), found)
    return found


def test_the_template_computes_what_it_says(namespace):
    namespace["check_row_rms"](namespace["RowRms"]())


def test_it_fulfils_the_contract(namespace):
    template = namespace["RowRms"]()
    assert isinstance(template, Template)
    rows, width = symbol("rows"), symbol("width")
    problem = harness.problem("normalize", {"x": ("f32", (rows, width))}, ("f32", (rows, width)), axes=(1,), mode="rms", epsilon=1e-3)
    for config in template.space(problem, harness.device()):
        harness.check(template, problem, sizes={"rows": 3, "width": 29}, config=config)
    assert not template.applies(harness.problem("softmax", {"x": ("f32", (2, 2))}, ("f32", (2, 2)), axis=1, log=False), harness.device())


def test_every_template_is_a_file_the_page_can_point_to():
    text = PAGE.read_text()
    for name in re.findall(r"`((?:src|tests|templates|graph)/[\w/.]+)`", text):
        assert any((PAGE.parents[1] / base / name).exists() for base in (".", "src/sartor")), name
