"""The statistics that every reported number rests on: known values, properties, coverage, odd inputs."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from nextturn.probe.stats import (
    Estimate,
    PairedDifference,
    auc,
    clustered_rate,
    holm,
    kappa_ci,
    mcnemar,
    mean_ci,
    p_value_of,
    paired_difference,
    wilson,
)

counts = st.integers(1, 2000).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n)))
samples = st.lists(st.tuples(st.sampled_from("abcdefgh"), st.booleans()), min_size=1, max_size=60)


@pytest.mark.parametrize(
    ("successes", "n", "low", "high"),
    [(0, 10, 0.0, 0.2775), (10, 10, 0.7225, 1.0), (10, 100, 0.0552, 0.1744), (50, 100, 0.4038, 0.5962)],
)
def test_wilson_gives_the_values_of_the_textbook(successes: int, n: int, low: float, high: float) -> None:
    assert wilson(successes, n).ci95 == pytest.approx((low, high), abs=5e-5)


@given(counts)
def test_wilson_contains_its_value_stays_within_0_and_1_and_shrinks_with_n(count: tuple[int, int]) -> None:
    successes, n = count
    few, many = wilson(successes, n), wilson(4 * successes, 4 * n)
    assert few.ci95 and many.ci95 and few.value is not None
    assert 0 <= few.ci95[0] <= few.value <= few.ci95[1] <= 1
    assert many.ci95[1] - many.ci95[0] < few.ci95[1] - few.ci95[0]


@pytest.mark.parametrize("rate", [0.01, 0.03, 0.97])
def test_clustered_rate_covers_a_rare_value_whose_samples_agree_within_items(rate: float) -> None:
    """Four samples an item, half of the variance between items. The items that hold the rare value are few, and where they
    say nothing of how alike samples are, the interval has to allow for it: else it covers 87 to 90% at 3%."""
    rng = random.Random(1)
    for items in (30, 60, 200):
        covered = naive = 0
        trials = 600 if items < 200 else 300
        for _ in range(trials):
            chances = [rng.betavariate(rate, 1 - rate) for _ in range(items)]
            values = [rng.random() < chance for chance in chances for _ in range(4)]
            low, high = clustered_rate(values, [str(index // 4) for index in range(4 * items)]).ci95 or (0, 0)
            covered += low <= rate <= high
            low, high = wilson(sum(values), len(values)).ci95 or (0, 0)
            naive += low <= rate <= high
        assert covered / trials >= 0.93, items
        assert naive < covered


@given(samples)
def test_clustered_rate_of_the_other_value_is_its_mirror_image(rows: list[tuple[str, bool]]) -> None:
    values, clusters = [value for _, value in rows], [cluster for cluster, _ in rows]
    assume(2 * sum(values) != len(values))  # neither is the rarer one
    found, other = clustered_rate(values, clusters), clustered_rate([not value for value in values], clusters)
    assert found.ci95 and other.ci95
    assert other.ci95 == pytest.approx((1 - found.ci95[1], 1 - found.ci95[0]))


@given(samples)
def test_clustered_rate_is_a_rate_between_wilson_on_samples_and_on_items(rows: list[tuple[str, bool]]) -> None:
    values, clusters = [value for _, value in rows], [cluster for cluster, _ in rows]
    found, plain = clustered_rate(values, clusters), wilson(sum(values), len(values))
    assert found.ci95 and plain.ci95 and found.value is not None
    assert found.value == pytest.approx(sum(values) / len(values))
    assert 0 <= found.ci95[0] <= found.value <= found.ci95[1] <= 1
    assert found.ci95[1] - found.ci95[0] >= plain.ci95[1] - plain.ci95[0] - 1e-12


def test_rates_at_the_edges() -> None:
    """Samples that all failed still leave room for what was not seen, and one value per item is plain Wilson."""
    values, clusters = [False] * 30, [str(index // 3) for index in range(30)]
    assert clustered_rate([True] * 7 + values, list(map(str, range(37)))).ci95 == wilson(7, 37).ci95
    assert clustered_rate(values, clusters).ci95 == pytest.approx(wilson(0, 10).ci95)
    assert clustered_rate([True, True], ["a", "a"]).ci95 == pytest.approx(wilson(1, 1).ci95)
    assert clustered_rate([], []) == wilson(0, 0) == Estimate(None, None, 0)
    assert wilson(0, 0).as_json() == {"value": None, "ci95": None}
    with pytest.raises(ValueError, match="3 successes of 2"):
        wilson(3, 2)


@given(samples, st.randoms(use_true_random=False))
def test_no_figure_depends_on_the_order_of_the_rows(rows: list[tuple[str, bool]], rng: random.Random) -> None:
    shuffled = rng.sample(rows, len(rows))

    def figures(some: list[tuple[str, bool]]) -> tuple[Estimate, ...]:
        clusters, values = [cluster for cluster, _ in some], [value for _, value in some]
        labels = [str(value) for value in values]
        numbers = [0.1 + value / 3 for value in values]
        rate, mean = clustered_rate(values, clusters), mean_ci(numbers, clusters, draws=50)
        separation = auc([ord(cluster) for cluster in clusters], values, clusters, draws=50)
        return rate, mean, kappa_ci(labels, clusters, clusters, draws=50), separation

    assert figures(rows) == figures(shuffled)


def test_mean_of_one_item_has_no_interval_and_nan_is_refused() -> None:
    assert mean_ci([1.0, 2.0], ["a", "a"]) == Estimate(1.5, None, 2)
    assert mean_ci([]) == Estimate(None, None, 0)
    with pytest.raises(ValueError, match="not finite"):
        mean_ci([float("nan")])


@pytest.mark.parametrize(("gained", "lost", "p"), [(0, 0, 1.0), (5, 0, 0.0625), (10, 2, 0.03857421875), (3, 3, 1.0)])
def test_mcnemar_gives_the_exact_binomial_p(gained: int, lost: int, p: float) -> None:
    assert mcnemar(gained, lost) == pytest.approx(p)
    assert mcnemar(lost, gained) == mcnemar(gained, lost)
    assert 0 < mcnemar(900, 600) < 1e-10, "more items than a float can count"


def test_holm_corrects_for_the_number_of_tests_and_intervals_imply_a_p_value() -> None:
    assert holm([0.01, 0.04, 0.03, 0.005]) == 0.01, "0.03 is more than 0.05 / 2, so 0.04 is not looked at"
    assert holm([0.02, 0.04]) == 0.04 and holm([0.03, 0.04]) == holm([]) == 0.0
    assert p_value_of(paired_difference({"a": [0.0]}, {"a": [1.0]})) == 1.0, "McNemar's, of one item"
    at_the_bound = PairedDifference(-0.2, (-0.3, 0.0), 20)
    assert p_value_of(at_the_bound) == pytest.approx(0.05, abs=1e-6)
    assert p_value_of(replace(at_the_bound, value=0.0)) == 1.0


def test_paired_difference_counts_flips_leaves_out_items_of_one_side_and_takes_samples() -> None:
    a = {str(item): [float(item < 40)] for item in range(100)} | {"only a": [1.0]}
    b = {str(item): [float(10 <= item < 80)] for item in range(100)} | {"no value": []}
    found = paired_difference(a, b)
    assert found.value == pytest.approx(0.3)
    assert (found.gained, found.lost, found.n, found.unmatched) == (40, 10, 100, 1)
    assert found.p_value == mcnemar(40, 10)
    assert found.gained_items == tuple(sorted(str(item) for item in range(40, 80)))
    assert found.lost_items == tuple(sorted(str(item) for item in range(10)))
    assert found.ci95 and 0.15 < found.ci95[0] < 0.3 < found.ci95[1] < 0.45
    # Several samples an item: a bootstrap's interval, and no McNemar.
    none = {str(item): [0.0, 0.0] for item in range(50)}
    some = {str(item): [1.0, 0.0] if item % 2 else [0.0, 0.0] for item in range(50)}
    found = paired_difference(none, some)
    assert (found.value, found.gained, found.p_value) == (pytest.approx(0.25), 25, None)
    assert found.ci95 and 0.15 < found.ci95[0] < 0.25 < found.ci95[1] < 0.35


values_by_item = st.dictionaries(st.sampled_from("abcdefgh"), st.lists(st.booleans(), max_size=3))


@given(values_by_item, values_by_item)
def test_gained_and_lost_items_are_those_whose_mean_moved_and_swap_with_the_runs(
    a: dict[str, list[bool]], b: dict[str, list[bool]]
) -> None:
    there, back = paired_difference(a, b, draws=10), paired_difference(b, a, draws=10)
    common = sorted(item for item in {*a, *b} if a.get(item) and b.get(item))
    moved = {item: sum(b[item]) / len(b[item]) - sum(a[item]) / len(a[item]) for item in common}
    assert there.gained_items == tuple(item for item in common if moved[item] > 1e-9)
    assert there.lost_items == tuple(item for item in common if moved[item] < -1e-9)
    assert (there.gained, there.lost) == (len(there.gained_items), len(there.lost_items))
    assert (back.gained_items, back.lost_items) == (there.lost_items, there.gained_items)
    assert "gained_items" not in there.as_json()


def test_the_interval_of_a_binary_difference_agrees_with_its_test() -> None:
    before = {str(item): [0.0] for item in range(200)}
    after = {item: [1.0 if int(item) < 4 else 0.0] for item in before}
    found = paired_difference(before, after)
    assert found.p_value == pytest.approx(0.125)
    assert found.ci95 is not None
    assert found.ci95[0] < 0 < found.value < found.ci95[1], "four gains of 200 are no proof"  # type: ignore[operator]
    # Bonett and Price (2012): (b + 1) / (n + 2) and (c + 1) / (n + 2) in place of the shares.
    up, down = 5 / 202, 1 / 202
    half = 1.959964 * ((up + down - (up - down) ** 2) / 202) ** 0.5
    assert found.ci95 == pytest.approx((up - down - half, up - down + half))


def test_few_changed_items_of_several_samples_are_no_proof_either() -> None:
    """The bootstrap alone leaves out 0 after four gains of 200; of an item with two samples McNemar's test does not apply."""
    before = {str(item): [0.0, 0.0] for item in range(200)}

    def low(gains: int) -> float:
        found = paired_difference(before, {item: [1.0, 1.0] if int(item) < gains else [0.0, 0.0] for item in before})
        assert found.ci95 and found.value is not None and found.ci95[0] <= found.value < found.ci95[1]
        return found.ci95[0]

    assert low(4) <= 0 < low(7)


