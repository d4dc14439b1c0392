from collections import Counter

from moewatch.demo.routing import FAVOURITES, TOPICS, Router


def test_every_pick_has_so_many_different_experts() -> None:
    router = Router(n_layer=2, n_expert=8, n_used=2)
    for _ in range(200):
        chosen = router.pick(1, (0, 3))
        assert len(set(chosen)) == len(chosen) == 2
        assert all(0 <= e < 8 for e in chosen)


def test_a_topic_has_a_hot_set_and_all_topics_need_every_expert() -> None:
    router = Router(n_layer=1, n_expert=8, n_used=2)
    one = Counter(e for _ in range(500) for e in router.pick(0, (1,)))
    assert sum(n for _, n in one.most_common(FAVOURITES)) > 0.9 * one.total()
    every = Counter(e for _ in range(2000) for e in router.pick(0, tuple(range(TOPICS))))
    assert len(every) == 8
    assert min(every.values()) > 0.05 * every.total()


def test_the_same_seed_gives_the_same_choices() -> None:
    first, second = (Router(n_layer=3, n_expert=16, n_used=4, seed=5) for _ in range(2))
    assert [first.pick(i % 3, (0, 1)) for i in range(50)] == [second.pick(i % 3, (0, 1)) for i in range(50)]
