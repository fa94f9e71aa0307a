"""Many completions of many prompts: each is what it would be alone, whatever is shared, token for token."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any, cast

import numpy as np
import pytest

from manyhands.cache.block import Block
from manyhands.cache.prefixes import PrefixTree
from manyhands.cache.step import Choice, Row, Step
from manyhands.cache.usage import Usage
from manyhands.cache.view import View
from manyhands.engine.engine import Engine
from manyhands.engine.sampling import choose
from manyhands.errors import ContextTooLong, InvalidRequest, OutOfMemory
from manyhands.model.adapter import ModelAdapter
from manyhands.strategies.base import Strategy
from manyhands.strategies.events import TokenWritten
from manyhands.strategies.prompt_sharing import share_prompt
from manyhands.strategies.sequential import sequential
from manyhands.strategies.settings import SharedSettings
from manyhands.strategies.shared_prefix import Completions, Prompt, shared_prefix
from tests.engine.small import (
    LETTERS,
    NUM_IDS,
    TEXT,
    counting,
    executor_of,
    finish,
    networks,
    small_engine,
)
from tests.model.families_zoo import tiny_model
from tests.poison import poison

GREEDY = Choice(forbidden=TEXT.eos)
SAMPLED = Choice(temperature=1.0, allowed=LETTERS | TEXT.eos)
Ids = tuple[int, ...]


def some_prompts(seed: int = 0, count: int = 7, vocabulary: int = NUM_IDS) -> list[Ids]:
    """A random forest of prompts: each follows another one for a while."""
    rng = random.Random(seed)
    prompts: list[Ids] = []
    for _ in range(count):
        other = rng.choice(prompts) if prompts and rng.random() < 0.8 else ()
        tail = (rng.randrange(vocabulary) for _ in range(rng.randint(1, 30)))
        prompts.append((*other[: rng.randint(0, len(other))], *tail))
    return prompts


def alone(engine: Engine, prompt: Ids, count: int, choice: Choice = GREEDY) -> Ids:
    """Ordinary decoding in one block."""
    view, feed, written = View([Block()]), prompt, []
    for _ in range(count):
        (token,) = choose(engine.forward(Step([Row(view, feed)])), [choice]).tokens()
        feed = (token,)
        written.append(token)
    return tuple(written)


def tokens_of(answer: object) -> list[Ids]:
    assert isinstance(answer, Completions)
    return [each.tokens for each in answer.completions]


def family(name: str) -> Engine:
    config = copy.deepcopy(networks()[name].args[0])
    config.vocab_size = NUM_IDS
    return Engine(ModelAdapter(tiny_model(config)), memory_tokens=8192)


@pytest.mark.parametrize("name", ["qwen3", "gpt_oss", "gemma3_text", "smollm3", "llama_llama3"])
def test_greedy_is_what_it_is_unshared(name: str) -> None:
    """Ragged prompts, any depth, duplicates, in pieces or whole, few places or many; twice."""
    engine = family(name)
    prompts = some_prompts()
    prompts += [prompts[2], prompts[3][:1]]
    expected = [alone(engine, prompt, 6) for prompt in prompts]
    for rows, prefill in ((256, 4096), (3, 7)):
        settings = SharedSettings(max_tokens=6, choice=GREEDY, rows=rows, prefill=prefill)
        for tree in (None, PrefixTree(engine.pool)):
            for _ in range(2):
                answer = engine.run(shared_prefix(prompts, TEXT, settings, tree=tree))
                assert tokens_of(answer) == expected
        assert isinstance(answer, Completions)
        assert answer.found == tuple(len(prompt) - 1 for prompt in prompts), "the second time"


def test_sharing_a_beginning_alone_changes_time_and_memory_only() -> None:
    """Examples that all problems share, problems that all their samples share: one level or two."""
    engine = family("qwen3")
    shots = tuple(range(1, 9))
    prompts = [(*shots, *problem) for problem in ((9, 8, 7, 6), (10,) * 6, (11, 12))]
    fed: dict[int | None, int] = {}
    written = {}
    for shareable in (None, len(shots), 3, 0):
        settings = SharedSettings(max_tokens=4, samples=3, choice=SAMPLED, shareable=shareable)
        strategy = shared_prefix(prompts, TEXT, settings)
        asked, tokens = strategy.send(None), 0
        while True:
            if isinstance(asked, Step):
                tokens += sum(len(row.feed) for row in asked.rows)
                sent = choose(engine.forward(asked), [row.choice for row in asked.rows]).tokens()
            else:
                sent = None
            try:
                asked = strategy.send(sent)
            except StopIteration as end:
                written[shareable] = tokens_of(end.value)
                break
        fed[shareable] = tokens
    assert all(found == written[None] for found in written.values())
    assert fed[8] - fed[None] == 2 * (3 + 5 + 1), "twice more, all of a problem but its last token"
    assert fed[3] - fed[8] == 8 * 5, "five examples' tokens are read by nine rows and not once"
    assert fed[0] - fed[8] == 8 * 8


def deep(depth: int) -> list[Ids]:
    """Prompts that part again and again."""
    prompts: list[Ids] = [(1, 2, 3)]
    for level in range(depth):
        prompts = [(*prompt, 10 + level, turn, turn) for prompt in prompts for turn in (5, 6)]
    return prompts


def test_each_token_of_a_forest_is_fed_once() -> None:
    engine = small_engine()
    prompts = deep(4)
    before = engine.usage
    settings = SharedSettings(max_tokens=5, choice=GREEDY)
    answer = engine.run(shared_prefix(prompts, TEXT, settings, tree=engine.prefixes))
    used = engine.usage - before
    distinct = {prompt[:size] for prompt in prompts for size in range(1, len(prompt))}
    assert used.prefix_tokens_fed == len(distinct)
    assert used.prefix_tokens_found == sum(len(p) - 1 for p in prompts) - len(distinct)
    assert used.tokens_fed == len(distinct) + 5 * len(prompts)
    assert used.tokens_chosen == 5 * len(prompts)
    assert used.forward_passes == answer.forward_passes == 5
    assert tokens_of(answer) == [alone(engine, prompt, 5) for prompt in prompts]


def test_samples_have_their_own_luck_and_keep_it_in_company() -> None:
    engine = small_engine()
    prompts = some_prompts(3, 4)
    settings = SharedSettings(samples=3, max_tokens=12, choice=SAMPLED, seed=5)
    together = engine.run(shared_prefix(prompts, TEXT, settings))
    assert len(set(tokens_of(together))) > 9
    single = [engine.run(shared_prefix([prompt], TEXT, settings)) for prompt in prompts]
    assert tokens_of(together) == [ids for answer in single for ids in tokens_of(answer)]
    few_rows = SharedSettings(samples=3, max_tokens=12, choice=SAMPLED, seed=5, rows=2, prefill=3)
    assert tokens_of(engine.run(shared_prefix(prompts, TEXT, few_rows))) == tokens_of(together)
    reasons = {each.finish_reason for each in together.completions}
    assert reasons == {"stop", "length"}


def crowd(engine: Engine, tree: PrefixTree, count: int, prefill: int) -> list[Strategy]:
    settings = SharedSettings(samples=2, max_tokens=5, choice=GREEDY, prefill=prefill)
    batches = [some_prompts(seed // 2, 3) for seed in range(count)]  # each batch twice
    return [shared_prefix(batch, TEXT, settings, tree=tree) for batch in batches]


_EXPECTED: dict[int, list[Ids]] = {}


def expected_of(engine: Engine, number: int) -> list[Ids]:
    """The text of run `number` of the crowd; every engine of this file has the same weights."""
    if number // 2 not in _EXPECTED:
        batch = some_prompts(number // 2, 3)
        _EXPECTED[number // 2] = [alone(engine, p, 5) for p in batch for _ in range(2)]
    return _EXPECTED[number // 2]


@pytest.mark.parametrize("prefill", [5, 4096])
def test_many_runs_share_one_tree(prefill: int) -> None:
    """Some want what others are writing, some want it divided. Nobody reads what is not written."""
    engine = small_engine()
    poison(executor_of(engine).memory)
    runs = [engine.submit(run) for run in crowd(engine, engine.prefixes, 8, prefill)]
    finish(engine, *runs)
    used = engine.usage
    for seed, run in enumerate(runs):
        assert tokens_of(run.result()) == expected_of(engine, seed)
    distinct = {
        prompt[:size]
        for seed in range(4)
        for prompt in some_prompts(seed, 3)
        for size in range(1, len(prompt))
    }
    assert used.prefix_tokens_fed == len(distinct), "nothing is fed twice"
    assert used.tokens_fed == len(distinct) + 8 * 3 * 2 * 5
    assert engine.prefixes.num_pages_in_use == 0


@pytest.mark.parametrize("seed", range(4))
def test_runs_may_be_cancelled_at_any_moment(seed: int) -> None:
    rng = random.Random(seed)
    engine = small_engine()
    poison(executor_of(engine).memory)
    runs = [engine.submit(run) for run in crowd(engine, engine.prefixes, 8, 5)]
    victims = rng.sample(range(8), 4)
    for victim in victims:
        for _ in range(rng.randint(0, 4)):
            engine.step()
        engine.cancel(runs[victim])
    finish(engine, *runs)
    for index, run in enumerate(runs):
        if index not in victims:
            assert tokens_of(run.result()) == expected_of(engine, index)
    del runs, run
    engine.prefixes.clear()
    assert engine.pool.num_free_pages == engine.pool.num_pages


def test_what_is_shared_is_reserved_once() -> None:
    """Eight questions over one document fit where two documents would not."""
    engine = small_engine(memory_tokens=1200)
    document = tuple(i % 200 for i in range(700))
    prompts = [(*document, i, i, i) for i in range(8)]
    settings = SharedSettings(max_tokens=8, choice=GREEDY)
    runs = [
        engine.submit(shared_prefix([prompt], TEXT, settings, tree=engine.prefixes))
        for prompt in prompts
    ]
    finish(engine, *runs)
    assert engine.usage.forward_passes == 9, "one has the document read, then all write together"
    expected = [alone(small_engine(), prompt, 8) for prompt in prompts]
    assert [tokens_of(run.result())[0] for run in runs] == expected


def test_who_is_done_makes_room_for_the_next() -> None:
    """Forty samples, two at a time, in memory for a few."""
    engine = small_engine(memory_tokens=16 * 8)
    settings = SharedSettings(samples=40, rows=2, max_tokens=20, choice=SAMPLED)
    run = engine.submit(shared_prefix([(1, 2, 3, 4, 5)], TEXT, settings, tree=engine.prefixes))
    most = 0
    while not run.done:
        engine.step()
        most = max(most, engine.pool.num_pages - engine.pool.num_free_pages)
    assert most <= 2 * 2 + 1, "two desks of twenty tokens, and the prompt"
    large = small_engine()
    expected = large.run(shared_prefix([(1, 2, 3, 4, 5)], TEXT, settings, tree=large.prefixes))
    assert run.result() == expected


def test_a_small_memory_lets_old_prefixes_go() -> None:
    engine = small_engine(memory_tokens=320)
    settings = SharedSettings(max_tokens=6, choice=GREEDY)
    prompts = [tuple(range(start, start + 100)) for start in range(12)]
    runs = [
        engine.submit(shared_prefix([prompt], TEXT, settings, tree=engine.prefixes))
        for prompt in prompts
    ]
    finish(engine, *runs)
    expected = [alone(small_engine(), prompt, 6) for prompt in prompts]
    assert [tokens_of(run.result())[0] for run in runs] == expected
    with pytest.raises(OutOfMemory):
        engine.run(shared_prefix([(*range(400),)], TEXT, settings, tree=engine.prefixes))
    assert engine.prefixes.num_pages_in_use == 0


def test_who_waits_for_memory_does_not_stop_those_who_share() -> None:
    """The large one waits in the middle of the queue; others go on, then it gets its turn."""
    engine = small_engine(memory_tokens=640)
    settings = SharedSettings(max_tokens=6, choice=GREEDY, prefill=20)
    first, large, last = (*range(100), 1), tuple(i % 200 for i in range(50, 570)), (*range(100), 2)
    runs = [
        engine.submit(shared_prefix([prompt], TEXT, settings, tree=engine.prefixes))
        for prompt in (first, large, last)
    ]
    finish(engine, *runs)
    expected = [alone(small_engine(), prompt, 6) for prompt in (first, large, last)]
    assert [tokens_of(run.result())[0] for run in runs] == expected


def test_tenants_do_not_meet() -> None:
    engine = small_engine()
    found = []
    for tenant in ("anna", "ben", "anna", None):
        settings = SharedSettings(max_tokens=2, tenant=tenant)
        answer = engine.run(shared_prefix([(1, 2, 3)], TEXT, settings, tree=engine.prefixes))
        assert isinstance(answer, Completions)
        found.append(answer.found)
    assert found == [(0,), (0,), (2,), (0,)]


class Spoken:
    """Runs a strategy with a script: sample i of prompt j says these words, then ends its turn."""

    def __init__(self, words: Sequence[Sequence[int]]) -> None:
        self.words = words
        self.written: dict[int, str] = {}

    def run(self, strategy: Strategy) -> Completions:
        tokens: tuple[int, ...] | None = None
        said: dict[str, Iterator[int]] = {}
        while True:
            try:
                asked = strategy.send(tokens)
            except StopIteration as end:
                answer: Completions = end.value
                return answer
            tokens = None
            if isinstance(asked, TokenWritten):
                self.written[asked.worker] = self.written.get(asked.worker, "") + asked.text
            if isinstance(asked, Step):
                tokens = ()
                for row in asked.rows:
                    row.view.own.tokens.extend(row.feed)
                    if row.writer is None:
                        tokens += (0,)
                        continue
                    if row.writer not in said:
                        said[row.writer] = iter(self.words[len(said)])
                    tokens += (next(said[row.writer], min(TEXT.eos)),)


def spoken(*words: str, thinking: bool = False, **settings: object) -> Completions:
    said = [tuple(TEXT.tokenizer.encode(word, add_special_tokens=False)) for word in words]
    prompts = [Prompt((index,), thinking) for index in range(len(said))]
    return Spoken(said).run(shared_prefix(prompts, TEXT, SharedSettings(**settings)))  # type: ignore[arg-type]  # any


def test_a_stop_text_ends_a_completion_and_is_no_part_of_it() -> None:
    answer = spoken("Ja. Nein. END more", "never", "En", stop=("END", "Nope"))
    assert [each.text for each in answer.completions] == ["Ja. Nein. ", "never", "En"]
    assert {each.finish_reason for each in answer.completions} == {"stop"}
    assert answer.finish_reason == "stopped"


def test_what_might_have_become_a_stop_text_is_given_back() -> None:
    size = len(TEXT.encode("some EN"))
    answer = spoken("some EN and on", stop=("END",), max_tokens=size)
    (only,) = answer.completions
    assert (only.text, only.finish_reason) == ("some EN", "length")
    assert (answer.finish_reason, answer.tokens) == ("budget", (size,))


def test_the_thinking_is_kept_apart() -> None:
    marked = "two and two</think>Four."
    (apart,) = spoken(marked, thinking=True).completions
    assert (apart.thinking, apart.text) == ("two and two", "Four.")
    (plain,) = spoken(marked).completions
    assert (plain.thinking, plain.text) == ("", "two and twoFour.")
    (only,) = spoken("on and on", thinking=True).completions
    assert (only.thinking, only.text) == ("on and on", "")


def test_a_message_begins_with_its_first_word_and_other_completions_are_exact() -> None:
    said = [tuple(TEXT.tokenizer.encode(" \n Four. ", add_special_tokens=False))]
    for prompt, expected in (("Two and two?", "Four. "), ((1, 2), " \n Four. ")):
        speaker = Spoken(list(said))
        answer = speaker.run(shared_prefix([prompt], TEXT, SharedSettings()))
        assert answer.completions[0].text == speaker.written[0] == expected
        assert answer.completions[0].tokens == said[0]


def test_events_tell_the_text() -> None:
    speaker = Spoken([TEXT.encode("Hello END"), TEXT.encode("World")])
    settings = SharedSettings(stop=("END",))
    speaker.run(shared_prefix([(1, 2), (1, 3)], TEXT, settings))
    assert speaker.written == {0: "Hello ", 1: "World"}


def test_the_context_is_never_left() -> None:
    engine = small_engine()
    context = 40
    prompts = [tuple(range(30)), tuple(range(40)), (1,)]
    settings = SharedSettings(max_tokens=20, choice=GREEDY)
    answer = engine.run(shared_prefix(prompts, TEXT, settings, context=context))
    assert answer.tokens == (11, 1, 20)
    with pytest.raises(ContextTooLong, match="a prompt has 41 tokens; the model reaches 40"):
        shared_prefix([tuple(range(41))], TEXT, settings, context=context)


def test_a_message_is_put_into_the_template() -> None:
    engine = small_engine()
    settings = SharedSettings(max_tokens=4, choice=GREEDY)
    answer = engine.run(shared_prefix(["Who?", "Who am I?"], TEXT, settings))
    tokens = [TEXT.chat_prompt("Who?"), TEXT.chat_prompt("Who am I?")]
    assert tokens_of(answer) == [alone(engine, prompt, 4) for prompt in tokens]
    assert isinstance(answer, Completions)
    assert answer.prompt_tokens == tuple(map(len, tokens))
    assert answer.found[1] > 2


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"samples": 0}, "samples is 0; expected 1 or more"),
        ({"max_tokens": 0}, "max_tokens is 0"),
        ({"rows": -1}, "rows is -1"),
        ({"stop": ("a", "")}, "stop has an empty text"),
    ],
)
def test_wrong_settings(given: dict[str, object], said: str) -> None:
    with pytest.raises(InvalidRequest, match=said):
        SharedSettings(**given)  # type: ignore[arg-type]  # wrong on purpose


@pytest.mark.parametrize(("prompts", "said"), [([], "no prompt"), ([()], "a prompt is empty")])
def test_no_prompt(prompts: list[Ids], said: str) -> None:
    with pytest.raises(InvalidRequest, match=said):
        shared_prefix(prompts, TEXT)


def test_usage_of_an_engine_and_of_its_runs() -> None:
    """Two rows over ten shared tokens, by hand; what the runs are charged adds up to the engine's."""
    engine = small_engine()
    settings = SharedSettings(samples=2, max_tokens=2, choice=GREEDY)
    prompt = tuple(range(11))
    run = engine.submit(shared_prefix([prompt], TEXT, settings))
    finish(engine, run)
    size = 2 * 2 * (8 + 8) * 4  # layers, heads, key and value, float32
    # pass 1: the prefix reads itself, two rows read it and their first token; pass 2: two rows
    loaded = (10 + 1 + 1) + (10 + 2 + 2)
    read = 10 + 2 * 11 + 2 * 12
    expected = Usage(2, 10 + 2 + 2, 4, loaded * size, (read - loaded) * size)
    assert run.usage == engine.usage == expected
    others = [engine.submit(shared_prefix([prompt], TEXT, settings)) for _ in range(3)]
    finish(engine, *others)
    used = engine.usage - expected
    for name in ("tokens_fed", "tokens_chosen"):
        assert sum(getattr(each.usage, name) for each in others) == getattr(used, name)
    assert abs(sum(each.usage.kv_bytes_loaded for each in others) - used.kv_bytes_loaded) < 10
    assert abs(sum(each.usage.kv_bytes_saved for each in others) - used.kv_bytes_saved) < 10
    assert used.forward_passes == 2


