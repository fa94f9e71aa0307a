"""From text to tokens and back, and the small rules that read a worker's text while it grows.

    tokens.py      `Text`: one model's tokenizer and chat template
    fewest.py      how many tokens a text has at least, before it is encoded
    templates.py   renders a chat template under limits, in a child process; jinja.py is its other side
    stream.py      `StreamDecoder`: tokens to text, one by one
    thinking.py    `ThinkingWatch`: what is thinking, and what the reply
    steps.py       `StepEnd`: is the worker's paragraph, and with it the step, complete?
    markers.py     `MarkerWatch`: the marks of a parallel block
    stops.py       `StopWatch`: a text ends where a stop text would begin
    grammar.py     `Grammar`: a form that a text must have
    boxed.py       `boxed_answer`, `BoxWatch`: the final answer inside a box
    code.py        `CodeWatch`, `answer_in`: a program as the answer
    clean.py       `clean_problem` for what comes in, `printable` for what goes to a terminal

No torch and no transformers here: the caller hands a tokenizer in.
"""

from manyhands.text.boxed import BoxWatch, boxed_answer
from manyhands.text.clean import MAX_PROBLEM_CHARS, clean_problem, printable
from manyhands.text.code import AnswerWatch, CodeWatch, answer_in
from manyhands.text.steps import StepEnd
from manyhands.text.stream import StreamDecoder
from manyhands.text.thinking import ThinkingWatch
from manyhands.text.tokens import Text, Tokenizer

__all__ = [
    "MAX_PROBLEM_CHARS",
    "AnswerWatch",
    "BoxWatch",
    "CodeWatch",
    "StepEnd",
    "StreamDecoder",
    "Text",
    "ThinkingWatch",
    "Tokenizer",
    "answer_in",
    "boxed_answer",
    "clean_problem",
    "printable",
]
