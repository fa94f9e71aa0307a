"""Chat templates: good ones give what transformers gives, hostile ones end in a clear error in time."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from threading import Thread
from typing import Any

import pytest

from manyhands.bundled import path
from manyhands.errors import InvalidRequest, UnsupportedModel
from manyhands.sandbox import Limits, Sandbox
from manyhands.text import Text, templates
from manyhands.text.templates import TemplateFailed, render
from tests.text.small_tokenizers import (
    CHATML,
    OPENED,
    REASONING,
    SILENCED,
    byte_level,
    sentence_piece,
)
from tests.text.told import told

USER = [{"role": "user", "content": "Hi"}]
SECONDS = 1.0  # far more than any other template takes here
ENDLESS = "{% for a in range(90000) %}" * 3 + "{% endfor %}" * 3
HOSTILE = {
    "one long loop": ("{% for a in range(10**10) %}a{% endfor %}", "Range too big"),
    "nested loops": (ENDLESS, f"it took over {SECONDS:g} s"),
    "nested loops that write": (ENDLESS.replace("{% endfor", "a{% endfor", 1), "it (took|needed)"),
    "macros that call each other": (
        "{% macro m0() %}{% endmacro %}"
        + "".join(
            f"{{% macro m{n}() %}}{{{{ m{n - 1}() }}}}{{{{ m{n - 1}() }}}}{{% endmacro %}}"
            for n in range(1, 60)
        )
        + "{{ m59() }}",
        f"it took over {SECONDS:g} s",
    ),
    "a giant string": ("{{ 'a' * 10**10 }}", "it needed more memory than allowed"),
    "a giant string by a filter": ("{{ 'a' | center(10**10) }}", "it needed more memory"),
    "a giant string by a format": ("{{ '%10000000000d' % 1 }}", "it needed more memory"),
    "a string that is doubled": (
        "{% set n = namespace(a='a') %}{% for i in range(60) %}{% set n.a = n.a ~ n.a %}{% endfor %}",
        "it (took|needed)",
    ),
    "a giant number": ("{{ 10**(10**10) }}", f"it took over {SECONDS:g} s"),
    "a long text": ("{{ 'a' * 10**7 }}", "it gave more than 1048576 bytes"),
    "no end of recursion": ("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", "RecursionError"),
    "an error of Python": ("{{ messages + 1 }}", "it raised TypeError"),
    "the insides of Python": ("{{ ''.__class__.__mro__ }}", "unsafe"),
    "the insides of a namespace": ("{{ namespace(__class__=1) }}", "'__class__'"),
}
FEATURES = {
    "tojson": "{{ messages | tojson }}{{ {'a': '<ä&>'} | tojson(indent=2) }}",
    "loop controls": "{% for a in range(9) %}{% if a == 3 %}{% break %}{% endif %}{{ a }}{% endfor %}",
    "a namespace": "{% set n = namespace(a=1) %}{% set n.a = 2 %}{{ n.a }}",
    "dict": "{{ dict(a=1) }}{{ dict.fromkeys('ab', 1) }}",
    "generation": "{% set a = 1 %}{% generation %}{% set a = 2 %}{{ a }}b{% endgeneration %}{{ a }}",
    "the date": "{{ strftime_now('%Y-%m-%d') }}",
    "special tokens": "{{ bos_token }}{{ eos_token }}{{ unk_token }}",
    "what is not given": "{{ tools }}{{ documents }}{{ add_generation_prompt }}{{ nothing }}",
    "blanks": "  {% if true %}  \n a {% endif %}\n\n",
    "a switch": "{{ enable_thinking }}",
}


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """A child of the same kind with a shorter limit of time."""
    limit(monkeypatch, SECONDS)


def limit(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    """Have templates rendered by a child of the same kind with this limit of time."""
    limits = Limits(seconds=seconds, memory_bytes=templates.LIMITS.memory_bytes)
    child = Sandbox("manyhands.text.jinja:rendered", limits)
    child.run("", USER, {})  # its start is not what is measured
    monkeypatch.setattr(templates, "_sandbox", lambda process: child)


def _bundled() -> Any:
    from transformers import AutoTokenizer

    load: Any = AutoTokenizer.from_pretrained
    return load(str(path()))


@pytest.mark.parametrize("template", [CHATML, REASONING, OPENED, SILENCED, *FEATURES.values()])
@pytest.mark.parametrize("make", [byte_level, sentence_piece])
def test_good_templates_give_what_transformers_gives(
    make: Callable[[str], Any], template: str
) -> None:
    tokenizer = make(template)
    for chat in (USER, [*USER, {"role": "assistant", "content": "Yes <|im_end|>?"}, *USER]):
        expected = tokenizer.apply_chat_template(
            chat, tokenize=False, add_generation_prompt=True, enable_thinking=False
        )
        words = {**tokenizer.special_tokens_map, "enable_thinking": False}
        assert render(template, chat, words) == expected


def test_the_bundled_template_gives_what_transformers_gives() -> None:
    tokenizer = _bundled()
    expected = tokenizer.apply_chat_template(USER, tokenize=False, add_generation_prompt=True)
    assert render(tokenizer.get_chat_template(), USER, tokenizer.special_tokens_map) == expected


@pytest.mark.parametrize("case", HOSTILE)
def test_a_hostile_template_ends_in_time(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    template, said = HOSTILE[case]
    # Where something else than the time ends it, a busy machine must not be the first.
    limit(monkeypatch, SECONDS if "took" in said else 20.0)
    began = time.monotonic()
    with pytest.raises(
        UnsupportedModel, match=f"chat template cannot be rendered: .*{said}"
    ) as caught:
        Text(byte_level(template))
    assert time.monotonic() - began < SECONDS + 30  # another child may have to start first
    assert "repair" in caught.value.hint
    templates._sandbox(0).limits = Limits(seconds=60.0)  # another child may be needed
    assert render("{{ messages[0].content }}", USER, {"case": case}) == "Hi"


@pytest.mark.usefixtures("quick")
def test_a_conversation_may_be_hostile_alone() -> None:
    text = Text(byte_level("{% if messages | length > 1 %}" + ENDLESS + "{% endif %}" + CHATML))
    with pytest.raises(UnsupportedModel, match=f"it took over {SECONDS:g} s"):
        text.conversation(told(("system", "a"), ("user", "b")))
    refusing = Text(byte_level("{% if messages | length > 1 %}{{ 1 + 'a' }}{% endif %}" + CHATML))
    with pytest.raises(InvalidRequest, match="not take the roles system, user: it raised TypeErr"):
        refusing.conversation(told(("system", "a"), ("user", "b")))


def test_several_templates_and_none_by_default() -> None:
    tokenizer = byte_level()
    tokenizer.chat_template = {"default": CHATML, "tool_use": "no"}
    assert Text(tokenizer).chat_prompt("Hi") == Text(byte_level(CHATML)).chat_prompt("Hi")
    tokenizer.chat_template = {"one": CHATML, "another": CHATML}
    with pytest.raises(UnsupportedModel, match="multiple chat templates with no default"):
        Text(tokenizer)


def test_threads_render_at_once() -> None:
    found: list[tuple[int, str]] = []

    def ask(number: int) -> None:
        found.append((number, render("{{ messages[0].content }}", [{"content": str(number)}], {})))

    threads = [Thread(target=ask, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(found) == [(number, str(number)) for number in range(8)]


def test_the_same_roles_are_rendered_once(monkeypatch: pytest.MonkeyPatch) -> None:
    text = Text(byte_level())
    chat = [("system", "a"), ("user", "b")]
    first = text.conversation(told(*chat))

    def refuse(process: int) -> Sandbox:
        raise AssertionError("rendered again")

    monkeypatch.setattr(templates, "_sandbox", refuse)
    assert text.conversation(told(*chat)) == first
    with pytest.raises(AssertionError, match="rendered again"):  # a control: other roles
        text.conversation(told(*chat, *chat[1:], *chat[1:]))


def test_errors_are_not_remembered() -> None:
    for _ in range(2):
        with pytest.raises(TemplateFailed, match=r"^no$") as caught:
            render("{{ raise_exception('no') }}", USER, {})
        assert caught.value.kind == "error"


def test_a_fork_has_a_child_of_its_own() -> None:
    assert templates._sandbox(os.getpid()) is templates._sandbox(os.getpid())
    assert templates._sandbox(os.getpid() + 1) is not templates._sandbox(os.getpid())


START = """
import time
from manyhands.text import templates
began = time.monotonic()
if {early}:
    templates.start()
print(time.monotonic() - began)
time.sleep(float({wait}))
began = time.monotonic()
templates.render("{{{{ messages[0].content }}}}", [{{"content": "Hi"}}], {{}})
print(time.monotonic() - began)
"""


def test_a_child_that_was_started_early_costs_nothing() -> None:
    """Starting it takes a few milliseconds, asking it one; what it needs itself passes beside the load."""

    def seconds(*, early: bool) -> list[float]:
        program = START.format(wait=int(early), early=early)
        said = subprocess.run(
            [sys.executable, "-c", program], capture_output=True, text=True, check=True
        )
        assert said.stderr == ""
        return [*map(float, said.stdout.split())]

    _, late = seconds(early=False)
    best = [late, late]
    for _ in range(10):  # a busy machine may be slow
        best = [min(pair) for pair in zip(best, seconds(early=True), strict=True)]
        if max(best) < late / 4:
            break
    assert max(best) < late / 4, (best, late)
