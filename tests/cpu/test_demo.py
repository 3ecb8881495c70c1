"""The main job: the unmodified package reads the same text on Sartor as on ONNX Runtime."""

import json

import pytest

from sartor.cli import main, picture

pytest.importorskip("rapidocr_onnxruntime")
pytest.importorskip("onnxruntime")


def test_the_picture_is_read_alike_on_both(capsys, tmp_path):
    assert main.run(["demo", "--passes", "1", "--json", "--save", str(tmp_path / "page.png")]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["same"]
    assert found["sartor"] == found["onnxruntime"]
    read = "".join(found["sartor"]).replace(" ", "")
    for word in ("Sartor", "machine", "3.14159", "1889"):
        assert word in read
    assert len(found["sartor"]) == len(picture.LINES)
    assert not any(found["fallbacks"].values())
    assert all(times["sartor_ms"] > 0 and times["onnxruntime_ms"] > 0 for times in found["networks"].values())
    assert (tmp_path / "page.png").read_bytes().startswith(b"\x89PNG")
