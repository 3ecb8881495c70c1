"""The command line: one file a verb, found by name in `main`.  Data goes to stdout, talk to stderr."""
