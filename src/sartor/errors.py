"""The errors Sartor raises.  Each carries one sentence: what is wrong, where, what was expected, what to do."""

from __future__ import annotations

LONGEST = 800
"""Characters of a sentence."""


class SartorError(Exception):
    """Base of all errors raised on purpose.  `exit_code` is what the command line returns for it."""

    exit_code = 1

    def __str__(self) -> str:
        """The sentence: one line, and not without end, whatever the names and numbers in it."""
        text = " ".join(super().__str__().splitlines())
        return text if len(text) <= LONGEST else f"{text[: LONGEST - 100]} ... {text[-90:]}"


class ModelError(SartorError):
    """The model file is broken, incomplete or not ONNX."""


class UnsupportedError(SartorError):
    """The model or this device needs something Sartor does not support.  `values` names the model's values it concerns, if any."""

    values: tuple[str, ...] = ()
    exit_code = 4


class FeedError(SartorError):
    """Inputs of a run have wrong names, types or sizes."""


class OptionError(SartorError):
    """An option has an impossible value."""

    exit_code = 2


class ProgramError(SartorError):
    """A program file is damaged, foreign, newer, or made for another machine."""


class GraphError(SartorError):
    """An internal check between graph passes failed."""


class LoopError(SartorError):
    """A loop program is malformed."""
