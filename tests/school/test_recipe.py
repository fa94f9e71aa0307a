"""A recipe is read as it is written, or refused with the name of what is wrong."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import normalizers

from manyhands import bundled
from manyhands.errors import (
    BrokenTrace,
    InvalidRequest,
    ModelNotFound,
    OutOfMemory,
    UnsupportedModel,
)
from manyhands.prompts import Prompts, model_prompts
from manyhands.replay.lessons import Mixed, Reading, Recorded
from manyhands.replay.trace import record
from manyhands.school.recipe import read_recipe
from manyhands.school.simulated import Simulated
from manyhands.strategies.hogwild import hogwild
from manyhands.strategies.settings import TeamSettings
from manyhands.text import Text
from tests.replay.runs import LIST_PROMPT, RECIPE, list_text
from tests.strategies.driver import Scripts, play
from tests.text.small_tokenizers import byte_level, sentence_piece

# All but the one of short lists, which teaches to find a wrong sum.
SECOND_GENERATION = (
    "grown",
    "grown_polish",
    "grown_lists",
    "grown_checks",
    "grown_end",
    "grown_final",
    "grown_quiet",
)
MODEL = f"""
[model]
tokenizer = "{RECIPE / "tokenizer"}"
[model.config]
model_type = "qwen3"
hidden_size = 32
intermediate_size = 64
num_hidden_layers = 1
num_attention_heads = 2
num_key_value_heads = 1
head_dim = 16
"""


def write(folder: Path, text: str) -> Path:
    path = folder / "recipe.toml"
    path.write_text(text)
    return path


def test_the_bundled_models_recipe() -> None:
    recipe = read_recipe(RECIPE / "recipe.toml")
    assert recipe.model.config["model_type"] == "qwen3"
    assert (recipe.folder / recipe.model.tokenizer).is_dir()
    assert recipe.curriculum is not None
    assert recipe.prompts.team.rules.endswith("{problem}")
    assert isinstance(recipe.lessons(list_text()), Simulated)


def test_a_tokenizer_that_parts_digits_is_refused_before_training() -> None:
    recipe = read_recipe(RECIPE / "recipe.toml")
    tokenizer = byte_level()
    tokenizer.backend_tokenizer.normalizer = normalizers.Replace("7", "7 ")
    with pytest.raises(UnsupportedModel, match="makes 2 tokens of '7'; the scripted team needs"):
        recipe.lessons(Text(tokenizer))


@pytest.mark.parametrize("tokenizer", [byte_level, sentence_piece])
def test_a_tokenizer_that_parts_the_sign_has_lessons(tokenizer: Callable[..., Any]) -> None:
    """Simulated ones, in its own tokens: their words are those that a team writes."""
    text = Text(tokenizer())
    assert len(text.encode(" #")) == 2
    lessons = read_recipe(RECIPE / "recipe.toml").lessons(text)
    lesson = lessons.draw("parted")
    learned = [
        token for token, weight in zip(lesson.targets, lesson.weights, strict=True) if weight
    ]
    assert " #1" in text.decode(learned)


def test_a_model_grows_before_it_is_trained(tmp_path: Path) -> None:
    """Also one that has been taken over by an adapter; a new model has its layers in its config."""
    start = f'[model]\nstart = "{bundled.path()}"\nlayers = 14\n[curriculum]\n'
    adapter, tokenizer = read_recipe(write(tmp_path, start)).load("cpu")
    assert len(adapter.layers) == 14
    assert adapter.vocab_size == len(tokenizer)
    with pytest.raises(InvalidRequest, match="gives layers = 8 without `start`"):
        read_recipe(
            write(tmp_path, MODEL.replace("[model]", "[model]\nlayers = 8") + "[curriculum]\n")
        )


@pytest.mark.parametrize("name", SECOND_GENERATION)
def test_the_second_generation_is_taught_by_recipes_that_can_be_read(name: str) -> None:
    recipe = read_recipe(RECIPE / f"{name}.toml")
    curriculum = recipe.curriculum
    assert curriculum is not None
    assert (curriculum.most_problems, curriculum.most_workers) == (12, 8)
    assert recipe.prompts == read_recipe(RECIPE / "further_polish.toml").prompts
    assert min(curriculum.wide, curriculum.slips, curriculum.planted, curriculum.leaves) > 0


def test_words_that_are_left_out_are_those_of_the_start(tmp_path: Path) -> None:
    own = model_prompts("bundled")
    assert own != Prompts(), "control"
    start = '[model]\nstart = "bundled"\n[curriculum]\n[branches]\nfinisher = "So: \\\\boxed{"\n'
    recipe = read_recipe(write(tmp_path, start)).in_words_of_start()
    assert recipe.prompts.team == own.team
    assert recipe.prompts.branches == replace(own.branches, finisher="So: \\boxed{")
    adapter = tmp_path / "adapter"
    adapter.mkdir()
    (adapter / "manyhands.toml").write_text('[team]\nown_header = "Mine"\n')
    from_adapter = f'{start}[lora]\nrank = 2\nstart = "{adapter}"\n'
    words = read_recipe(write(tmp_path, from_adapter)).in_words_of_start().prompts
    assert words.team == replace(Prompts().team, own_header="Mine")
    new = read_recipe(write(tmp_path, MODEL + "[curriculum]\n"))
    assert new.in_words_of_start().prompts == Prompts()


def test_a_start_may_lie_elsewhere(tmp_path: Path) -> None:
    """A paused training goes on where the model that it began with has another path; another model is another start."""
    text = '[model]\nstart = "{}/bundled"\n[curriculum]\n[lora]\nrank = 2\nstart = "{}/first"\n'
    here, there = (
        read_recipe(write(tmp_path, text.format(*places))).made_of()
        for places in (("/one", "runs"), ("/two/models", "old"))
    )
    assert here == there
    assert here["model"]["start"] == "bundled"
    renamed = read_recipe(write(tmp_path, text.replace("/first", "/last").format("/one", "runs")))
    assert renamed.made_of() != here


def test_a_recipe_with_everything(tmp_path: Path) -> None:
    text = (
        MODEL
        + """
