"""IR3: the loop language, its verifier and printer, and its LLVM renderer; the native executor and the linker."""
