"""Decisions in words."""

from dataclasses import replace

from fedtailor.results.statistics import Decision, TrainingEnd, Wording, sentences
from fedtailor.results.statistics.needed import Needed

POINTS = Wording("accuracy")
FOUND = Decision(
    answer="helps",
    method="fedavg",
    metric="accuracy",
    gain=0.032,
    interval=(0.011, 0.0534),
    p=0.0004,
    level=0.05,
    margin=0.01,
    speaks_for="sites like these",
    reason="",
    needed=None,
    clients=10,
)


def test_an_answer_names_method_size_interval_and_p() -> None:
    assert sentences(FOUND, POINTS, repeats=5) == [
        "Federation helps here: with fedavg, accuracy is 3.2 points better than alone "
        "(95 % interval 1.1 to 5.3, p < 0.001).",
        "This speaks for sites like these, not for these alone.",
    ]


def test_one_repeat_is_said() -> None:
    assert any("--repeats" in line for line in sentences(FOUND, POINTS, repeats=1))


def test_harm_and_no_difference() -> None:
    harm = replace(FOUND, answer="harms", gain=-0.032, interval=(-0.05, -0.01))
    assert (
        "is 3.2 points worse than alone (95 % interval −5.0 to −1.0" in sentences(harm, POINTS)[0]
    )
    same = replace(FOUND, answer="no difference", gain=-0.001, interval=(-0.006, 0.004), p=0.6)
    assert sentences(same, POINTS)[0].startswith(
        "Federation makes no difference above 1.0 points: with fedavg, accuracy is 0.1 points worse"
    )


def test_what_cannot_be_told_says_what_it_would_take() -> None:
    needed = Needed(0.032, rows=160, sites=24, repeats=5)
    found = replace(FOUND, answer="cannot tell", p=0.21, needed=needed, interval=(-0.02, 0.08))
    told = sentences(found, POINTS, repeats=3)
    assert told[0].startswith("Whether federation helps cannot be told: with fedavg")
    assert (
        "To tell a difference of 3.2 points takes about 5 repeats, 160 test rows of each site or "
        "24 sites." in told
    )
    undone = replace(found, p=0.0001)  # by rows, while the interval allows for other trainings
    assert sentences(undone, POINTS)[0].endswith(
        "was 3.2 points better than alone, in these rows beyond chance (p < 0.001), but another "
        "training might undo that (95 % interval −2.0 to 8.0)."
    )
    nothing = replace(found, needed=Needed(0.032, None, None, None))
    assert not any("To tell" in line for line in sentences(nothing, POINTS))


def test_a_unit_of_ones_own() -> None:
    wording = Wording("the error", "mmHg", scale=1, digits=2)
    found = replace(FOUND, gain=1.25, interval=(0.5, 2.0))
    assert (
        "the error is 1.25 mmHg better than alone (95 % interval 0.50 to 2.00"
        in sentences(found, wording)[0]
    )


def test_the_other_reading_stands_beside() -> None:
    beside = replace(FOUND, answer="cannot tell", speaks_for="sites like these", p=0.09)
    found = replace(FOUND, speaks_for="these sites", clients=6, beside=beside)
    assert (
        "This speaks for these 6 sites. For others like them: it cannot be told (p = 0.09)."
        in sentences(found, POINTS)
    )
    like = replace(FOUND, answer="cannot tell", beside=replace(FOUND, speaks_for="these sites"))
    assert any("For these 10 sites alone: it helps" in line for line in sentences(like, POINTS))


def test_clients_are_named_only_where_it_is_established() -> None:
    clients = {
        "north": replace(FOUND, speaks_for="this site"),
        "west": replace(FOUND, speaks_for="this site", answer="harms", gain=-0.1),
        "east": replace(FOUND, speaks_for="this site", answer="cannot tell", gain=-0.3),
    }
    told = sentences(FOUND, POINTS, clients=clients, repeats=5)[2:]
    assert told == [
        "Better off with it, beyond chance: north (by 3.2 points).",
        "Better off alone, beyond chance: west (by 10.0 points).",
        "Of 1 of 3 clients it cannot be told.",
    ]
    once = sentences(FOUND, POINTS, clients=clients, repeats=1)[3]
    sure = "beyond chance in the rows, with the models of this training"
    assert once == f"Better off with it, {sure}: north (by 3.2 points)."


