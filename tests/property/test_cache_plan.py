"""Any model, any residency, any budget: a plan never exceeds, overlaps or repeats, and gives every layer its share."""

from hypothesis import given, settings
from hypothesis import strategies as st

from moewatch.cache.plan import class_runs, make_plan
from moewatch.cache.runs import add, first_bytes, intersect, normalise, subtract, total
from moewatch.domain.layout import ModelLayout, Tensor, WeightClass
from moewatch.domain.sample import ModelFile, ModelSummary
from moewatch.domain.warm import FileRun, Plan, Step, What

PAGE = 4096
Runs = list[tuple[int, int]]


@st.composite
def layouts(draw: st.DrawFn) -> ModelLayout:
    """One or two shards; sizes that are no multiples of a page, as in real files."""
    n_files = draw(st.integers(1, 2))
    ends = [draw(st.integers(1, 3000)) * 32 for _ in range(n_files)]
    tensors: list[Tensor] = []

    def put(name: str, size_bytes: int, weight_class: WeightClass, layer: int | None, n_expert: int = 0) -> None:
        file_index = draw(st.integers(0, n_files - 1))
        tensors.append(
            Tensor(
                name=name,
                file_index=file_index,
                offset=ends[file_index],
                size_bytes=size_bytes,
                weight_class=weight_class,
                layer=layer,
                n_expert=n_expert,
            )
        )
        ends[file_index] += size_bytes

    put("token_embd", draw(st.integers(1, 2000)) * 32, WeightClass.EMBEDDING, None)
    n_expert = draw(st.integers(0, 6))
    each = draw(st.integers(1, 1500)) * 32
    for layer in range(draw(st.integers(1, 4))):
        put(f"{layer}.attn", draw(st.integers(1, 1000)) * 32, WeightClass.DENSE, layer)
        for part in ("gate", "up") if n_expert else ():
            put(f"{layer}.{part}", n_expert * each, WeightClass.EXPERT, layer, n_expert)
    files = tuple(ModelFile(name=f"{i}", size_bytes=end + draw(st.integers(0, 100))) for i, end in enumerate(ends))
    summary = ModelSummary(files=files, total_bytes=sum(file.size_bytes for file in files))
    return ModelLayout(files=files, paths=tuple(file.name for file in files), tensors=tuple(tensors), summary=summary)


