"""The stories of the word problems, as data: read `template.py` first, then any of the stories."""