def test_no_item_changed_does_not_mean_that_none_ever_would() -> None:
    same = {str(item): [1.0] for item in range(20)}
    found = paired_difference(same, same)
    assert found.value == 0 and found.p_value == 1.0
    assert found.ci95 == pytest.approx((-0.125991, 0.125991), abs=1e-4)
    assert paired_difference(same, {}).as_json()["value"] is None


def test_kappa_gives_the_values_of_the_textbook() -> None:
    a = ["yes"] * 25 + ["no"] * 25
    b = ["yes"] * 20 + ["no"] * 5 + ["yes"] * 10 + ["no"] * 15
    values = [kappa_ci(*both).value for both in ((a, b), (a, a), (["yes"] * 5, ["yes"] * 5), ([], []))]
    assert values == [pytest.approx(0.4), 1, None, None]


def test_kappa_interval_is_wider_where_turns_share_a_conversation_and_never_without_width() -> None:
    rng = random.Random(3)
    a = [rng.choice("gno") for _ in range(40)] * 5
    b = [label if rng.random() < 0.8 else "x" for label in a[:40]] * 5
    alone, shared = kappa_ci(a, b), kappa_ci(a, b, [str(index % 40) for index in range(200)])
    assert alone.ci95 and shared.ci95 and alone.value is not None
    assert alone.ci95[0] < alone.value < alone.ci95[1]
    assert shared.ci95[1] - shared.ci95[0] > 1.5 * (alone.ci95[1] - alone.ci95[0])
    agreed = kappa_ci(a, a).ci95
    assert agreed and 0.9 < agreed[0] < 1 == agreed[1]
    with pytest.raises(ValueError, match="expected one per value"):
        kappa_ci(["a"], [])


