"""Which configuration of a layer to measure next: the default, what won elsewhere, neighbours of the best, then anything.

Nothing here measures or learns beyond the layer and what won for others of its kind.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from sartor.devices.device import Device
from sartor.graph.layer import Problem
from sartor.templates.base import Space, Template
from sartor.tuning.records import canonical

Choice: TypeAlias = tuple[Template, dict[str, Any]]

FOLLOW = 0.5  # the share of tries that may take what won elsewhere
EXPLORE = 0.2  # the share of the others that go anywhere, instead of next to the best
STAY = 0.7  # the share of those that keep to the best's template
_DRAWS = 40  # tries at random before the whole space is searched for what is left


def choice_key(template: Template, config: Mapping[str, Any]) -> str:
    """Names a candidate among those of one layer."""
    return f"{template.name} {canonical(config)}"


@dataclass
class Search:
    """The candidates of one layer, in the order to try them.

    Attributes
    ----------
    spaces
        Those of all templates that can compute the layer.
    first
        What to try before anything else: the default of the layer and of each template.
    tried
        Keys of the candidates that were measured, now or earlier, or are being measured.
    """

    spaces: list[tuple[Template, Space]]
    first: list[Choice]
    tried: set[str] = field(default_factory=set)
    _again: list[Choice] = field(default_factory=list)
    _random: random.Random = field(default_factory=lambda: random.Random(0), repr=False)
    _exhausted: bool = False

    def next(self, best: Choice | None, winners: Iterable[Choice] = ()) -> Choice | None:
        """A candidate that was not tried, which counts as tried from now on; None where there is none.

        Parameters
        ----------
        best
            The fastest so far.
        winners
            What was fastest for other layers, the most promising first.
        """
        if self._again:
            return self._again.pop()
        if self._exhausted:
            return None
        for choice in self._proposals(best, winners):
            if (key := choice_key(*choice)) not in self.tried:
                self.tried.add(key)
                return choice
        self._exhausted = True
        return None

    def put_back(self, choice: Choice) -> None:
        """Has a candidate that `next` gave tried again, since nothing was learned of it."""
        self._again.append(choice)

    @property
    def exhausted(self) -> bool:
        """Whether `next` has found nothing to try."""
        return self._exhausted and not self._again

    def _proposals(self, best: Choice | None, winners: Iterable[Choice]) -> Iterator[Choice]:
        yield from self.first
        if self._random.random() < FOLLOW:
            for template, config in winners:
                if (space := self._space(template)) is not None and is_in(space, config):
                    yield template, config
        if best is not None and self._random.random() >= EXPLORE:
            yield from self._neighbours(best)
        for _ in range(_DRAWS):
            if (drawn := self._draw(best)) is not None:
                yield drawn
        yield from ((template, config) for template, space in self.spaces for config in space)

    def _space(self, template: Template) -> Space | None:
        return next((space for own, space in self.spaces if own is template), None)

    def _neighbours(self, best: Choice) -> Iterator[Choice]:
        """Configurations that differ from the best in one knob, in random order, the knob's nearest values first."""
        template, config = best
        if (space := self._space(template)) is None:
            return
        moves = []
        for knob, values in space.knobs.items():
            at = list(values).index(config[knob]) if config[knob] in values else 0
            for place, value in enumerate(values):
                if place != at:
                    moves.append((abs(place - at) + 2 * self._random.random(), knob, value))
        for _, knob, value in sorted(moves, key=lambda move: move[0]):
            if space.allowed(changed := {**config, knob: value}):
                yield template, changed

    def _draw(self, best: Choice | None) -> Choice | None:
        template, space = self._random.choice(self.spaces)
        if best is not None and self._random.random() < STAY:
            template, space = best[0], self._space(best[0]) or space
        config = {knob: self._random.choice(list(values)) for knob, values in space.knobs.items()}
        return (template, config) if space.allowed(config) else None


def is_in(space: Space, config: Mapping[str, Any]) -> bool:
    """Whether a configuration belongs to a space."""
    known = config.keys() == space.knobs.keys() and all(value in space.knobs[knob] for knob, value in config.items())
    return known and space.allowed(config)


def open_search(problem: Problem, device: Device, templates: Sequence[Template], default: Choice, seed: str) -> Search | None:
    """The search for a layer; None where there is nothing to choose between."""
    able = [template for template in templates if template.applies(problem, device)]
    spaces = [(template, template.space(problem, device)) for template in able]
    if len(able) < 2 and sum(math.prod(map(len, space.knobs.values())) for _, space in spaces) < 2:
        return None
    first = [default]
    for template, space in spaces:
        config = template.default(problem, device)
        if config is None:
            config = next(iter(space), None)
        if config is not None:
            first.append((template, dict(config)))
    return Search(spaces, first, _random=random.Random(seed))
