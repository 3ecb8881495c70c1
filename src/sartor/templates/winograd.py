"""Winograd convolution.

NOTE to GEMM: the coordinator has given this file to another engineer (WINOGRAD), who is writing it right now.  Skip Winograd; after
depthwise, grouped and deconvolution go on to tuning gemm/convolution for speed (first layers, small M, 2 threads).
"""