def test_kappa_interval_covers_the_true_one_where_the_judge_hardly_ever_says_genuine() -> None:
    """A bootstrap covers 46% here with 20 labels and 84% with 60, and has no width where the judge never says it."""
    never = kappa_ci([*"yyy", *"n" * 17], ["n"] * 20)
    assert never.value == 0 and never.ci95 and never.ci95[0] < -0.05 and never.ci95[1] > 0.2
    rng = random.Random(6)
    for labels in (20, 60):
        # Read genuine 30%, judged genuine 5%: kappa is 0.1.
        pairs = [rng.choices(["yy", "yn", "ny", "nn"], [0.031, 0.269, 0.019, 0.681], k=labels) for _ in range(150)]
        found = [kappa_ci(*zip(*drawn, strict=True), draws=500).ci95 or (0, 0) for drawn in pairs]
        assert sum(low <= 0.1 <= high for low, high in found) >= 0.92 * len(found), labels


signals = st.lists(st.tuples(st.integers(-6, 6), st.booleans(), st.sampled_from("abcdef")), min_size=1, max_size=40)


def by_definition(rows: list[tuple[int, bool, str]]) -> float | None:
    """Wins of positives over the others, ties half, over all pairs."""
    pairs = [(x, y) for x, positive, _ in rows if positive for y, other, _ in rows if not other]
    return sum((x > y) + (x == y) / 2 for x, y in pairs) / len(pairs) if pairs else None