def test_clients_that_do_not_count_are_named() -> None:
    found = replace(FOUND, left_out={"lone": "the metric is undefined on its test rows"})
    assert (
        "lone not counted (the metric is undefined on its test rows): means are over 10."
        in sentences(found, POINTS)
    )


def test_clients_of_which_nothing_can_be_told_have_the_true_reason() -> None:
    few = replace(FOUND, answer="cannot tell", speaks_for="this site", reason="p = 0.4 over rows")
    one_class = replace(few, gain=float("nan"), reason="only one class among its 12 test rows")
    told = lambda **clients: sentences(FOUND, POINTS, clients=clients, repeats=5)[-1]
    begin = "Of no single client can it be told: "
    assert told(a=few, b=few) == f"{begin}each has too few test rows."
    assert told(a=one_class) == f"{begin}only one class among its 12 test rows."
    assert told(a=few, b=one_class) == (
        f"{begin}only one class among its 12 test rows; the others have too few test rows."
    )


def test_nothing_known_says_why() -> None:
    found = replace(FOUND, gain=float("nan"), answer="cannot tell", clients=0, reason="no rows")
    assert sentences(found, POINTS, repeats=2) == [
        "Whether federation helps cannot be told: no rows."
    ]


def test_a_curve_that_still_rises_is_said() -> None:
    ends = {"with fedavg": TrainingEnd(True, 0.021, 20), "alone": TrainingEnd(False, 0.0, 0)}
    told = sentences(FOUND, POINTS, ends=ends)[-1]
    assert "(by 2.1 points with fedavg); try about 20 more" in told
    told = sentences(FOUND, POINTS, ends=ends | {"alone": TrainingEnd(True, 0.033, 30)})[-1]
    assert "(by 2.1 points with fedavg and 3.3 points alone); try about 30 more" in told
    ended = sentences(FOUND, POINTS, ends={"alone": TrainingEnd(False, 0.0, 0)})
    assert not any("Training had not ended" in line for line in ended)


def test_no_gain_at_all_is_neither_better_nor_worse() -> None:
    same = replace(FOUND, answer="no difference", gain=0.0, interval=(0.0, 0.0), p=1.0)
    assert (
        "with fedavg, accuracy is as alone (95 % interval 0.0 to 0.0" in sentences(same, POINTS)[0]
    )
    open_ = replace(same, answer="cannot tell", interval=(-0.02, 0.02), needed=None)
    first = sentences(open_, POINTS)[0]
    assert "accuracy was as alone" in first and "a difference either way could be hidden" in first


def test_a_gain_too_small_to_show_is_not_called_nought_points() -> None:
    small = replace(FOUND, gain=0.0002, interval=(0.0001, 0.0003))
    clients = {"a": small, "b": replace(small, answer="harms", gain=-0.0002)}
    needed = Needed(0.0002, rows=1, sites=1, repeats=1)
    ends = {"with fedavg": TrainingEnd(True, 0.0001, 5)}
    told = sentences(replace(small, needed=needed), POINTS, clients=clients, ends=ends, repeats=2)
    text = " ".join(told)
    assert "is less than 0.1 points better than alone" in text
    assert "by 0.0 points" not in text and " 0.0 points " not in text
    assert "a (by less than 0.1 points)" in text and "b (by less than 0.1 points)" in text
    assert "takes about 1 repeat, 1 test row of each site or 1 site." in text


def test_one_site_has_others_like_it() -> None:
    one = replace(FOUND, clients=1, speaks_for="these sites")
    assert (
        "This speaks for this one site: fewer than 6 say nothing of others like it."
        in sentences(one, POINTS)
    )
