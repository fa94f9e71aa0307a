"""The server: one engine behind HTTP, for programs that speak OpenAI's API, for people, for operators.

    app.py         all routes; openapi.py describes them
    gate.py        what every request passes: host, origin, key, type, size; the log
    cors.py        what a browser asks before a page of another site may call
    front.py       what routes share: a request becomes a run, a run an answer
    process.py     the app under uvicorn: a socket, signals, an end; connection.py: clients without an end
    asked.py       a request, understood: shapes.py is what bodies may be, body.py what JSON may say
    limits.py      how much one client may ask; keys.py: which clients, and what is theirs
    failures.py    what is said where there is no answer
    chat.py        chat completions and completions; telling.py: a team's thinking in one text
    responses.py   the same in the words of OpenAI's newer API
    run_routes.py  runs over HTTP; runs.py keeps them, records.py tells them, partial.py ends them early
    news.py        from the service's thread to the event loop; streams.py: answers in pieces
    metrics.py     numbers for operators; usage.py: what a request has cost
    view.py        a saved run as records, and an address that shows it
    page/          the page as files; a document that needs no server

Two threads matter: the service's, which makes passes, and the event loop's, which talks to clients. What takes
time besides (templates, tokens, JSON) is done in two more. The room knows the engine by `engine/service.py`
alone.
"""
