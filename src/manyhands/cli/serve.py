"""`manyhands serve`: options to a server, in the order of what a mistake costs.

Keys, address and port are looked at before the model is loaded; requests are taken when it is.
"""

from __future__ import annotations

import os
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from manyhands.cli.command import shared_of, warn_of
from manyhands.cli.guard import tell
from manyhands.cli.loading import (
    get_ready,
    load_engine,
    name_of,
    prompts_for,
    sampled,
    traced_facts,
)
from manyhands.cli.output import Notes
from manyhands.cli.serve_options import ServeOptions
from manyhands.engine.garbage import keep_loaded
from manyhands.errors import InvalidRequest, install_hint
from manyhands.evaluation.shared import SHARED_PREFIX
from manyhands.hub import BUNDLED
from manyhands.model.generation import own_choice
from manyhands.schema.bounded import read_small
from manyhands.schema.choosing import pairs
from manyhands.server.keys import Keys
from manyhands.server.limits import Limits
from manyhands.strategies.methods import METHODS
from manyhands.tasks.arithmetic.world import outside_world

if TYPE_CHECKING:
    from manyhands.server.front import Front

KEY_VARIABLE = "MANYHANDS_API_KEY"


def serve(options: ServeOptions) -> None:
    """Do what the command says; see `manyhands serve --help`."""
    try:
        from manyhands.server.process import Place, check_place, listening
        from manyhands.server.process import serve as answer
    except ImportError as error:
        raise InvalidRequest(
            f"the server needs {error.name}, which is not installed",
            hint=install_hint("serve"),
        ) from error
    keys = keys_of(options)
    shared_of(ServeOptions).settings_for(
        SHARED_PREFIX, options.chosen, options.listed
    )  # or refused
    place = Place(
        options.host,
        options.port,
        options.allow_host,
        options.allow_origin,
        options.drain,
        options.log,
    )
    check_place(place, has_keys=bool(keys))
    with listening(place) as taken:
        if options.ray is not None:
            from manyhands.cli.serve_ray import serve_on

            make, limits = partial(make_front, options, keys), limits_of(options)
            name = options.name or _called(name_of(options.model))
            code = serve_on(options, make, name, keys, limits, place, taken, _tell_ready)
        else:
            front = make_front(options, keys)
            code = answer(front, place, taken, ready=_tell_ready)
    if code:
        tell("the engine has failed; the log has the reason", "error: ", "bold red")
        raise typer.Exit(code)


def make_front(options: ServeOptions, keys: Keys, mark: str = "") -> Front:
    """Load the model, and what stands before it; in this process, or in a replica with its `mark`."""
    from manyhands.engine.service import Service
    from manyhands.server.asked import Served
    from manyhands.server.front import Front

    limits = limits_of(options)
    unsaid = shared_of(ServeOptions).settings_for(SHARED_PREFIX, options.chosen, options.listed)
    model = name_of(options.model)
    unsaid = sampled(unsaid, model, options)
    prompts = prompts_for(model, options.prompts, options.lora)
    METHODS.working(warn_of)  # imported before the first request
    engine, text = load_engine(model, options, Notes())
    get_ready(engine)
    for sentence in engine.about:
        tell(sentence)
    place = traced_facts(engine, text, options)
    if place["lora"] is not None:
        place["lora"] = _called(place["lora"])
    served = Served(
        options.name or _called(model),
        text,
        prompts,
        context=engine.facts.max_positions,
        only_forks=engine.facts.num_states > 0,
        tree=engine.prefixes,
        limits=limits,
        unsaid=unsaid,
        seed=unsaid.seed if "seed" in {**pairs(options.listed), **options.chosen} else None,
        own=None if options.greedy else own_choice(model),
        vocabulary=engine.facts.vocab_size,
        place=place,
        outside=outside_world if model == BUNDLED else None,
    )
    service = Service(
        engine,
        max_live=limits.live_runs,
        max_waiting=limits.waiting_runs,
        max_events=limits.run_events,
    )
    front = Front(served, service, keys, mark=mark)
    keep_loaded()  # the room `server` has been imported since
    return front


def limits_of(options: ServeOptions) -> Limits:
    """The limits among the options."""
    return Limits(**{each.name: getattr(options, each.name) for each in fields(Limits)})


def keys_of(options: ServeOptions) -> Keys:
    """All keys that were given: as an option, in a file, in the environment."""
    given = [key for key in (options.api_key, os.environ.get(KEY_VARIABLE)) if key]
    if options.api_key_file is not None:
        try:
            lines = read_small(options.api_key_file).decode("utf-8-sig").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            why = "is not UTF-8 text"
            if isinstance(error, OSError):
                why = f"cannot be read: {error.strerror or error}"
            raise InvalidRequest(
                f"the file {str(options.api_key_file)!r} {why}",
                hint="give a file with one key a line",
            ) from error
        found = [line.strip() for line in lines if line.strip() and not line.startswith("#")]
        if not found:
            raise InvalidRequest(
                f"the file {str(options.api_key_file)!r} holds no key",
                hint="give a file with one key a line",
            )
        given += found
    return Keys(given)


def _called(model: str) -> str:
    """A name for clients, which tells no path."""
    return model if model == BUNDLED or not Path(model).is_absolute() else Path(model).name


def _tell_ready(url: str) -> None:
    tell(f"serving at {url}")
