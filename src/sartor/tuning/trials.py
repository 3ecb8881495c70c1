"""The search itself: what earlier runs measured, which candidates to measure next, and what comes of them.

Candidates are taken in small batches.  A batch is built and checked by all children side by side, then timed candidate by
candidate, each result stored before the next is measured.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TypeAlias

from sartor.devices.device import Device
from sartor.tuning.measurer import Measurer
from sartor.tuning.messages import Confirmation, Job, Timing, Verdict
from sartor.tuning.records import Record, Records, source_hash
from sartor.tuning.search import Choice, choice_key
from sartor.tuning.targets import Target

Batch: TypeAlias = list[tuple[Target, Choice]]

BATCH = 3  # candidates a child, so that those that take long to build do not leave the other children idle
BATCH_BYTES = 256 << 20  # of constants that the layers of one batch may have together, since children make their own
TIMING_SECONDS = 5.0  # how far beyond the deadline timing may go, of what is built
ROUNDS = 3
RIVAL = 1000  # added to a candidate's number for the best of its layer, which it is timed against
DROP_FACTOR = 1.3
WORTH_FOLLOWING = 0.97  # what won in one layer by less is not tried in others


class Trials:
    """Measures candidates for the layers of one network.

    Parameters
    ----------
    library
        The templates, as children find them: `module:attribute`.
    tell
        Called with the layer after each trial.
    """

    def __init__(
        self,
        targets: Sequence[Target],
        device: Device,
        threads: int,
        library: str,
        measurer: Measurer,
        records: Records,
        tell: Callable[[Target], None],
    ) -> None:
        self.targets, self.device, self.threads, self.library = targets, device, threads, library
        self.measurer, self.records, self._tell = measurer, records, tell
        self._batches = 0

    # --- records ---

    def recall(self, target: Target) -> None:
        """Takes over what was measured before, of templates that have not changed since."""
        templates = {template.name: template for template, _ in target.search.spaces}
        found: dict[str, dict[int, list[Record]]] = {}
        for place, sizes in enumerate(target.case.sizes):
            for record in self.records.find(target.problem.signature(), sizes, self.device.fingerprint, self.threads):
                template = templates.get(record.template)
                if template is not None and record.source == source_hash(type(template).__module__):
                    found.setdefault(choice_key(template, record.config), {}).setdefault(place, []).append(record)
        for key, by_place in found.items():
            records = [record for place in sorted(by_place) for record in by_place[place]]
            failed = next((record for record in records if record.status != "ok"), None)
            if failed is not None:
                verdict = Verdict(failed.status, failed.reason)
            elif len(by_place) == len(target.case.sizes):
                samples = (tuple(s for record in by_place[place] for s in record.samples) for place in sorted(by_place))
                verdict = Verdict("ok", samples=tuple(samples))
            else:
                continue  # some of the sizes are new: it is measured again at all of them
            target.search.tried.add(key)
            target.settle((templates[records[0].template], dict(records[0].config)), verdict)

    def store(self, target: Target, choice: Choice, verdict: Verdict) -> None:
        """Keeps a measurement; a failure counts for all the sizes it was tried at."""
        template, config = choice
        signature, source, device = target.problem.signature(), source_hash(type(template).__module__), self.device.fingerprint
        rows = []
        for place, sizes in enumerate(target.case.sizes):
            samples = verdict.samples[place] if verdict.status == "ok" else ()
            seconds = min(samples, default=None)
            rows.append(
                Record(
                    signature,
                    sizes,
                    device,
                    self.threads,
                    template.name,
                    source,
                    config,
                    verdict.status,
                    verdict.reason,
                    seconds,
                    samples,
                )
            )
        self.records.add(*rows)

    # --- trials ---

    def search(self, deadline: float) -> None:
        """Measures candidates until the deadline (`time.monotonic`), or until there is none left."""
        while batch := self._next_batch(deadline - time.monotonic()):
            self._measure(batch, deadline)

    def _next_batch(self, left: float) -> Batch:
        """The next candidates, of the layers that promise most among those whose trials fit into the seconds left."""
        batch: Batch = []
        taken: dict[int, int] = {}
        weight, peaks = 0, dict[tuple[str, ...], float]()
        for each in self.targets:
            peaks[each.templates] = max(each.rate, peaks.get(each.templates, 0.0))

        def promise(target: Target) -> float:
            # Each candidate of a batch lowers what the next one of the same layer promises.
            return target.promise(peaks[target.templates]) / (1 + taken.get(id(target), 0))

        while len(batch) < BATCH * self.measurer.children:
            target = max((t for t in self.targets if not t.search.exhausted and t.cost < left), key=promise, default=None)
            if target is None:
                break
            weight += target.bytes
            if batch and weight > BATCH_BYTES:
                break
            if choice := target.search.next(target.best, self._winners(target)):
                batch.append((target, choice))
                taken[id(target)] = taken.get(id(target), 0) + 1
        return batch

    def _winners(self, target: Target) -> list[Choice]:
        """What is faster than the default for other layers of the same kind, that with the largest gain first."""
        alike = [t for t in self.targets if t is not target and t.problem.layer.kind == target.problem.layer.kind]
        gained = [t for t in alike if t.best_seconds < WORTH_FOLLOWING * t.default_seconds]
        return [t.best for t in sorted(gained, key=lambda t: t.best_seconds / t.default_seconds) if t.best]

    def _measure(self, batch: Batch, deadline: float) -> None:
        self._batches += 1
        jobs = [self._job(number, target, choice) for number, (target, choice) in enumerate(batch)]
        begun = time.monotonic()
        built = [_Built(*one) for one in zip(batch, self.measurer.share(jobs, deadline), strict=True)]
        build_seconds = (time.monotonic() - begun) / len(batch)
        self._time(built, deadline + TIMING_SECONDS)
        for number, one in enumerate(built):
            begun = time.monotonic()
            target, choice = one.of
            if (verdict := self._verdict(number, one, deadline + TIMING_SECONDS)) is None:
                target.search.put_back(choice)
                continue
            self.store(target, choice, verdict)
            target.trials += 1
            target.cost = 0.5 * target.cost + 0.5 * (build_seconds + one.seconds + time.monotonic() - begun)
            target.settle(choice, verdict)
            self._tell(target)

    def _job(self, number: int, target: Target, choice: Choice) -> Job:
        template, config = choice
        return Job(self._batches, number, target.case, self.device, self.threads, self.library, template.name, config)

    def _time(self, built: Sequence[_Built], until: float) -> None:
        """Times what is built in rounds, since a machine's speed drifts; what is clearly slower than the best drops out."""
        best = {id(one.of[0]): one.of[0].best_seconds for one in built}
        for _ in range(ROUNDS):
            for number, one in enumerate(built):
                if not one.is_right or not self.measurer.runs(one.child):
                    continue
                target, begun = one.of[0], time.monotonic()
                if one.samples and target.seconds(one.samples) > DROP_FACTOR * best[id(target)]:
                    continue
                one.add(self.measurer.ask(Timing(number), one.child, until))
                one.seconds += time.monotonic() - begun
                if one.samples:
                    best[id(target)] = min(best[id(target)], target.seconds(one.samples))

    def _verdict(self, number: int, one: _Built, until: float) -> Verdict | None:
        """The verdict on a candidate, after one more check if it would win; None where nothing can be said of it."""
        if not one.is_right:
            return one.verdict
        if not one.samples or not self.measurer.runs(one.child):
            return None  # time is up, or its child ended over another candidate
        if self._wins(one):
            self._meet_best(number, one, until)
        if not one.is_right:
            return one.verdict
        if self._wins(one):
            confirmed: Verdict | None = self.measurer.ask(Confirmation(number), one.child, until)
            if confirmed is None or confirmed.status != "ok":
                return confirmed
        return Verdict("ok", samples=one.samples)

    def _wins(self, one: _Built) -> bool:
        return one.of[0].seconds(one.samples) < one.of[0].best_seconds

    def _meet_best(self, number: int, one: _Built, until: float) -> None:
        """Times a candidate that seems to win in turns with the best so far, whose time may be that of a worse moment."""
        target = one.of[0]
        if target.best is None:
            return
        rival = _Built(
            (target, target.best),
            (one.child, self.measurer.ask(self._job(RIVAL + number, target, target.best), one.child, until)),
        )
        for _ in range(ROUNDS):
            for its_number, each in ((RIVAL + number, rival), (number, one)):
                if rival.is_right and one.is_right and self.measurer.runs(one.child):
                    each.add(self.measurer.ask(Timing(its_number), one.child, until))
        if rival.samples:
            verdict = Verdict("ok", samples=rival.samples)
            self.store(target, target.best, verdict)
            target.settle_again(verdict)


class _Built:
    """A candidate of a batch: the child that built it, what became of it, and samples of its time as they are taken."""

    def __init__(self, of: tuple[Target, Choice], answer: tuple[int, Verdict | None] | None) -> None:
        self.of = of
        self.child = answer[0] if answer else 0
        self.verdict = answer[1] if answer else None
        self.samples: tuple[tuple[float, ...], ...] = ()
        self.seconds = 0.0

    @property
    def is_right(self) -> bool:
        """Whether it was built and no fault was found."""
        return self.verdict is not None and self.verdict.status == "built"

    def add(self, verdict: Verdict | None) -> None:
        """Takes the answer to a `Timing`."""
        if verdict is None:
            return
        if verdict.status != "ok":
            self.verdict = verdict
        elif self.samples:
            self.samples = tuple(old + new for old, new in zip(self.samples, verdict.samples, strict=True))
        else:
            self.samples = verdict.samples
