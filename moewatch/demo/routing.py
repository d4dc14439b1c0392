"""Which experts a token of the demo goes to: a few topics, each with favourites, as trained routers have."""

import random
from collections.abc import Sequence

TOPICS = 4
FAVOURITES = 3  # of eight experts, those a topic prefers in each layer; neighbouring topics share one
STRAY_RATIO = 0.03  # picks that go to any expert at all


class Router:
    """Picks experts per layer; the same seed gives the same choices."""

    def __init__(self, n_layer: int, n_expert: int, n_used: int, seed: int = 1) -> None:
        self._random = random.Random(seed)  # noqa: S311 - a workload, no secret
        self._n_expert, self._n_used = n_expert, n_used
        favourites = min(n_expert, max(n_used, FAVOURITES * n_expert // 8))
        self._favourites: list[list[list[int]]] = []  # [layer][topic] -> experts
        for _ in range(n_layer):
            order = list(range(n_expert))
            self._random.shuffle(order)
            starts = [topic * n_expert // TOPICS for topic in range(TOPICS)]
            self._favourites.append([[order[(s + i) % n_expert] for i in range(favourites)] for s in starts])

    def pick(self, layer: int, topics: Sequence[int]) -> list[int]:
        """`n_used` different experts for one token in one layer; the token's topic is one of `topics`."""
        liked = self._favourites[layer][self._random.choice(topics) % TOPICS]
        chosen: list[int] = []
        while len(chosen) < self._n_used:
            stray = self._random.random() < STRAY_RATIO
            expert = self._random.randrange(self._n_expert) if stray else self._random.choice(liked)
            if expert not in chosen:
                chosen.append(expert)
        return chosen
