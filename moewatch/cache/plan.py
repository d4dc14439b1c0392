"""Which parts of a model to read into memory, in which order, so that none pushes out another. Pure.

Measured (memory for half of the experts): reading in file order left 42 % of what every token needs in memory, since the
end of the file pushes out its beginning; this order left 100 %. No page that is resident is read again.
"""

import heapq
from collections.abc import Iterable, Sequence

from moewatch.cache.runs import Run, add, first_bytes, intersect, normalise, subtract, total, whole_pages
from moewatch.domain.layout import ModelLayout, Tensor, WeightClass
from moewatch.domain.warm import ClassSum, FileRun, Plan, PlannedRange, Step, StepSum, What

PAGE_BYTES = 4096

_Files = list[list[Run]]  # runs per shard


def make_plan(
    layout: ModelLayout,
    resident: Sequence[Sequence[Run]],
    budget_bytes: int,
    what: What = What.AUTO,
    *,
    hot: Sequence[FileRun] | None = None,
    not_needed: frozenset[str] = frozenset(),
    page_bytes: int = PAGE_BYTES,
    may_displace: bool = True,
) -> Plan:
    """What every token needs, then the hot set, then experts of all layers alike, then (`all`) the rest; what fits.

    Args:
        layout: all tensors.
        resident: per shard the (start, end) runs in memory now, page by page; none of them is planned.
        budget_bytes: how much of the model may be in memory afterwards, what is there now included.
        what: where to stop.
        hot: the hot set, hottest first; its end is left out when not all of it fits.
        not_needed: tensors on the GPU.
        page_bytes: size of a page.
        may_displace: whether the first two steps may push out other parts of the model (for a server at rest). False
            while it generates: then only what is free is filled.
    """
    there = [normalise(runs) for runs in resident]
    classes = class_runs(layout, not_needed, page_bytes, with_drafts=what is What.ALL)
    resident_bytes = sum(map(total, there))
    spare = budget_bytes if may_displace else max(0, budget_bytes - resident_bytes)
    draft = _Draft(layout, there, classes, spare, page_bytes=page_bytes, counts_resident=may_displace)
    draft.fill(Step.DENSE, _in_order(classes[WeightClass.DENSE]))
    if what is not What.DENSE and hot is not None:
        draft.fill(Step.HOT, _known_runs(hot, classes, page_bytes, layout))
    if what in (What.AUTO, What.ALL):
        draft.leave_room_for_the_others()
        draft.level_layers(_slices(layout, not_needed, page_bytes, with_drafts=what is What.ALL))
    if what is What.ALL:
        draft.fill(Step.REST, _in_order(classes[WeightClass.EMBEDDING]))
    ranges = draft.ranges()
    planned_bytes = sum(each.length for each in ranges)
    displaced_bytes = max(0, min(resident_bytes, resident_bytes + planned_bytes - budget_bytes)) if planned_bytes else 0
    return Plan(
        what=what,
        budget_bytes=budget_bytes,
        ranges=ranges,
        steps=draft.sums(),
        classes=tuple(
            ClassSum(
                weight_class=weight_class,
                size_bytes=sum(map(total, runs)),
                resident_bytes=sum(total(intersect(*pair)) for pair in zip(runs, there, strict=True)),
                planned_bytes=sum(each.length for each in ranges if each.weight_class is weight_class),
            )
            for weight_class, runs in classes.items()
        ),
        resident_bytes=resident_bytes,
        displaced_bytes=displaced_bytes,
        held=draft.held() if displaced_bytes else (),
    )