@st.composite
def situations(draw: st.DrawFn) -> tuple[ModelLayout, list[Runs], int]:
    """A model, what of it is resident, a budget."""
    layout = draw(layouts())
    resident: list[Runs] = []
    for file in layout.files:
        pages = -(-file.size_bytes // PAGE)
        picks = draw(st.lists(st.tuples(st.integers(0, pages - 1), st.integers(1, 8)), max_size=8))
        resident.append(normalise((at * PAGE, min((at + n) * PAGE, file.size_bytes)) for at, n in picks))
    return layout, resident, draw(st.integers(0, 2 * layout.summary.total_bytes))


def planned_runs(plan: Plan, n_files: int) -> list[Runs]:
    return [
        normalise((each.offset, each.offset + each.length) for each in plan.ranges if each.file_index == index)
        for index in range(n_files)
    ]


def covered(files: list[Runs], resident: list[Runs], planned: list[Runs]) -> bool:
    return all(
        not subtract(subtract(want, there), read) for want, there, read in zip(files, resident, planned, strict=True)
    )


@settings(max_examples=200)
@given(situation=situations(), what=st.sampled_from(What), may_displace=st.booleans(), data=st.data())
def test_what_holds_for_every_plan(
    *, situation: tuple[ModelLayout, list[Runs], int], what: What, may_displace: bool, data: st.DataObject
) -> None:
    layout, resident, budget = situation
    gone = frozenset(data.draw(st.sets(st.sampled_from([tensor.name for tensor in layout.tensors]))))
    index = st.integers(0, len(layout.files) - 1)
    runs = st.builds(FileRun, index, st.integers(0, 200_000), st.integers(1, 60_000))
    hot = data.draw(st.none() | st.lists(runs, max_size=5))
    plan = make_plan(layout, resident, budget, what, hot=hot, not_needed=gone, may_displace=may_displace)

    assert plan.planned_bytes <= budget
    there_bytes = sum(map(total, resident))
    if not may_displace:
        assert plan.planned_bytes <= max(0, budget - there_bytes)
    for held in plan.held:
        assert not subtract([(held.offset, held.offset + held.length)], resident[held.file_index])
    if plan.displaced_bytes:
        assert there_bytes + plan.planned_bytes - plan.displaced_bytes <= budget
    for each in plan.ranges:
        end = each.offset + each.length
        size = layout.files[each.file_index].size_bytes
        assert each.length > 0
        assert each.offset % PAGE == 0
        assert end == size or (end % PAGE == 0 and end < size)
        assert not intersect([(each.offset, end)], resident[each.file_index]), "it is in memory already"
    planned = planned_runs(plan, len(layout.files))
    assert sum(map(total, planned)) == plan.planned_bytes, "two ranges overlap"
    order = [(list(Step).index(each.step), each.file_index, each.offset) for each in plan.ranges]
    assert order == sorted(order)

    classes = class_runs(layout, gone, with_drafts=what is What.ALL)
    known = [normalise(run for files in classes.values() for run in files[i]) for i in range(len(layout.files))]
    assert all(not subtract(read, pages) for read, pages in zip(planned, known, strict=True)), (
        "not needed, or no weight"
    )
    if any(each.step is not Step.DENSE for each in plan.ranges):
        assert covered(classes[WeightClass.DENSE], resident, planned), "dense comes first, whole"
    if any(each.step is Step.EXPERTS for each in plan.ranges):
        assert plan.displaced_bytes == 0
        assert there_bytes + plan.planned_bytes <= budget, "an expert that pushes out another is no gain"
    classes_there = {
        weight_class: sum(total(intersect(*pair)) for pair in zip(files, resident, strict=True))
        for weight_class, files in classes.items()
    }
    dense_bytes = sum(each.length for each in plan.ranges if each.step is Step.DENSE)
    assert dense_bytes <= max(0, budget - classes_there[WeightClass.DENSE]), "one needed page pushes out another"
    if what is What.DENSE:
        assert all(each.weight_class is WeightClass.DENSE for each in plan.ranges)
    for each_sum in plan.classes:
        assert each_sum.left_cold_bytes >= 0
        assert each_sum.planned_bytes == sum(r.length for r in plan.ranges if r.weight_class is each_sum.weight_class)
    assert sum(step.planned_bytes for step in plan.steps) == plan.planned_bytes
    assert all(step.after_bytes <= step.size_bytes for step in plan.steps)


@settings(max_examples=100)
@given(situations())
def test_with_room_for_all_everything_that_was_asked_for_is_read(
    situation: tuple[ModelLayout, list[Runs], int],
) -> None:
    layout, resident, _ = situation
    room = 2 * layout.summary.total_bytes
    classes = class_runs(layout, frozenset())
    auto = planned_runs(make_plan(layout, resident, room), len(layout.files))
    assert covered(classes[WeightClass.DENSE], resident, auto)
    assert covered(classes[WeightClass.EXPERT], resident, auto)
    everything = make_plan(layout, resident, room, What.ALL)
    assert everything.left_cold_bytes == 0


@settings(max_examples=200)
@given(situations())
def test_layers_are_filled_alike_within_one_expert(situation: tuple[ModelLayout, list[Runs], int]) -> None:
    layout, resident, budget = situation
    plan = make_plan(layout, resident, budget)
    planned = planned_runs(plan, len(layout.files))
    shares: dict[int, float] = {}
    read: dict[int, int] = {}
    slices: dict[int, float] = {}
    for layer in range(layout.n_layer):
        tensors = [t for t in layout.of_class(WeightClass.EXPERT) if t.layer == layer]
        size = there = read[layer] = 0
        for tensor in tensors:
            run = [(tensor.offset, tensor.offset + tensor.size_bytes)]
            mine = intersect(run, planned[tensor.file_index])
            there += total(mine) + total(intersect(run, resident[tensor.file_index]))
            read[layer] += total(mine)
            size += tensor.size_bytes
        if size:
            shares[layer] = there / size
            # an expert and the pages at the edges of its two slices, which may be a neighbour's
            slices[layer] = 1 / tensors[0].n_expert + 8 * PAGE / size
    raised = [layer for layer in shares if read[layer] > 4 * PAGE]
    unfilled = [layer for layer in shares if shares[layer] < 1]
    for layer in raised:
        for other in unfilled:
            assert shares[layer] - shares[other] <= max(slices[layer], slices[other]), (shares, read)


@given(
    st.lists(st.tuples(st.integers(0, 60), st.integers(0, 60))),
    st.lists(st.tuples(st.integers(0, 60), st.integers(0, 60))),
)
def test_runs_are_sets(one: Runs, other: Runs) -> None:
    def bytes_of(runs: Runs) -> set[int]:
        return {at for start, end in runs for at in range(start, end)}

    a, b = normalise(one), normalise(other)
    assert bytes_of(a) == bytes_of(one)
    assert all(a[i][1] < a[i + 1][0] for i in range(len(a) - 1))
    assert bytes_of(intersect(a, b)) == bytes_of(a) & bytes_of(b)
    assert bytes_of(subtract(a, b)) == bytes_of(a) - bytes_of(b)
    built: Runs = []
    for run in one:
        add(built, run)
    assert built == a
    assert total(first_bytes(a, 10)) == min(10, total(a))
