"""What methods say of themselves, and the options that a person sets."""

from __future__ import annotations

import doctest
import inspect
from math import inf
from typing import Annotated, Any, Literal, NamedTuple

import pytest
from torch import nn

from fedtailor.core.errors import BadInput
from fedtailor.core.method import Method
from fedtailor.core.options import Count, Limit, NonNegative, Percent, Share, Weighting, Whole
from fedtailor.core.task import classification
from fedtailor.core.training import Recipe
from fedtailor.methods import METHODS
from fedtailor.methods.describe import flat_options, page, parse_options
from fedtailor.methods.find import find
from fedtailor.methods.mixture.fedala import Ala
from fedtailor.methods.mixture.pmixfed import Mixer


def sample(
    task: Any,
    *,
    lam: NonNegative = 1.0,
    share: Share = 0.5,
    s: Percent = 80.0,
    rounds: Count = 3,
    warm: Whole = 0,
    near: Annotated[float, (-1.0, 2.5)] = 0.0,
    free: float = 1.0,
    top: Limit = inf,
    fast: bool = False,
    weighting: Weighting = "data",
    norm: Literal["l1", "l2"] = "l2",
    recipe: Recipe = Recipe(),
    given: dict[str, int] | None = None,
) -> Method:
    """A method for this test.

        w ← w

    And a second paragraph: it says Args: in the middle of a line.

    Args:
      lam: pull λ; see
        the paper.
      share: a share.
      fast: whether: yes or no.

    Deviations: none,
    at all.

    Reference: Nobody et al., https://arxiv.org/abs/0000.00000
    """
    raise NotImplementedError


def options() -> dict[str, Any]:
    return {option.name: option for option in page(sample).options}


def test_a_page_in_parts() -> None:
    found = page(sample)
    assert found.title == "A method for this test."
    assert "    w ← w" in found.text and "second paragraph" in found.text
    assert "share" not in found.text
    assert found.deviations == "none, at all."
    assert found.reference == "Nobody et al., https://arxiv.org/abs/0000.00000"


def test_options_come_from_the_signature_and_meanings_from_the_docstring() -> None:
    found = options()
    simple = ["lam", "share", "s", "rounds", "warm", "near", "free", "top", "fast"]
    assert list(found) == [*simple, "weighting", "norm"]  # a recipe or a dict is not for --set
    assert found["lam"].meaning == "pull λ; see the paper."
    assert found["fast"].meaning == "whether: yes or no."
    assert found["free"].meaning == ""
    assert (found["rounds"].kind, found["rounds"].default) == (int, 3)
    assert (found["s"].low, found["s"].high) == (0, 100)
    assert (found["free"].low, found["free"].high) == (-inf, inf)
    assert found["weighting"].choices == ("data", "uniform")


def test_what_options_take_in_words() -> None:
    words = {name: option.values for name, option in options().items()}
    assert words["lam"] == "number, at least 0"
    assert words["share"] == "number from 0 to 1"
    assert words["rounds"] == "whole number, at least 1"
    assert words["near"] == "number from -1 to 2.5"
    assert words["free"] == "number"
    assert words["top"] == "number, at least 0"
    assert words["fast"] == "true | false"
    assert words["norm"] == "l1 | l2"


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("lam", "0.5", 0.5),
        ("lam", "2", 2.0),
        ("lam", 2, 2.0),
        ("lam", "1e-3", 1e-3),
        ("rounds", "7", 7),
        ("rounds", 7, 7),
        ("warm", "0", 0),
        ("share", "1", 1.0),
        ("near", "-1", -1.0),
        ("top", "inf", inf),
        ("top", inf, inf),
        ("top", "3", 3.0),
        ("fast", "true", True),
        ("fast", "No", False),
        ("fast", True, True),
        ("fast", "0", False),
        ("norm", "l1", "l1"),
    ],
)
def test_values_that_are_taken(name: str, text: Any, value: Any) -> None:
    found = parse_options(sample, {name: text})
    assert found == {name: value}
    assert type(found[name]) is type(value)