def class_runs(
    layout: ModelLayout, not_needed: frozenset[str], page_bytes: int = PAGE_BYTES, *, with_drafts: bool = False
) -> dict[WeightClass, _Files]:
    """The pages of each class per shard, every page in one class: a shared one counts where it is needed most."""
    found: dict[WeightClass, _Files] = {}
    taken: _Files = [[] for _ in layout.files]
    for weight_class in (WeightClass.DENSE, WeightClass.EXPERT, WeightClass.EMBEDDING):
        pages: _Files = [[] for _ in layout.files]
        for tensor in layout.of_class(weight_class):
            if tensor.name not in not_needed and (with_drafts or not tensor.draft):
                pages[tensor.file_index].append(_pages(layout, tensor, tensor.offset, tensor.size_bytes, page_bytes))
        found[weight_class] = [subtract(normalise(runs), gone) for runs, gone in zip(pages, taken, strict=True)]
        taken = [normalise([*runs, *gone]) for runs, gone in zip(found[weight_class], taken, strict=True)]
    return found


class _Draft:
    """A plan in the making: what is wanted so far and how many bytes may still be."""

    def __init__(
        self,
        layout: ModelLayout,
        there: _Files,
        classes: dict[WeightClass, _Files],
        spare_bytes: int,
        *,
        page_bytes: int,
        counts_resident: bool,
    ) -> None:
        self._there = there
        self._classes = classes
        self._spare = spare_bytes
        self._page_bytes = page_bytes
        self._counts_resident = counts_resident
        self._wanted: _Files = [[] for _ in layout.files]  # of the steps so far, also what did not fit
        self._planned: list[tuple[Step, int, Run]] = []
        self._sums: dict[Step, list[int]] = {}  # size, resident, planned

    def fill(self, step: Step, runs: Iterable[tuple[int, Run]]) -> None:
        """Take runs in this order until the budget is spent; what earlier steps took is skipped.

        What of this step is in memory counts first: reading one part of it must not push out another.
        """
        claimed: list[tuple[int, list[Run]]] = []  # what is missing, in order
        for file_index, run in runs:
            new = subtract([run], self._wanted[file_index])
            missing = subtract(new, self._there[file_index])
            present = total(new) - total(missing)
            self._count(step, total(new), present, 0)
            if self._counts_resident:
                self._spare = max(0, self._spare - present)
            claimed.append((file_index, missing))
            for part in new:  # so that a run that comes twice counts once
                add(self._wanted[file_index], part)
        for file_index, missing in claimed:
            self._take(step, file_index, first_bytes(missing, self._spare, self._page_bytes))

    def leave_room_for_the_others(self) -> None:
        """From here on nothing that is in memory is pushed out: one expert is as good as another."""
        if self._counts_resident:
            others = sum(
                total(subtract(there, wanted)) for there, wanted in zip(self._there, self._wanted, strict=True)
            )
            self._spare = max(0, self._spare - others)
            self._counts_resident = False

    def level_layers(self, layers: dict[int, list[list[tuple[int, Run]]]]) -> None:
        """Experts, one at a time, for the layer that has the least share of its own in memory."""
        queue: list[tuple[float, int, int]] = []  # share in memory, layer, next expert
        covered: dict[int, int] = {}
        sizes: dict[int, int] = {}
        for pages, wanted, there in zip(self._classes[WeightClass.EXPERT], self._wanted, self._there, strict=True):
            new = subtract(pages, wanted)
            self._count(Step.EXPERTS, total(new), total(intersect(new, there)), 0)
        for layer, experts in layers.items():
            pieces = [piece for expert in experts for piece in expert]
            sizes[layer] = sum(end - start for _, (start, end) in pieces)
            covered[layer] = sizes[layer] - sum(total(self._missing(*piece)) for piece in pieces)
            queue.append((covered[layer] / max(1, sizes[layer]), layer, 0))
        heapq.heapify(queue)
        while queue:
            _, layer, expert = heapq.heappop(queue)
            while expert < len(layers[layer]):
                parts = [(index, self._missing(index, run)) for index, run in layers[layer][expert]]
                size = sum(total(runs) for _, runs in parts)
                expert += 1
                if size:
                    break
            else:
                continue
            if size > self._spare:
                return  # half an expert is of no use
            for index, runs in parts:
                # looked at again: two tensors of one expert may share a page
                self._take(Step.EXPERTS, index, subtract(runs, self._wanted[index]))
                for run in runs:
                    add(self._wanted[index], run)
            covered[layer] += size
            heapq.heappush(queue, (covered[layer] / sizes[layer], layer, expert))

    def ranges(self) -> tuple[PlannedRange, ...]:
        """In the order of the steps; within a step by place, for the disk."""
        found: list[PlannedRange] = []
        for step in Step:
            for file_index in range(len(self._there)):
                runs = normalise(run for of, index, run in self._planned if of is step and index == file_index)
                parts = [
                    (run, weight_class)
                    for weight_class, files in self._classes.items()
                    for run in intersect(runs, files[file_index])
                ]
                found += [
                    PlannedRange(
                        file_index=file_index,
                        offset=start,
                        length=end - start,
                        weight_class=weight_class,
                        step=step,
                    )
                    for (start, end), weight_class in sorted(parts)
                ]
        return tuple(found)

    def held(self) -> tuple[FileRun, ...]:
        """What is wanted and in memory already."""
        return tuple(
            FileRun(file_index=index, offset=start, length=end - start)
            for index, (wanted, there) in enumerate(zip(self._wanted, self._there, strict=True))
            for start, end in intersect(wanted, there)
        )

    def sums(self) -> tuple[StepSum, ...]:
        """In the order of the steps, those that ask for something."""
        return tuple(
            StepSum(step=step, size_bytes=size, resident_bytes=present, planned_bytes=planned)
            for step in Step
            if (figures := self._sums.get(step)) and figures[0]
            for size, present, planned in [figures]
        )

    def _missing(self, file_index: int, run: Run) -> list[Run]:
        """Of an expert's run: neither in memory nor taken already (its first and last page may be a neighbour's)."""
        return subtract(subtract([run], self._there[file_index]), self._wanted[file_index])

    def _take(self, step: Step, file_index: int, runs: Sequence[Run]) -> None:
        size = total(runs)
        self._spare -= size
        self._count(step, 0, 0, size)
        self._planned += [(step, file_index, run) for run in runs]

    def _count(self, step: Step, *figures: int) -> None:
        sums = self._sums.setdefault(step, [0, 0, 0])
        for position, figure in enumerate(figures):
            sums[position] += figure