def separation(rows: list[tuple[int, bool, str]], power: int = 1, swapped: bool = False) -> Estimate:
    values, positives = [float(value**power) for value, _, _ in rows], [one != swapped for _, one, _ in rows]
    return auc(values, positives, [cluster for _, _, cluster in rows], draws=100)


@given(signals)
def test_auc_is_the_share_of_pairs_that_the_positive_one_wins(rows: list[tuple[int, bool, str]]) -> None:
    found = separation(rows)
    assert found.value == pytest.approx(by_definition(rows))
    assert found.n == len(rows)
    assert auc([float(value) for value, _, _ in rows], [one for _, one, _ in rows], draws=10).value == found.value
    if found.ci95:
        assert 0 <= found.ci95[0] <= found.ci95[1] <= 1
    else:
        assert found.value is None or len({cluster for _, _, cluster in rows}) == 1


@given(signals)
def test_auc_depends_on_the_order_of_values_alone_and_mirrors_with_the_classes(
    rows: list[tuple[int, bool, str]],
) -> None:
    found, cubed, mirrored = separation(rows), separation(rows, power=3), separation(rows, swapped=True)
    assert cubed == found
    if found.value is not None and mirrored.value is not None:
        assert mirrored.value == pytest.approx(1 - found.value)
    if found.ci95 and mirrored.ci95:
        assert mirrored.ci95 == pytest.approx((1 - found.ci95[1], 1 - found.ci95[0]))


def test_auc_covers_the_true_one_also_where_one_class_is_rare() -> None:
    """Normal values 0.8 apart: an AUC of 0.714. Of 4 positive ones no bootstrap can learn how they vary."""
    rng = random.Random(4)
    for positives in (4, 25):
        covered = 0
        for _ in range(100):
            values = [rng.gauss(0.8, 1) for _ in range(positives)] + [rng.gauss(0, 1) for _ in range(60)]
            low, high = auc(values, [True] * positives + [False] * 60, draws=200).ci95 or (0, 0)
            covered += low <= 0.7142 <= high
        assert covered >= 87, positives


def test_auc_of_full_separation_leaves_room_and_of_one_class_is_nothing() -> None:
    apart = auc([float(value) for value in range(40)], [value >= 20 for value in range(40)])
    assert apart.value == 1 and apart.ci95 == pytest.approx(wilson(20, 20).ci95)
    assert auc([1.0] * 40, [value >= 20 for value in range(40)]).value == 0.5
    assert auc([1.0, 2.0], [True, True]) == Estimate(None, None, 2)
    assert auc([], []) == Estimate(None, None, 0)
    assert auc([1.0, 2.0], [False, True], ["a", "a"]) == Estimate(1.0, None, 2)
    with pytest.raises(ValueError, match="not finite"):
        auc([float("inf"), 0.0], [True, False])
    with pytest.raises(ValueError, match="expected one per value"):
        auc([1.0], [])
