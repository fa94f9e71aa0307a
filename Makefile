# Three commands do everything on a fresh machine that has Python 3.11 or newer:
#   make solve    set up, then let a team solve a problem with the bundled model
#   make serve    set up, then serve the bundled model at http://127.0.0.1:8000
#   make test     set up, then run every check: lint, format, types, tests
# Two more, before any commit, and before a release or a change of a range in pyproject.toml:
#   make pages    tests that only read files: words, letters, floors, links, figures of the pages
#   make lowest FILES=tests/model    the lowest accepted releases in an environment of their own, and tests with them
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
LOWEST ?= .venv-lowest
FILES ?= tests
PROBLEM ?= Solve these problems and box the answers in order, separated by commas:\n1. 84 + 29 - 38\n2. 17 + 60 + 5 - 31\n3. 93 - 46 + 12\n4. 25 + 25 + 25 + 25\n5. 71 - 8 - 9
WORKERS ?= 3
export PROBLEM

.PHONY: setup solve serve test lint types tests pages lowest clean
setup: $(VENV)/ready

$(VENV)/ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	touch $@

solve: setup
	@printf '%b\n' "$$PROBLEM" | $(BIN)/manyhands solve --workers $(WORKERS)

serve: setup
	@$(BIN)/manyhands serve

test: setup lint types tests

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: setup
	$(BIN)/mypy

# Each process has one third of the tests in a row, so that what a file prepares is prepared once; the first one that is done
# takes from the others. Two cores have three, for tests wait for servers, browsers and Ray. Programs that tests start find
# compiled modules.
tests: setup
	PYTHONDONTWRITEBYTECODE= OMP_NUM_THREADS=1 $(BIN)/pytest --numprocesses 3 --dist worksteal

# A commit of docs alone can break these.
pages: setup
	$(BIN)/pytest tests/test_docs.py tests/test_docstrings.py tests/test_letters.py tests/test_words.py tests/test_floors.py \
	    tests/benchmarks/test_pages.py tests/benchmarks/test_papers.py tests/model/test_models_page.py \
	    tests/test_bundled.py::test_the_tables_of_its_page_are_made_from_the_results -k 'not prints_what'

# Of what is not named in pyproject.toml the newest release is taken. Old libraries warn of newer ones that they
# stand on, so warnings are no errors here.
lowest: $(LOWEST)/ready
	PYTHONDONTWRITEBYTECODE= OMP_NUM_THREADS=1 $(LOWEST)/bin/python -m pytest -W default $(FILES)

$(LOWEST)/ready: pyproject.toml
	$(PYTHON) -m venv $(LOWEST)
	$(LOWEST)/bin/python -m pip install --quiet --disable-pip-version-check uv
	$(LOWEST)/bin/uv pip install --quiet --python $(LOWEST)/bin/python --resolution lowest-direct --editable '.[dev]'
	touch $@

clean:
	rm -rf $(VENV) $(LOWEST) build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis
