"""Whatever the figures: every state has a sentence, short enough, without a bare None or NaN; advice never fails."""

from hypothesis import given
from hypothesis import strategies as st

from moewatch.analysis.advice import advise
from moewatch.analysis.remarks import remarks
from moewatch.analysis.situation import Situation
from moewatch.analysis.words import headline, headline_short
from moewatch.domain.frame import Memory, Method, Note, Progress, Rates, Residency, Server, State, WorkingSet
from moewatch.domain.sample import LoadMode, Phase
from tests.support.situations import DENSE_MODEL, MODEL, situation

SIZES = st.none() | st.integers(0, 1 << 42)
RATES = st.none() | st.floats(0, 1e11, allow_nan=False)
RATIOS = st.none() | st.floats(0, 1, allow_nan=False)
NS = st.none() | st.integers(0, 10**13)


@st.composite
def situations(draw: st.DrawFn) -> Situation:
    return situation(
        draw(st.sampled_from(State)),
        load_mode=draw(st.sampled_from(LoadMode)),
        model=draw(st.sampled_from([MODEL, DENSE_MODEL, None])),
        seen_ns=draw(st.integers(0, 10**12)),
        loss_ratio=draw(RATIOS),
        active_bytes=draw(SIZES),
        came_back_bytes=draw(SIZES),
        disk_bytes_per_s=draw(RATES),
        notes=tuple(draw(st.sets(st.sampled_from(Note)))),
        server=Server(phase=draw(st.sampled_from(Phase))),
        rates=Rates(
            window_ns=10**10,
            process_read_bytes_per_s=draw(RATES),
            other_read_bytes_per_s=draw(RATES),
            reread_bytes_per_s=draw(RATES),
            reread_bytes_per_token=draw(RATES),
            tokens_per_s=draw(RATES),
            method=draw(st.sampled_from(Method)),
        ),
        residency=Residency(
            dense_ratio=draw(RATIOS),
            expert_ratio=draw(RATIOS),
            dense_needed_bytes=draw(SIZES),
            dense_resident_bytes=draw(SIZES),
            not_needed_bytes=draw(SIZES),
        ),
        memory=Memory(
            limit_bytes=draw(SIZES),
            limit_scope=draw(st.sampled_from([None, "host", "x.scope"])),
            target_anon_bytes=draw(SIZES),
            model_resident_bytes=draw(SIZES),
        ),
        working_set=WorkingSet(high_bytes=draw(SIZES), fits_bytes=draw(SIZES), short_bytes=draw(SIZES)),
        progress=Progress(
            remaining_bytes=draw(SIZES),
            eta_low_ns=draw(NS),
            eta_high_ns=draw(NS),
            read_bytes=draw(SIZES),
            first_bytes=draw(SIZES),
        ),
    )


@given(situations())
def test_every_situation_has_its_sentences(now: Situation) -> None:
    texts = [headline(now), headline_short(now), *remarks(now)]
    for advice in advise(now):
        texts += [advice.title, advice.reason, advice.gain]
    for text in texts:
        assert text
        assert "None" not in text
        assert "nan" not in text.split()
    assert len(headline(now)) <= 100
    assert len(headline_short(now)) <= 44  # 38 with figures below a thousand GiB
