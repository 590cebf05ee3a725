# make demo   runs the main job on the embedded data
# make test   installs what the tests need and passes them
# make audit  asks the registry for known weaknesses of what is installed; needs its advisories
# make docs   builds the documentation into site/index.html; a warning is an error
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

# silences a notice about the theme's future
export NO_MKDOCS_2_WARNING := 1

.PHONY: demo test audit docs format clean

$(VENV)/.installed: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) -e .
	touch $@

$(VENV)/.installed-dev: $(VENV)/.installed
	$(PIP) -e '.[dev]'
	touch $@

demo: $(VENV)/.installed
	$(BIN)/fedtailor compare fedavg fedrep fedala --set fedrep.head_epochs=10 \
	  --data digits --clients 20 --partition dirichlet:0.1 --model mlp --rounds 15 --eval-every 3 \
	  --repeats 2 --out runs/demo --overwrite

test: $(VENV)/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m pytest

audit: $(VENV)/.installed-dev
	$(PIP) 'pip-audit>=2.9,<3'
	$(BIN)/pip-audit --skip-editable

docs: $(VENV)/.installed-dev
	$(BIN)/mkdocs build --strict --quiet
	@echo site/index.html

format: $(VENV)/.installed-dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf $(VENV) site build dist *.egg-info src/*.egg-info