def _in_order(files: _Files) -> Iterable[tuple[int, Run]]:
    return ((file_index, run) for file_index, runs in enumerate(files) for run in runs)


def _known_runs(
    hot: Sequence[FileRun], classes: dict[WeightClass, _Files], page_bytes: int, layout: ModelLayout
) -> Iterable[tuple[int, Run]]:
    """The hot set in whole pages, without what is no weight or not needed."""
    known = [normalise(run for files in classes.values() for run in files[index]) for index in range(len(layout.files))]
    for each in hot:
        if not 0 <= each.file_index < len(known):
            continue
        size = layout.files[each.file_index].size_bytes
        pages = whole_pages(each.offset, each.offset + each.length, page_bytes, size)
        for run in intersect([pages], known[each.file_index]):
            yield each.file_index, run


def _slices(
    layout: ModelLayout, not_needed: frozenset[str], page_bytes: int, *, with_drafts: bool
) -> dict[int, list[list[tuple[int, Run]]]]:
    """Per layer, per expert: (shard, pages) of each of its tensors."""
    layers: dict[int, dict[int, list[tuple[int, Run]]]] = {}
    for tensor in layout.of_class(WeightClass.EXPERT):
        if tensor.name in not_needed or (tensor.draft and not with_drafts):
            continue
        experts = layers.setdefault(-1 if tensor.layer is None else tensor.layer, {})
        for expert in range(tensor.n_expert):
            pages = _pages(layout, tensor, *tensor.expert_range(expert), page_bytes)
            experts.setdefault(tensor.first_expert + expert, []).append((tensor.file_index, pages))
    return {layer: [experts[expert] for expert in sorted(experts)] for layer, experts in sorted(layers.items())}


def _pages(layout: ModelLayout, tensor: Tensor, offset: int, length: int, page_bytes: int) -> Run:
    return whole_pages(offset, offset + length, page_bytes, layout.files[tensor.file_index].size_bytes)