WRONG = [
    ("lam", "-0.1"),
    ("lam", "nan"),
    ("lam", "much"),
    ("lam", ""),
    ("lam", True),
    ("share", "1.01"),
    ("s", "101"),
    ("rounds", "0"),
    ("rounds", "1.5"),
    ("rounds", 2.0),
    ("rounds", "many"),
    ("warm", -1),
    ("near", 3),
    ("top", "-inf"),
    ("top", "nan"),
    ("fast", "maybe"),
    ("fast", 2),
    ("weighting", "size"),
    ("norm", "L1"),
    ("norm", ""),
]


@pytest.mark.parametrize(("name", "text"), WRONG)
def test_values_that_are_refused(name: str, text: Any) -> None:
    with pytest.raises(BadInput) as caught:
        parse_options(sample, {name: text})
    line = str(caught.value)
    assert "\n" not in line
    assert f"'{name}'" in line and repr(text) in line
    assert options()[name].values in line  # the cure


@pytest.mark.parametrize(
    ("name", "value"), [("lam", None), ("lam", [1]), ("rounds", {}), ("lam", 10**400)]
)
def test_values_of_another_kind_are_refused(name: str, value: Any) -> None:
    with pytest.raises(BadInput):
        parse_options(sample, {name: value})


@pytest.mark.parametrize("value", ["inf", inf, "-inf", "1e999"])
@pytest.mark.parametrize("name", ["lam", "free", "rounds"])
def test_infinity_is_refused_unless_the_type_says_otherwise(name: str, value: Any) -> None:
    with pytest.raises(BadInput):
        parse_options(sample, {name: value})


def test_an_unknown_option_is_one_line_with_a_guess() -> None:
    with pytest.raises(BadInput) as caught:
        parse_options(sample, {"lamb": 1})
    line = str(caught.value)
    assert "\n" not in line
    assert "'lamb'" in line and "did you mean 'lam'?" in line and "weighting" in line


def test_a_method_without_options_says_so() -> None:
    def bare(task: Any) -> Method:
        """Bare."""
        raise NotImplementedError

    assert parse_options(bare, {}) == {}
    with pytest.raises(BadInput, match="has none"):
        parse_options(bare, {"x": 1})


@pytest.mark.parametrize("name", METHODS)
def test_every_method_says_what_it_is(name: str) -> None:
    found = page(METHODS[name])
    assert found.title.endswith(".") and len(found.title) <= 100
    assert found.text and found.deviations
    # a link, or at least a source by its title
    assert "https://arxiv.org/abs/" in found.reference or found.reference.count('"') == 2
    signature = inspect.signature(METHODS[name]).parameters
    assert next(iter(signature)) == "task"
    assert signature["recipe"].default == Recipe()
    for option in found.options:
        assert option.meaning, f"{name}: nothing is said of {option.name}"
        assert option.kind is not str or option.choices, f"{name}: {option.name}"
        assert option.parse(option.default) == option.default


@pytest.mark.parametrize("name", METHODS)
def test_every_method_has_an_example(name: str) -> None:
    """And it runs: doctest by itself would not look behind a decorator."""
    factory = inspect.unwrap(METHODS[name])
    example = inspect.cleandoc(factory.__doc__ or "").partition("\nExample:\n")[2]
    assert f">>> method = {factory.__name__}(toy_task(), " in example
    space = vars(inspect.getmodule(factory))
    case = doctest.DocTestParser().get_doctest(example, space, name, None, 0)
    assert doctest.DocTestRunner(verbose=False).run(case, clear_globs=False).failed == 0
    assert isinstance(case.globs["method"], Method)


@pytest.mark.parametrize("name", METHODS)
def test_every_number_names_its_range(name: str) -> None:
    # the command line can only check what is said
    for option in page(METHODS[name]).options:
        assert option.kind in (bool, str) or option.low > -inf, option.name


@pytest.mark.parametrize("name", METHODS)
def test_a_docstring_speaks_of_no_argument_that_is_not_there(name: str) -> None:
    factory = METHODS[name]
    told = inspect.cleandoc(factory.__doc__ or "").partition("Args:\n")[2].partition("\n\n")[0]
    begun = [line.split(":")[0].strip() for line in told.splitlines() if line[:3].count(" ") == 2]
    assert set(begun) == set(inspect.signature(factory).parameters) - {"task"}


@pytest.mark.parametrize("name", METHODS)
def test_every_method_can_be_made_with_its_defaults_spelt_out(name: str) -> None:
    task = classification(lambda: nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3)))
    factory = find(name)
    spelt = parse_options(factory, {o.name: str(o.default) for o in page(factory).options})
    assert isinstance(factory(task, **spelt), Method)


