"""Builds each distinct layer once: layers that differ in names and weights alone share their loop programs."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import replace

from sartor.compiling.steps import Built
from sartor.devices.device import Device
from sartor.graph.layer import Problem
from sartor.templates.base import Argument, Config, Implementation, Pitch, Pointer, RowTable, Template

_SMALL = 16  # elements; the contents of constants up to this size may be compiled into a kernel


class Builder:
    """Builds implementations, and takes one built before where nothing but names and weights differs."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._known: dict[str, tuple[Problem, Implementation]] = {}

    def build(self, problem: Problem, template: Template, config: Config) -> Built:
        """The implementation and packed constants of a layer."""
        key = _key(problem, template, config)
        if key not in self._known:
            self._known[key] = (problem, template.build(problem, config, self._device))
        first, implementation = self._known[key]
        if first.layer is not problem.layer:
            implementation = _renamed(implementation, _names(first, problem))
        return Built(implementation, template.pack(problem, config, self._device))


def _key(problem: Problem, template: Template, config: Config) -> str:
    contents = [
        hashlib.sha256(array.tobytes()).hexdigest() if array.size <= _SMALL else "" for array in problem.constants.values()
    ]
    return json.dumps([problem.signature(), template.name, sorted(config.items()), contents])


def _names(old: Problem, new: Problem) -> dict[str, str]:
    """Values of one layer by those of another that has the same signature."""
    sides = ((old.layer.inputs, new.layer.inputs), (old.layer.extra, new.layer.extra), (old.layer.outputs, new.layer.outputs))
    return {a: b for left, right in sides for a, b in zip(left, right, strict=True)}


def _renamed(implementation: Implementation, names: Mapping[str, str]) -> Implementation:
    def rename(argument: Argument) -> Argument:
        return replace(argument, value=names[argument.value]) if isinstance(argument, Pointer | Pitch | RowTable) else argument

    calls = tuple(replace(call, arguments=tuple(map(rename, call.arguments))) for call in implementation.calls)
    return replace(implementation, calls=calls)
