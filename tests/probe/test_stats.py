"""The statistics behind every reported number: agreement with scipy and statsmodels, properties, coverage, odd inputs."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy.stats import bootstrap, mannwhitneyu, norm
from statsmodels.api import OLS
from statsmodels.stats.contingency_tables import mcnemar as statsmodels_mcnemar
from statsmodels.stats.inter_rater import cohens_kappa
from statsmodels.stats.multitest import multipletests
from statsmodels.stats.proportion import proportion_confint

from nextturn.probe import stats
from nextturn.probe.stats import Estimate, PairedDifference

counts = st.integers(1, 2000).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n)))
samples = st.lists(st.tuples(st.sampled_from("abcdefgh"), st.booleans()), min_size=1, max_size=60)
Samples = list[tuple[str, bool]]
FEWER = settings(max_examples=settings().max_examples // 4)  # an example costs several calls of scipy or of a bootstrap


def rate_of(rows: Samples) -> Estimate:
    return stats.clustered_rate([value for _, value in rows], [cluster for cluster, _ in rows])


# ----- rates


@FEWER
@given(counts)
def test_wilson_agrees_with_statsmodels(count: tuple[int, int]) -> None:
    found = stats.wilson(*count)
    assert (found.value, found.n) == (count[0] / count[1], count[1])
    assert found.ci95 == pytest.approx(proportion_confint(*count, method="wilson"), abs=1e-6)
    assert found.ci95 and 0 <= found.ci95[0] <= count[0] / count[1] <= found.ci95[1] <= 1


@FEWER
@given(samples)
def test_clustered_rate_agrees_with_a_cluster_robust_variance(rows: Samples) -> None:
    """The effective number follows from OLS with one cluster of the rarer value added; Kish's number bounds it."""
    sizes = Counter(cluster for cluster, _ in rows)
    found, n, share = rate_of(rows), len(rows), sum(value for _, value in rows) / len(rows)
    fewest = n**2 / sum(size**2 for size in sizes.values())
    effective = fewest
    if 0 < share < 1 and len(sizes) > 1 and n % len(sizes) == 0:
        added = [*rows, *[("added", share <= 0.5)] * (n // len(sizes))]
        values, clusters = np.array([value for _, value in added], float), [cluster for cluster, _ in added]
        codes = np.unique(clusters, return_inverse=True)[1]
        fit = OLS(values, np.ones(len(values))).fit(cov_type="cluster", cov_kwds={"groups": codes})
        p, scale = values.mean(), len(sizes) / (len(sizes) + 1)
        effective = min(max(p * (1 - p) / fit.cov_params()[0, 0] * scale, fewest), n)
    elif 0 < share < 1 and len(sizes) > 1:
        low, high = proportion_confint(share * n, n, method="wilson")
        assert found.ci95 and found.ci95[1] - found.ci95[0] >= high - low - 1e-6
        return
    assert found.value == pytest.approx(share)
    assert found.ci95 == pytest.approx(proportion_confint(share * effective, effective, method="wilson"), abs=1e-6)


@pytest.mark.parametrize("rate", [0.01, 0.03])
def test_clustered_rate_covers_a_rare_value_whose_samples_agree_within_items(rate: float) -> None:
    """Four samples per item, with half of the variance between items. Few items hold the rare value, so they may not show
    how alike samples are. Without an allowance for that, the interval covers 87 to 90% at 3%."""
    rng = random.Random(1)
    for items in (30, 60):
        covered = naive = 0
        for _ in range(400):
            chances = [rng.betavariate(rate, 1 - rate) for _ in range(items)]
            values = [rng.random() < chance for chance in chances for _ in range(4)]
            low, high = stats.clustered_rate(values, [str(index // 4) for index in range(4 * items)]).ci95 or (0, 0)
            covered += low <= rate <= high
            low, high = stats.wilson(sum(values), len(values)).ci95 or (0, 0)
            naive += low <= rate <= high
        assert covered / 400 >= 0.93, items
        assert naive < covered


def test_rates_at_the_edges() -> None:
    """Samples that all failed still leave room for what was not seen."""
    thirds = [str(index // 3) for index in range(30)]
    assert stats.clustered_rate([False] * 30, thirds).ci95 == pytest.approx(stats.wilson(0, 10).ci95)
    assert stats.clustered_rate([True, True], ["a", "a"]).ci95 == pytest.approx(stats.wilson(1, 1).ci95)
    assert stats.clustered_rate([0.25, 0.75], ["a", "b"]).value == 0.5
    assert stats.clustered_rate([], []) == stats.wilson(0, 0) == Estimate(None, None, 0)
    assert stats.wilson(0, 0).as_json() == {"value": None, "ci95": None}
    assert Estimate(1 / 3, (0.1, 2 / 3), 3).as_json() == {"value": 0.333333, "ci95": [0.1, 0.666667]}
    for call in (lambda: stats.wilson(3, 2), lambda: stats.wilson(-1, 2), lambda: stats.clustered_rate([1.5], ["a"])):
        with pytest.raises(ValueError):
            call()


@FEWER
@given(samples, st.randoms(use_true_random=False))
def test_no_figure_depends_on_the_order_of_the_rows(rows: Samples, rng: random.Random) -> None:
    def figures(some: Samples) -> tuple[Estimate, ...]:
        clusters, values = [cluster for cluster, _ in some], [value for _, value in some]
        labels, numbers = [str(value) for value in values], [0.1 + value / 3 for value in values]
        separation = stats.auc([ord(cluster) for cluster in clusters], values, clusters, draws=50)
        kappa = stats.kappa_ci(labels, clusters, clusters, draws=50)
        return rate_of(some), stats.mean_ci(numbers, clusters, draws=50), kappa, separation

    assert figures(rows) == figures(rng.sample(rows, len(rows)))


# ----- means and differences


def test_a_mean_has_the_percentile_bootstrap_of_scipy_over_clusters() -> None:
    rng = np.random.default_rng(5)
    values = rng.gamma(2.0, size=40)
    other = bootstrap((values,), np.mean, method="percentile", n_resamples=20_000, rng=rng).confidence_interval
    found = stats.mean_ci(list(values), draws=20_000)
    assert found.value == pytest.approx(values.mean())
    assert found.ci95 == pytest.approx((other.low, other.high), abs=0.02)
    doubled = stats.mean_ci([*values, *values], [str(index % 40) for index in range(80)], draws=20_000)
    assert doubled.ci95 == pytest.approx((other.low, other.high), abs=0.02), "a cluster of equal values counts once"
    few = stats.mean_ci([0.0, 1.0] * 20, draws=20_000)
    assert few.ci95 == pytest.approx((0.35, 0.65), abs=0.026), "equal rows are drawn together"
    uneven = stats.mean_ci([1.0, 3.0, *[5.0] * 4], ["a", "a", *"bcde"])
    assert uneven.value == pytest.approx(4.0) and uneven.ci95 and uneven.ci95[1] == 5.0 and uneven.n == 6
    few = stats.mean_ci([1.0, 2.0, 3.0, 4.0], list("abcd"))
    assert few == Estimate(2.5, None, 4), "four items say nothing about others"
    assert stats.mean_ci([]) == Estimate(None, None, 0)
    with pytest.raises(ValueError):
        stats.mean_ci([float("nan")])


@FEWER
@given(st.integers(0, 300), st.integers(0, 300))
def test_mcnemar_agrees_with_statsmodels(gained: int, lost: int) -> None:
    other = statsmodels_mcnemar([[0, gained], [lost, 0]], exact=True).pvalue if gained + lost else 1.0
    assert stats.mcnemar(gained, lost) == pytest.approx(other)
    assert 0 < stats.mcnemar(900, 600) < 1e-10, "more items than a float can count"


def test_holm_agrees_with_statsmodels() -> None:
    p_values = [0.001, 0.005, 0.016, 0.3, 0.04]
    rejected = multipletests(p_values, alpha=0.05, method="holm")[0]
    assert stats.holm(p_values) == max(p for p, reject in zip(p_values, rejected, strict=True) if reject) == 0.016
    others: list[tuple[list[float], float]] = [([], 0.0), ([0.3], 0.0), ([0.05], 0.05), ([0.03, 0.04], 0.0)]
    for few, largest in others:
        assert stats.holm(few) == largest


@pytest.mark.parametrize("value", [0.2, -0.2])
def test_an_interval_implies_a_p_value(value: float) -> None:
    ci95 = (value - 0.1, value + 0.1)
    change = PairedDifference(value, ci95, 20)
    assert stats.p_value_of(change) == pytest.approx(2 * norm.sf(abs(value), scale=0.1 / norm.ppf(0.975)), rel=1e-4)
    assert stats.p_value_of(replace(change, value=0.0)) == stats.p_value_of(replace(change, ci95=None)) == 1.0
    assert stats.p_value_of(replace(change, ci95=(value, value))) == 0.0
    assert stats.p_value_of(replace(change, p_value=0.3)) == 0.3, "McNemar's p value is used where there is one"


def test_paired_difference_counts_changed_items_and_takes_binary_values_and_samples() -> None:
    a = {str(item): [float(item < 40)] for item in range(100)} | {"only a": [1.0]}
    b = {str(item): [float(10 <= item < 80)] for item in range(100)} | {"no value": []}
    found = stats.paired_difference(a, b)
    assert (found.gained, found.lost, found.n, found.unmatched) == (40, 10, 100, 1)
    assert (found.value, found.p_value) == (pytest.approx(0.3), stats.mcnemar(40, 10))
    # Bonett and Price (2012): (b + 1) / (n + 2) and (c + 1) / (n + 2) in place of the shares.
    half = 1.959964 * ((41 / 102 + 11 / 102 - (30 / 102) ** 2) / 102) ** 0.5
    assert found.ci95 == pytest.approx((30 / 102 - half, 30 / 102 + half))
    assert found.as_json() == {
        "value": 0.3, "ci95": [round(bound, 6) for bound in found.ci95 or ()], "p_value": float(f"{stats.mcnemar(40, 10):.6g}"),
        "gained": 40, "lost": 10, "n": 100, "unmatched": 1,
    }  # fmt: skip
    # Several samples per item: a bootstrap and no McNemar test.
    none = {str(item): [0.0, 0.0] for item in range(50)}
    some = {str(item): [1.0, 0.0] if item % 2 else [0.0, 0.0] for item in range(50)}
    found = stats.paired_difference(none, some, draws=20_000)
    assert (found.value, found.gained, found.p_value) == (pytest.approx(0.25), 25, None)
    # The mean of 25 halves and 25 zeros with plus and minus one half added.
    spread = 1.96 * np.std([0.5] * 26 + [0.0] * 25 + [-0.5]) / 52**0.5
    assert found.ci95 == pytest.approx((0.24 - spread, 0.24 + spread), abs=0.01)
    partly = stats.paired_difference({"a": [0.5], "b": [0.0]}, {"a": [1.0], "b": [1.0]})
    assert (partly.value, partly.p_value) == (0.75, None), "McNemar's test takes 0 and 1 only"
    with pytest.raises(ValueError):
        stats.paired_difference({"a": [float("nan")]}, {"a": [1.0]})
    counts = stats.paired_difference({name: [4.0] for name in "abcde"}, {name: [float(ord(name))] for name in "abcde"})
    assert counts.value == 95 and counts.ci95 and counts.ci95[0] < 95 < counts.ci95[1]


@pytest.mark.parametrize(("size", "fewest"), [(1, 6), (2, 7)])
def test_four_changed_items_of_200_are_no_proof(size: int, fewest: int) -> None:
    """A bootstrap alone leaves out 0 after four gains of 200, with one sample per item and with two."""
    before = {str(item): [0.0] * size for item in range(200)}

    def low(gains: int) -> float:
        found = stats.paired_difference(before, {item: [float(int(item) < gains)] * size for item in before})
        assert found.ci95 and found.value is not None and found.ci95[0] <= found.value < found.ci95[1]
        return found.ci95[0]

    assert low(4) <= 0 < low(fewest)


def test_no_changed_item_does_not_mean_that_none_ever_would() -> None:
    same = {str(item): [1.0] for item in range(20)}
    found = stats.paired_difference(same, same)
    assert (found.value, found.p_value) == (0, 1.0) and found.ci95 == pytest.approx((-0.125991, 0.125991), abs=1e-4)
    before, after = ({item: [value] * 2 for item in "abcdef"} for value in (0.5, 0.75))
    missed = (stats.wilson(0, 6).ci95 or (0, 0))[1]
    assert stats.paired_difference(before, after).ci95 == pytest.approx((0.25 - missed, 0.25 + missed))
    four = stats.paired_difference(*({item: side[item] for item in "abcd"} for side in (before, after)))
    assert (four.value, four.ci95) == (0.25, None)
    assert stats.paired_difference(same, {}) == PairedDifference(None, None, 0, unmatched=20)


# ----- judges


labels = st.lists(st.tuples(st.sampled_from("xyz"), st.sampled_from("xyz")), min_size=2, max_size=60)


@FEWER
@given(labels)
def test_kappa_agrees_with_statsmodels(pairs: list[tuple[str, str]]) -> None:
    names = sorted({label for pair in pairs for label in pair})
    assume(len(names) > 1)
    table = np.array([[pairs.count((a, b)) for b in names] for a in names])
    found = stats.kappa_ci(*zip(*pairs, strict=True), draws=50)
    assert found.value == pytest.approx(cohens_kappa(table).kappa) and found.n == len(pairs)
    assert found.ci95 and found.ci95[0] <= (found.value or 0) <= found.ci95[1]


def test_kappa_interval_with_many_labels_agrees_with_statsmodels_and_widens_with_clusters() -> None:
    rng = random.Random(3)
    a = [rng.choice("gno") for _ in range(400)]
    b = [label if rng.random() < 0.8 else rng.choice("gno") for label in a]
    table = np.array([[list(zip(a, b, strict=True)).count((x, y)) for y in "gno"] for x in "gno"])
    other = cohens_kappa(table)
    alone = stats.kappa_ci(a, b).ci95
    assert alone == pytest.approx((other.kappa_low, other.kappa_upp), abs=0.015)
    shared = stats.kappa_ci(a * 4, b * 4, [str(index % 400) for index in range(1600)]).ci95
    assert shared == pytest.approx(alone, abs=0.015), "four equal turns of a conversation count once"
    agreed = stats.kappa_ci(a, a)
    assert agreed.value == 1 and agreed.ci95 and 0.95 < agreed.ci95[0] < 1 == agreed.ci95[1]
    assert stats.kappa_ci(["yes"] * 5, ["yes"] * 5) == Estimate(None, None, 5) and stats.kappa_ci([], []).value is None
    with pytest.raises(ValueError):
        stats.kappa_ci(["a"], [])


def test_kappa_interval_covers_the_true_one_where_the_judge_hardly_ever_says_genuine() -> None:
    """A bootstrap covers 46% here with 20 labels and 84% with 60, and has no width where the judge never says it."""
    never = stats.kappa_ci([*"yyy", *"n" * 17], ["n"] * 20)
    assert never.value == 0 and never.ci95 and never.ci95[0] < -0.05 and never.ci95[1] > 0.2
    rng = random.Random(6)
    for size in (20, 60):
        # Read genuine 30%, judged genuine 5%: kappa is 0.1.
        pairs = [rng.choices(["yy", "yn", "ny", "nn"], [0.031, 0.269, 0.019, 0.681], k=size) for _ in range(150)]
        found = [stats.kappa_ci(*zip(*drawn, strict=True), draws=500).ci95 or (0, 0) for drawn in pairs]
        assert sum(low <= 0.1 <= high for low, high in found) >= 0.92 * len(found), size


def test_partly_alike_turns_of_a_conversation_count_as_a_cluster_robust_variance_says() -> None:
    rng = np.random.default_rng(8)
    conversations = np.repeat(np.arange(100), 4)
    wrong = rng.random(400) < np.where(rng.random(100) < 0.5, 0.1, 0.6)[conversations]
    read = rng.random(400) < 0.4
    judged = read | wrong
    clusters = list(map(str, conversations))
    errors = judged.astype(float) - read
    plain, clustered = (
        OLS(errors, np.ones(400)).fit(cov_type=kind, cov_kwds=options).cov_params()[0, 0]
        for kind, options in (("HC0", {}), ("cluster", {"groups": conversations, "use_correction": False}))
    )
    n = 400 * plain / clustered
    assert 100 < n < 390
    up, down = ((n * np.mean(errors == sign) + 1) / (n + 2) for sign in (1, -1))
    half = 1.959964 * ((up + down - (up - down) ** 2) / (n + 2)) ** 0.5
    assert stats.bias(list(judged), list(read), clusters).ci95 == pytest.approx((up - down - half, up - down + half))


def test_bias_is_a_paired_difference_and_clusters_of_equal_errors_count_once() -> None:
    judged, read = [True] * 12 + [False] * 28, [True] * 4 + [False] * 30 + [True] * 6
    found = stats.bias(judged, read, list(map(str, range(40))))
    paired = stats.paired_difference(*({str(i): [float(x)] for i, x in enumerate(side)} for side in (read, judged)))
    assert found == Estimate(pytest.approx(0.05), pytest.approx(paired.ci95), 40)
    assert stats.bias(judged * 3, read * 3, list(map(str, range(40))) * 3).ci95 == pytest.approx(paired.ci95)
    right = stats.bias([True] * 30, [True] * 30, [str(index // 3) for index in range(30)])
    assert right.ci95 == pytest.approx(stats.bias([True] * 10, [True] * 10, list("abcdefghij")).ci95), (
        "as many as clusters"
    )
    assert stats.bias([], [], []) == Estimate(None, None, 0)
    with pytest.raises(ValueError):
        stats.bias([True], [], [])


# ----- AUC

signals = st.lists(st.tuples(st.integers(-6, 6), st.booleans(), st.sampled_from("abcdef")), min_size=1, max_size=40)
Signals = list[tuple[int, bool, str]]


def separation(rows: Signals, power: int = 1, swapped: bool = False) -> Estimate:
    values, positives = [float(value**power) for value, _, _ in rows], [positive != swapped for _, positive, _ in rows]
    return stats.auc(values, positives, [cluster for _, _, cluster in rows], draws=100)


@FEWER
@given(signals)
def test_auc_agrees_with_scipy_and_depends_on_the_order_of_values_alone(rows: Signals) -> None:
    found, cubed, mirrored = separation(rows), separation(rows, power=3), separation(rows, swapped=True)
    classes = [[value for value, positive, _ in rows if positive is kind] for kind in (True, False)]
    value = mannwhitneyu(*classes).statistic / len(classes[0]) / len(classes[1]) if all(classes) else None
    assert (found.value, found.n) == (pytest.approx(value), len(rows)) and cubed == found
    assert (found.ci95 is None) == (value is None or len({cluster for _, _, cluster in rows}) == 1)
    if found.value is not None and mirrored.value is not None:
        assert mirrored.value == pytest.approx(1 - found.value)
    if found.ci95 and mirrored.ci95:
        assert 0 <= found.ci95[0] <= found.ci95[1] <= 1
        assert mirrored.ci95 == pytest.approx((1 - found.ci95[1], 1 - found.ci95[0]))


def test_auc_covers_the_true_one_also_where_one_class_is_rare() -> None:
    """Normal values 0.8 apart: an AUC of 0.714. Four positive values cannot show a bootstrap how they vary."""
    rng = random.Random(4)
    for positives in (4, 25):
        covered = 0
        for _ in range(100):
            values = [rng.gauss(0.8, 1) for _ in range(positives)] + [rng.gauss(0, 1) for _ in range(60)]
            low, high = stats.auc(values, [True] * positives + [False] * 60, draws=200).ci95 or (0, 0)
            covered += low <= 0.7142 <= high
        assert covered >= 87, positives


def test_auc_interval_is_a_bootstrap_over_clusters_or_wilsons() -> None:
    rng = np.random.default_rng(2)
    high, low = rng.normal(1, 1, 30), rng.normal(0, 1, 40)

    def area(positive: np.ndarray, other: np.ndarray) -> float:
        return float((positive[:, None] > other).mean())

    rows = [*((value, True) for value in high), *((value, False) for value in low)]
    found = stats.auc([value for value, _ in rows], [positive for _, positive in rows])
    other = bootstrap((high, low), area, method="percentile", vectorized=False, n_resamples=1000, rng=rng)
    assert found.ci95 == pytest.approx(tuple(other.confidence_interval), abs=0.03)
    apart = stats.auc([float(value) for value in range(40)], [value >= 20 for value in range(40)])
    assert apart.value == 1 and apart.ci95 == pytest.approx(stats.wilson(20, 20).ci95), "full separation leaves room"
    nine = stats.auc([float(value) for value in range(40)], [value % 4 == 0 and value < 36 for value in range(40)])
    assert nine.ci95 == pytest.approx(proportion_confint(9 * (nine.value or 0), 9, method="wilson"), abs=1e-6)
    assert stats.auc([1.0] * 40, [value >= 20 for value in range(40)]).value == 0.5
    assert stats.auc([1.0, 2.0], [True, True]) == Estimate(None, None, 2) and stats.auc([], []) == Estimate(
        None, None, 0
    )
    assert stats.auc([1.0, 2.0], [False, True], ["a", "a"]) == Estimate(1.0, None, 2)
    for call in (lambda: stats.auc([float("inf"), 0.0], [True, False]), lambda: stats.auc([1.0], [])):
        with pytest.raises(ValueError):
            call()
