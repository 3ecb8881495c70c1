"""Faces other tools expect: an ONNX Runtime session."""