@pytest.mark.parametrize(
    ("prompts", "said"),
    [
        ("abc", "one prompt was given where a list of prompts was expected"),
        (Prompt((1, 2)), "one prompt was given where a list of prompts was expected"),
        ((1, 2), "the tokens of one prompt were given where a list of prompts was expected"),
        (np.array([1, 2]), "the tokens of one prompt were given where a list of prompts was"),
        ([["a"]], r"a prompt is \['a'\]; expected a text, or token ids"),
        ([None], "a prompt is None; expected a text, or token ids"),
    ],
)
def test_one_prompt_in_the_place_of_a_list(prompts: Any, said: str) -> None:
    with pytest.raises(InvalidRequest, match=said):
        shared_prefix(prompts, TEXT)


@pytest.mark.parametrize("prompts", [np.array([[1, 2, 3]]), [Prompt(tuple(np.array([1, 2, 3])))]])
def test_prompts_of_another_library_are_told_in_our_own_numbers(prompts: Any) -> None:
    settings = SharedSettings(max_tokens=2, choice=Choice(logprobs=0), echo=True)
    engine = small_engine()
    run = engine.submit(shared_prefix(prompts, TEXT, settings))
    finish(engine, run)
    (found,) = cast(Completions, run.result()).completions
    assert json.dumps([token for token, _ in found.echoed]) == "[1, 2, 3]"