[team]
own_header = "\\nMine"
[curriculum]
most_workers = 2
checks = 0.5
[training]
steps = 7
seed = 9
"""
    )
    recipe = read_recipe(write(tmp_path, text))
    assert recipe.prompts.team.own_header == "\nMine"
    assert recipe.curriculum is not None
    assert (recipe.curriculum.most_workers, recipe.curriculum.checks) == (2, 0.5)
    assert (recipe.training.steps, recipe.training.seed) == (7, 9)
    assert recipe.training.clip == 1.0  # a field that is left out has its default
    adapter, tokenizer = recipe.load("cpu")
    assert adapter.vocab_size == len(tokenizer)
    assert adapter.dtype == torch.float32
    again, _ = recipe.load("cpu")
    for one, other in zip(adapter.model.parameters(), again.model.parameters(), strict=True):
        assert torch.equal(one, other)  # weights at random, by the recipe's seed


@pytest.mark.parametrize(
    ("line", "error", "says"),
    [
        ('hidden_size = "32"', InvalidRequest, "expected int, got str"),
        ("hidden_size = -1", InvalidRequest, "hidden_size is -1; expected 1 to"),
        ("num_hidden_layers = 0", InvalidRequest, "num_hidden_layers is 0; expected 1 to"),
        ("num_hidden_layers = 5000", InvalidRequest, "is 5000; expected at most 4,096"),
        ("num_attention_heads = 3\nnum_key_value_heads = 2", InvalidRequest, "heads 2; expected a"),
        ("head_dim = 15", InvalidRequest, "RoPE requires an even"),
        ('hidden_act = "none"', InvalidRequest, "makes no network: KeyError: 'none'"),
        ("hidden_sizes = 32", InvalidRequest, "do not read; did you mean 'hidden_size'?"),
        ("vocab_size = 1000", InvalidRequest, "its vocab_size is 1000; expected 1280"),
        ("intermediate_size = 2_000_000_000", OutOfMemory, "makes a network of"),
        ('model_type = "qwen33"', InvalidRequest, "model_type is 'qwen33', which is no type"),
        ('model_type = "mamba"', UnsupportedModel, "model type 'mamba' is not supported"),
    ],
)
def test_a_configuration_that_makes_no_network(
    tmp_path: Path, line: str, error: type[Exception], says: str
) -> None:
    """It is judged as that of a model that is loaded, and not where a library or a step of the training ends in it."""
    names = [each.partition(" ")[0] for each in line.splitlines()]
    rest = [each for each in MODEL.splitlines() if each.partition(" ")[0] not in names]
    recipe = read_recipe(write(tmp_path, "\n".join([*rest, line, "[curriculum]"])))
    with pytest.raises(error, match=re.escape(says)):
        recipe.load("cpu")


def test_a_configuration_may_say_what_the_tokenizer_says(tmp_path: Path) -> None:
    """And its dtype is that of no weight: all that is trained is float32."""
    said = 'vocab_size = 1280\neos_token_id = 0\nrope_theta = 5e5\ndtype = "bfloat16"\n'
    adapter, _ = read_recipe(write(tmp_path, f"{MODEL}{said}[curriculum]\n")).load("cpu")
    assert adapter.dtype == torch.float32
    assert adapter.model.config.rope_parameters["rope_theta"] == 5e5


@pytest.mark.parametrize(
    ("text", "error", "says"),
    [
        (f"{MODEL}[lora]\nrank = 2\n", InvalidRequest, "makes a new one by `config`"),
        (
            '[model]\nstart = "bundled"\nlayers = 14\n[lora]\nrank = 2\n',
            InvalidRequest,
            "by `layers`",
        ),
        (
            '[model]\nstart = "bundled"\n[lora]\nrank = 1000000\n',
            OutOfMemory,
            "rank 1000000 of the",
        ),
        (
            '[model]\nstart = "bundled"\n[lora]\nstart = "x"\n',
            InvalidRequest,
            "`start` and no rank",
        ),
    ],
)
def test_an_adapter_that_nobody_could_use(
    tmp_path: Path, text: str, error: type[Exception], says: str
) -> None:
    """Of a network that is saved nowhere it could be added to none; one that takes all memory ended by SIGKILL."""
    with pytest.raises(error, match=says):
        read_recipe(write(tmp_path, f"{text}[curriculum]\n")).load("cpu")


@pytest.mark.parametrize("said", ["{}/texts/*.txt", "texts/one [1].txt", "**/*.txt", "t*s/one*"])
def test_files_are_paths_or_patterns(tmp_path: Path, said: str) -> None:
    """From the root as well, and a path may hold what means something in a pattern."""
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts" / "one [1].txt").write_text("84 + 29")
    said = said.format(tmp_path)
    table = MODEL + '[curriculum]\n[reading]\nfiles = ["{}"]\n'
    assert isinstance(read_recipe(write(tmp_path, table.format(said))).lessons(list_text()), Mixed)
    for none in ("", f"{tmp_path}/texts/*.jsonl", "texts/**.jsonl"):
        with pytest.raises(InvalidRequest, match="no text matches"):
            read_recipe(write(tmp_path, table.format(none))).lessons(list_text())


def test_a_byte_order_mark_is_no_part_of_a_file(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("84 + 29", encoding="utf-8-sig")
    text = MODEL + '[curriculum]\n[reading]\nfiles = ["a.txt"]\n'
    path = tmp_path / "recipe.toml"
    path.write_text(text, encoding="utf-8-sig")
    mixed = read_recipe(path).lessons(list_text())
    assert isinstance(mixed, Mixed)
    (reading,) = (kind for kind in mixed.kinds if isinstance(kind, Reading))
    assert reading.documents == [tuple(list_text().encode("84 + 29"))]


@pytest.mark.parametrize("written", [None, "{", "{}"])
def test_a_tokenizer_that_cannot_be_read(tmp_path: Path, written: str | None) -> None:
    folder = tmp_path / "tokenizer"
    folder.mkdir()
    if written is not None:
        (folder / "tokenizer.json").write_text(written)
    text = MODEL.replace(str(RECIPE / "tokenizer"), "tokenizer")
    with pytest.raises(ModelNotFound, match="lacks a tokenizer"):
        read_recipe(write(tmp_path, f"{text}[curriculum]\n")).load("cpu")


def test_recorded_traces(tmp_path: Path) -> None:
    recipe = read_recipe(write(tmp_path, MODEL + '[traces]\nfiles = ["runs/*.jsonl"]'))
    with pytest.raises(InvalidRequest, match=r"no trace matches runs/\*\.jsonl in "):
        recipe.lessons(list_text())
    (tmp_path / "runs").mkdir()
    lines: list[dict[str, Any]] = []
    strategy = hogwild("1. 2 + 3", list_text(), TeamSettings(budget=3), LIST_PROMPT)
    play(record(strategy, {}, lines.append), Scripts(list_text()))
    path = tmp_path / "runs" / "a.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    lessons = recipe.lessons(list_text())
    assert isinstance(lessons, Recorded)
    assert len(lessons.lessons) == 1
    path.write_text("nonsense\n")
    with pytest.raises(BrokenTrace, match=r"line 1 of .*a\.jsonl"):
        recipe.lessons(list_text())


def graded(folder: Path, name: str, **header: object) -> Path:
    """A short run of a team, with more in its header."""
    lines: list[dict[str, Any]] = []
    strategy = hogwild("1. 2 + 3", list_text(), TeamSettings(budget=3), LIST_PROMPT)
    play(record(strategy, header, lines.append), Scripts(list_text()))
    path = folder / name
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


TRACES = '[traces]\nfiles = ["*.jsonl"]\nleast_score = 0.5\n'


def test_graded_traces_are_kept_by_score_and_weighted(tmp_path: Path) -> None:
    recipe = read_recipe(write(tmp_path, MODEL + TRACES))
    for score in (0.0, 0.49, 0.5, 1.0):
        graded(tmp_path, f"{score}.jsonl", score=score, vocabulary=list_text().vocabulary)
    graded(tmp_path, "plain.jsonl")
    lessons = recipe.lessons(list_text())
    assert isinstance(lessons, Recorded)
    assert [one.weights.max() for one in lessons.lessons] == [0.5, 1.0, 1.0]
    for name in ("0.5", "1.0", "plain"):
        (tmp_path / f"{name}.jsonl").unlink()
    with pytest.raises(
        InvalidRequest, match=r"none of 2 traces .* 0\.5 or more; the best has 0\.49"
    ):
        recipe.lessons(list_text())


@pytest.mark.parametrize("header", [{"vocabulary": "0" * 16}, {}])
def test_a_trace_of_another_tokenizer_is_refused_by_name(
    tmp_path: Path, header: dict[str, Any]
) -> None:
    """By its mark; and where an old trace has none, by a token that the vocabulary lacks."""
    recipe = read_recipe(write(tmp_path, MODEL + TRACES))
    graded(tmp_path, "a.jsonl", model="some/model", **header)
    text = list_text() if header else Text(byte_level())
    size = len(text.tokenizer.get_vocab())
    if not header:
        lines = (tmp_path / "a.jsonl").read_text()
        assert f"[{size}" not in lines
        (tmp_path / "a.jsonl").write_text(
            lines.replace('"rows": [[0, [', f'"rows": [[0, [{size}, ', 1)
        )
    with pytest.raises(
        InvalidRequest, match=r"a\.jsonl was recorded with the tokenizer of some/mo"
    ):
        recipe.lessons(text)


def test_text_and_traces_are_mixed_into_a_curriculum(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("1. 2 + 3 = 5. " * 20)
    (tmp_path / "b.jsonl").write_text('{"text": "4 + 4 = 8"}\n\n{"text": "7"}\n')
    graded(tmp_path, "run.trace")
    both = '[traces]\nfiles = ["*.trace"]\nshare = 0.4\n'
    reading = '[reading]\nfiles = ["*.txt", "*.jsonl"]\nshare = 0.25\ntokens = 8\n'
    recipe = read_recipe(write(tmp_path, MODEL + "[curriculum]\n" + both + reading))
    lessons = recipe.lessons(list_text())
    assert isinstance(lessons, Mixed)
    assert lessons.shares == pytest.approx([0.45, 0.3, 0.25])
    assert [type(kind) for kind in lessons.kinds] == [Simulated, Recorded, Reading]
    for wrong, said in (
        (b'{"words": 1}', r"line 1 of .*b\.jsonl has no text"),
        (b'{"text": "a"}\n{"text": null}', r"line 2 of .*b\.jsonl has no text"),
        (b'{"text": "a"}\n\n[', r"line 3 of .*b\.jsonl is not JSON"),
        (b"[" * 100_000, r"line 1 of .*b\.jsonl is not JSON"),
        (b'{"text": "\xff"}', r"b\.jsonl is not UTF-8 text \(byte 10\)"),
    ):
        (tmp_path / "b.jsonl").write_bytes(wrong)
        with pytest.raises(InvalidRequest, match=said):
            recipe.lessons(list_text())
    (tmp_path / "b.jsonl").write_text('{"text": "a\u2028b\u0085c"}\n', encoding="utf-8")
    lessons = recipe.lessons(list_text())
    assert isinstance(lessons, Mixed)
    assert len(lessons.kinds) == 3, "these signs end no line of JSON"


@pytest.mark.parametrize(
    "text", ["", "[model.config]\nmodel_type = 'qwen3'\n", "[model]\nstart = 'other'\n"]
)
def test_a_model_of_the_command_stands_in_the_place_of_the_recipes(
    tmp_path: Path, text: str
) -> None:
    """Also where the recipe names none."""
    recipe = read_recipe(write(tmp_path, text + "[curriculum]\n"), "given")
    assert (recipe.model.start, recipe.model.config) == ("given", {})


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[model", "not valid TOML"),
        ("[curriculum]", "gives neither `start` nor `config`; expected one of them"),
        (
            '[model]\nstart = "x"\n[model.config]\nmodel_type = "qwen3"\n[curriculum]',
            "gives both `start` and `config`",
        ),
        (
            '[model]\nstart = "x"\ntokenizer = "y"\n[curriculum]',
            "gives tokenizer = 'y' beside `start`, whose model has one of its own",
        ),
        (MODEL, r"needs \[curriculum\] or \[traces\]"),
        (MODEL + "[traces]\nfiles = []\nleast_score = 2", "least_score is 2.0; expected above 0"),
        (
            MODEL + f"[curriculum]\n[training]\nseed = {1 << 64}",
            "seed is 18446744073709551616; expected -9.2",
        ),
        (
            MODEL + f"[curriculum]\n[training]\nclip = {10**400}",
            "clip in .training. is a number of more than 308 digits",
        ),
        (MODEL + f"[curriculum]\n[training]\nclip = {'9' * 5000}", "a number of too many digits"),
        (MODEL + "[traces]\nfiles = []\n[parts]", r"mixes \[parts\] into \[traces\]"),
        (MODEL + "[curriculum]\n[reading]\n", r"\[reading\] is incomplete"),
        (MODEL + "[curriculum]\n[surprise]", r"has 'surprise'"),
        (MODEL + "[curriculum]\nspeed = 1", r"\[curriculum\] has the key 'speed'"),
        (MODEL + "[curriculum]\n[training]\nepochs = 1", r"\[training\] has the key 'epochs'"),
        (MODEL + "[curriculum]\n[training]\nsteps = 0", "steps is 0; expected 1 or more"),
        (MODEL + '[curriculum]\n[team]\nmotto = "x"', r"\[team\] has the key 'motto'"),
        (MODEL + '[curriculum]\n[team]\nrules = "no place"', "lacks the placeholder"),
        ('[model]\nstart = "x"\nsize = 3\n[curriculum]', r"\[model\] has the key 'size'"),
        (
            MODEL + '[curriculum]\n[training]\nsteps = "ten"',
            "steps in .training. is 'ten'; expected a whole number",
        ),
        (MODEL + "[curriculum]\n[training]\nprocesses = -1", "processes is -1; expected 0 .the"),
        ("model = 3\n[curriculum]", r"model is 3; expected a table, \[model\]"),
        (MODEL + '[curriculum]\nsolo = "x"', "solo in .curriculum. is 'x'; expected a number"),
        (MODEL + "[curriculum]\nsolo = 2", "solo is 2.0; expected 0 to 1"),
        (MODEL + "[curriculum]\nmost_workers = 0", "most_workers is 0; expected 1 to 256"),
        (
            MODEL + "[curriculum]\nfewest_problems = 9",
            "fewest_problems is 9; expected at most most_problems, 8",
        ),
        (MODEL + '[traces]\nfiles = "a.jsonl"', "files in .traces. is 'a.jsonl'"),
        (MODEL + "[traces]\n", r"\[traces\] is incomplete"),
        ('[model]\n[model.config]\nmodel_type = "qwen3"\n[curriculum]', "without `tokenizer`"),
        (
            '[model]\ntokenizer = "t"\n[model.config]\nsize = 3\n[curriculum]',
            "without a model_type",
        ),
        ('[model]\nstart = "x"\nsaved_dtype = "int3"\n[curriculum]', "saved_dtype is 'int3'"),
    ],
)
def test_what_is_refused(tmp_path: Path, text: str, expected: str) -> None:
    with pytest.raises(InvalidRequest, match=expected):
        read_recipe(write(tmp_path, text))


def test_a_recipe_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="cannot be read"):
        read_recipe(tmp_path / "nothing.toml")
    (tmp_path / "noise.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(InvalidRequest, match=r"not UTF-8 .byte 0."):
        read_recipe(tmp_path / "noise.toml")


def test_an_error_names_what_is_known(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest) as caught:
        read_recipe(write(tmp_path, MODEL + "[curriculum]\nspeed = 1"))
    assert "most_workers" in caught.value.hint
