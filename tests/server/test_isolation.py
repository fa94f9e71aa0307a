"""The words of a client do not depend on other clients: the same requests alone and in a crowd, through the real engine."""

from __future__ import annotations

import random
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx2
import pytest

from manyhands.cache.step import Step
from manyhands.engine.service import Service
from manyhands.prompts.load import Prompts
from manyhands.server.asked import Served
from manyhands.server.front import Front
from tests.engine.small import CONTEXT, TEXT, small_engine
from tests.server.house import NAME, House, Model, make_house, running
from tests.strategies.driver import PROMPT

WORDS = ["So the answer is four. ", "Alice and Bob solve the problem. ", "divide, then add. "]


def real_house() -> House:
    engine = small_engine(16384)
    served = Served(NAME, TEXT, Prompts(team=PROMPT), context=CONTEXT, tree=engine.prefixes)
    return House(Model(pool=engine.pool), Front(served, Service(engine)))


def crowded_house() -> House:
    """The control: an engine in which a crowd changes what is written."""
    model = Model()
    predict = model.predict

    def crowded(step: Step) -> tuple[int, ...]:
        tokens = predict(step)
        return tuple(reversed(tokens)) if len(tokens) > 4 else tokens

    model.predict = crowded  # type: ignore[method-assign]
    return make_house(model)


def request(seed: int) -> dict[str, Any]:
    rng = random.Random(seed)
    said = "".join(rng.choice(WORDS) for _ in range(rng.randint(1, 12)))
    body: dict[str, Any] = {"model": NAME, "messages": [{"role": "user", "content": said}]}
    body |= {
        "seed": seed,
        "temperature": 1.0,
        "max_tokens": rng.randint(5, 25),
        "n": rng.randint(1, 3),
    }
    if seed % 3 == 0:
        body = {**body, "model": f"{NAME}:hogwild-2", "n": 1}
        body["manyhands"] = {"budget": 20, "end": {"reply_tokens": 5, "finisher_tokens": 3}}
    return body


def texts(client: httpx2.Client, seed: int) -> list[Any]:
    answer = client.post("/v1/chat/completions", json=request(seed))
    assert answer.status_code == 200, answer.text
    messages = [choice["message"] for choice in answer.json()["choices"]]
    return [(message["content"], message.get("reasoning")) for message in messages]


def told(make: Callable[[], House]) -> tuple[list[Any], list[Any]]:
    """The answers to eight requests alone, and among others."""
    with running(make()) as house, httpx2.Client(base_url=house.url, timeout=60) as client:
        alone = [texts(client, seed) for seed in range(8)]
        with ThreadPoolExecutor(20) as pool:
            crowd = [pool.submit(texts, client, seed) for seed in range(100, 112)]
            together = list(pool.map(lambda seed: texts(client, seed), range(8)))
            for each in crowd:
                each.result()
    return alone, together


def test_the_same_tokens_alone_and_in_company() -> None:
    alone, together = told(real_house)
    assert together == alone
    assert len({str(each) for each in alone}) == len(alone)


def test_control_a_crowd_that_changes_words_is_noticed() -> None:
    alone, together = told(crowded_house)
    with pytest.raises(AssertionError):
        assert together == alone