class Shape(NamedTuple):
    """Options that several methods share.

    Attributes:
      width: how wide.
      lam: how strong, the shape's own.
    """

    width: Count = 4
    lam: NonNegative = 2.0


@flat_options
def shaped(
    task: Any, *, lam: Share = 0.1, shape: Shape = Shape(width=7), fast: bool = False
) -> Any:
    """A method with a record of options.

    Args:
      lam: the method's own.
      shape: its shape.
      fast: whether.
    """
    return lam, shape, fast


def test_the_fields_of_a_record_are_options_where_it_stands() -> None:
    """A name that is taken gets the record's in front; defaults are the factory's."""
    found = {option.name: option for option in page(shaped).options}
    assert list(found) == ["lam", "width", "shape_lam", "fast"]
    assert [found[k].default for k in found] == [0.1, 7, 2.0, False]
    assert found["width"].meaning == "how wide."
    assert found["shape_lam"].meaning == "how strong, the shape's own."
    assert found["width"].low == 1 and found["shape_lam"].high == inf
    assert parse_options(shaped, {"shape_lam": "5"}) == {"shape_lam": 5.0}
    with pytest.raises(BadInput, match="width"):
        parse_options(shaped, {"width": 0})


def test_a_record_is_filled_by_name_or_given_whole() -> None:
    assert shaped(None) == (0.1, Shape(7, 2.0), False)
    assert shaped(None, lam=0.5, shape_lam=9.0) == (0.5, Shape(7, 9.0), False)
    assert shaped(None, shape=Shape(1), fast=True) == (0.1, Shape(1, 2.0), True)
    assert shaped(None, shape=Shape(1), shape_lam=3.0) == (0.1, Shape(1, 3.0), False)
    with pytest.raises(TypeError):
        shaped(None, nonsense=1)


@pytest.mark.parametrize(
    ("name", "option", "record"),
    [("fedala", "s", Ala(s=50.0)), ("pmixfed", "mu0", Mixer(mu0=50.0))],
)
def test_options_of_our_records_stand_once(name: str, option: str, record: Any) -> None:
    """In the record alone: its docstring explains them, the method's signature names it."""
    assert option not in inspect.signature(METHODS[name]).parameters
    assert option in {o.name for o in page(METHODS[name]).options}
    assert getattr(record, option) == 50.0


def test_an_argument_without_a_default_is_refused_by_name() -> None:
    def mine(task, *, strength: float, recipe=None):
        """A method."""

    for given in ({}, {"strength": 3}):
        with pytest.raises(BadInput, match="option 'strength' of 'mine' has no default: give it"):
            parse_options(mine, given)


def test_an_option_of_a_type_that_options_have_not_is_not_said_to_be_unknown() -> None:
    def mine(task, *, rates: list[float] | None = None, plain=0.5, recipe=None):
        """A method."""

    assert parse_options(mine, {}) == {}
    for name in ("rates", "plain"):
        with pytest.raises(BadInput, match=f"option '{name}' of 'mine' cannot be set.*float, int"):
            parse_options(mine, {name: 1})


def test_an_annotation_that_nobody_knows_is_refused_by_name() -> None:
    def mine(task, *, strength: Strength = 1.0):  # noqa: F821
        """A method."""

    with pytest.raises(BadInput, match=r"'mine' has an annotation .*'Strength' is not defined"):
        page(mine)


@pytest.mark.parametrize("name", [*METHODS, "fedavg+adam", "fedavg+avgm", "ditto+ala"])
def test_what_is_tuned_of_a_method_lies_within_what_it_takes(name: str) -> None:
    for option in page(find(name)).options:
        if option.search is not None and option.kind in (int, float):
            low, high, log = option.search
            assert option.low <= low < high <= option.high, option
            assert option.parse(option.kind(low)) == low, option
            assert low > 0 or not log, option


@pytest.mark.parametrize(
    "name", ["pmixfed", "plgu-lf", "fedala", "pfedla", "fedfomo", "fedprox", "ditto", "pfedme"]
)
def test_methods_with_hyper_parameters_say_what_to_try(name: str) -> None:
    assert any(option.search for option in page(find(name)).options)