@pytest.mark.parametrize("prompts", [None, 5])
def test_what_is_no_list_of_prompts_is_refused(prompts: Any) -> None:
    with pytest.raises(InvalidRequest, match="a list of prompts was expected"):
        shared_prefix(prompts, TEXT)


def test_what_is_no_tree_is_refused() -> None:
    wrong: Any = "tree"
    with pytest.raises(InvalidRequest, match="given as a tree of prefixes"):
        shared_prefix([(1, 2)], TEXT, tree=wrong)
    with pytest.raises(InvalidRequest, match="given as a tree of prefixes"):
        next(share_prompt(counting((1,)), wrong))
    with pytest.raises(InvalidRequest, match="was given as a strategy"):
        next(share_prompt(wrong, PrefixTree()))


@pytest.mark.parametrize("context", [0, -1, 1.5, "5", True])
def test_a_context_that_is_none_is_refused(context: Any) -> None:
    with pytest.raises(InvalidRequest, match=r"context is .*; expected a whole number of tokens"):
        shared_prefix([(1, 2)], TEXT, context=context)
    with pytest.raises(InvalidRequest, match=r"context is .*; expected a whole number of tokens"):
        sequential("1 + 2", TEXT, context=context)


@pytest.mark.parametrize("size", [3, 40])
def test_the_tree_of_another_engine_is_refused_and_stays_whole(size: int) -> None:
    """It kept blocks whose keys lay in the other memory, so its own engine could not have that prompt any more."""
    engine, other = small_engine(), small_engine(max_tokens_per_pass=16)
    prompt = tuple(number % NUM_IDS for number in range(size))
    settings = SharedSettings(max_tokens=3, choice=GREEDY, keep=True)
    makers: tuple[Callable[[PrefixTree], Strategy], ...] = (
        lambda tree: shared_prefix([prompt], TEXT, settings, tree=tree),
        lambda tree: share_prompt(sequential("1 + 2 + 3 + 4 + 5", TEXT), tree),
    )
    for make in makers:
        with pytest.raises(InvalidRequest, match="a tree of prefixes that is another engine's"):
            other.run(make(engine.prefixes))
        assert engine.prefixes.num_tokens == 0
    assert other.pool.num_free_pages == other.pool.num_pages
    found = engine.run(shared_prefix([prompt], TEXT, settings, tree=engine.prefixes))
    assert tokens_of(found) == [alone(small_engine(), prompt, 3)]


def test_prompts_beyond_all_memory_are_refused_before_samples_are_made() -> None:
    """Making 800 000 samples away took most of a second in the engine's thread, in which all runs waited."""
    engine = small_engine(memory_tokens=256)
    fits = engine.pool.num_pages // 2
    made = shared_prefix([(1,)] * fits, TEXT, tree=engine.prefixes)
    made.close()
    with pytest.raises(OutOfMemory, match=f"{fits + 1} prompts at once take {2 * fits + 2} pages"):
        shared_prefix([(1,)] * (fits + 1), TEXT, tree=engine.prefixes)
    told = SharedSettings(echo=True, choice=Choice(logprobs=0))
    shared_prefix([(1,)] * (fits + 1), TEXT, told, tree=engine.prefixes).close()
    shared_prefix([(1,)] * (fits + 1), TEXT).close()
