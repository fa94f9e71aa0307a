"""The ground floor: what data looks like, whoever makes it and whatever it is about.

`setting` declares a choice of a user once, at the field that holds it; `choosing` reads `name=value`
into such settings; `plain` turns frozen dataclasses into plain data and back; `waits` takes a caller's seconds;
`lines` keeps append-only files of JSON lines, and `whole` writes files that are there as a whole or not at all; `openai` has the requests and answers of OpenAI's API. Nothing here imports torch.
"""
