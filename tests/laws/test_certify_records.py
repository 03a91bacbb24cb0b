"""Tables of labelled records: reading, splitting, item streams, the charge of reuse, intervals, the paper's tables."""

from __future__ import annotations

import gzip
import json
import math
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import binom

from reticent.accounting.calibration.claim import Claim
from reticent.accounting.calibration.kinds import COUNT_ERROR, LOSS_NONLOSS
from reticent.accounting.certificates.rules import RULES
from reticent.accounting.charges.gaussian import epsilon_of
from reticent.accounting.studies.certificates.decisions import decide
from reticent.accounting.studies.certificates.files import Question, frozen_items, study_file
from reticent.accounting.studies.certificates.intervals import clopper_pearson, hoeffding_bentkus, mean_interval
from reticent.accounting.studies.certificates.item_streams import (
    ONCE,
    WITH_REPLACEMENT,
    Items,
    epsilon_of_uses,
    run_items,
    slots_of_looks,
)
from reticent.accounting.studies.certificates.looks import development_looks
from reticent.accounting.studies.certificates.paper import PAPER_TABLES, UnknownTableError, published_table
from reticent.accounting.studies.certificates.paper_deployments import dirichlet_sites, iid_sites, moved_weights
from reticent.accounting.studies.certificates.paper_sources import frozen_draw, subset, synthetic
from reticent.accounting.studies.certificates.paper_tables import recompute
from reticent.accounting.studies.certificates.splits import (
    Fractions,
    fit_score_map,
    parse_fractions,
    split_records,
)
from reticent.accounting.studies.certificates.study import evaluate
from reticent.accounting.studies.certificates.tables import LabelledRecords, RecordsInvalidError, read_records

CLAIM = Claim(0.3, 0.05, 0.045, 0.005)


def made_records(count: int = 4000, seed: int = 0, *, fractional: bool = False, groups: int = 0) -> LabelledRecords:
    """Four sites; the loss is likelier where the score is low."""
    rng = np.random.default_rng(seed)
    score = rng.random(count)
    chance = np.clip(0.75 - 0.8 * score, 0.02, 0.98)
    loss = np.round(chance + 0.1 * (rng.random(count) - 0.5), 2) if fractional else (rng.random(count) < chance) * 1.0
    group = rng.permutation(count) % groups if groups else np.arange(count)
    clients = ("a", "b", "c", "d")
    return LabelledRecords(
        score[:, None], ("s",), np.clip(loss, 0.0, 1.0), rng.integers(0, 4, count), clients, group.astype(np.int64)
    )


def written(path: Path, rows: list[dict[str, object]]) -> Path:
    text = "\n".join(json.dumps(row) for row in rows) + "\n"
    if path.suffix == ".gz":
        path.write_bytes(gzip.compress(text.encode()))
    else:
        path.write_text(text, encoding="utf-8")
    return path


class TestReading:
    def test_csv_and_json_lines_plain_and_gzipped_give_the_same_records(self, tmp_path: Path) -> None:
        rows = [{"m": "x", "d": str(i % 2), "s, t": i / 7, "ok": 1.0 - (i % 3) / 2} for i in range(12)]
        header = 'm,d,"s, t",ok\n'
        text = header + "".join(f"{r['m']},{r['d']},{r['s, t']!r},{r['ok']!r}\n" for r in rows)
        plain = tmp_path / "t.csv"
        plain.write_text(text, encoding="utf-8-sig")
        packed = tmp_path / "t.csv.gz"
        packed.write_bytes(gzip.compress(text.encode()))
        paths = [plain, packed, written(tmp_path / "t.jsonl", rows), written(tmp_path / "t.jsonl.gz", rows)]
        first, *others = [read_records(p, client=("m", "d"), score="s, t", loss="1-ok") for p in paths]
        assert first.clients == ("x / 0", "x / 1")
        assert first.loss[:3].tolist() == [0.0, 0.5, 1.0]
        for other in others:
            assert np.array_equal(first.columns, other.columns)
            assert np.array_equal(first.loss, other.loss)
            assert np.array_equal(first.client, other.client)

    def test_a_turned_score_is_the_negative_column_and_a_real_column_of_that_name_comes_first(
        self, tmp_path: Path
    ) -> None:
        path = written(tmp_path / "t.jsonl", [{"p": 2.0, "1-p": 5.0, "l": 0, "g": "z"}] * 2)
        read = {name: read_records(path, client=(), score=name, loss="l") for name in ("p", "-p", "1-p", "-p,p")}
        assert {name: r.columns[0].tolist() for name, r in read.items()} == {
            "p": [2.0], "-p": [-2.0], "1-p": [5.0], "-p,p": [-2.0, 2.0],
        }  # fmt: skip

    @pytest.mark.parametrize(
        ("row", "problem"),
        [
            ({"s": "high", "l": 0}, "'s' is not a finite number"),
            ({"s": "nan", "l": 0}, "'s' is not a finite number"),
            ({"s": [1], "l": 0}, "'s' is not a finite number"),
            ({"s": "", "l": 0}, "has no 's'"),
            ({"s": 1, "l": 1.5}, "does not lie in"),
            ({"s": 1}, "has no 'l'"),
        ],
    )
    def test_a_faulty_row_is_named_and_its_value_is_not_repeated(
        self, tmp_path: Path, row: dict[str, object], problem: str
    ) -> None:
        path = written(tmp_path / "t.jsonl", [{"s": 0.5, "l": 1}, row])
        with pytest.raises(RecordsInvalidError, match=problem) as caught:
            read_records(path, client=(), score="s", loss="l")
        assert caught.value.row == 2
        assert "high" not in str(caught.value)

    def test_missing_columns_broken_files_and_empty_ones_are_refused(self, tmp_path: Path) -> None:
        path = written(tmp_path / "t.jsonl", [{"s": 0.5, "l": 1}])
        for wrong in ({"score": "t"}, {"loss": "m"}, {"client": ("c",)}, {"group": "g"}):
            with pytest.raises(RecordsInvalidError, match="there is no column"):
                read_records(path, **{"client": (), "score": "s", "loss": "l", **wrong})  # type: ignore[arg-type]
        for name, content in (("e.jsonl", ""), ("b.jsonl", "[1]\n"), ("c.jsonl", "{"), ("d.csv", "s,s\n1,2\n"),
                              ("f.csv", "s,l\n1\n")):  # fmt: skip
            (tmp_path / name).write_text(content)
            with pytest.raises(RecordsInvalidError):
                read_records(tmp_path / name, client=(), score="s", loss="l")


class TestSplit:
    def test_parts_are_disjoint_and_no_group_stands_on_two_sides(self) -> None:
        records = made_records(3000, groups=500)
        split = split_records(records, Fractions(0.2, 0.5, 0.3), seed=3)
        groups = [set(part.group.tolist()) for part in (split.dev, split.cal, split.heldout)]
        assert len(set.union(*groups)) == sum(len(g) for g in groups) == 500
        assert sum(part.size for part in (split.dev, split.cal, split.heldout)) == 3000
        assert [len(g) for g in groups] == [100, 250, 150]

    def test_the_map_and_the_thresholds_depend_on_development_only(self) -> None:
        records = made_records()
        split = split_records(records, Fractions(0.2, 0.5, 0.3), seed=3)
        first = fit_score_map(split.dev, 20, 0.05)
        inside = np.isin(records.columns[:, 0], split.dev.columns[:, 0])
        other = replace(records, columns=np.where(inside[:, None], records.columns, 9.0), loss=1.0 - records.loss)
        assert fit_score_map(split_records(other, Fractions(0.2, 0.5, 0.3), 3).dev, 20, 0.05) == first

    def test_bins_count_the_thresholds_that_a_score_reaches_and_raw_thresholds_agree(self) -> None:
        records = made_records()
        found = fit_score_map(records.take(np.arange(500)), 20, 0.05)
        scores, bins = found.scores(records), found.bins(records)
        assert all(bins[i] == sum(scores[i] >= t for t in found.thresholds) for i in range(200))
        assert scores.min() == 0.0
        assert scores.max() == 1.0
        reached = records.columns[:, 0] >= found.raw_threshold(10) - 1e-12
        assert np.array_equal(reached, bins > 10)
        assert (found.bins(records.take(np.arange(500))) > 19).mean() == pytest.approx(0.1, abs=0.01)

    def test_several_columns_are_joined_so_that_the_informative_one_counts(self) -> None:
        records = made_records()
        noise = np.random.default_rng(5).normal(size=(records.size, 1))
        joined = fit_score_map(
            replace(records, columns=np.hstack([records.columns, noise]), names=("s", "n")), 20, 0.05
        )
        assert joined.coefficients[0] > 10 * abs(joined.coefficients[1])

    @pytest.mark.parametrize("text", ["dev:0.2", "dev:0.2,cal:0.5,heldout:0.4", "dev:0,cal:0.5,heldout:0.5", "a:b:c"])
    def test_other_splits_are_refused(self, text: str) -> None:
        with pytest.raises(ValueError, match="split"):
            parse_fractions(text)

    def test_parts_that_are_empty_and_scores_that_are_equal_are_refused(self) -> None:
        with pytest.raises(RecordsInvalidError, match="leaves no records"):
            split_records(made_records(10), Fractions(0.01, 0.5, 0.3), 0)
        with pytest.raises(RecordsInvalidError, match="equal"):
            fit_score_map(replace(made_records(10), columns=np.ones((10, 1))), 20, 0.05)


class TestIntervals:
    @pytest.mark.parametrize(("k", "n"), [(0, 7), (3, 11), (7, 7), (40, 248)])
    def test_clopper_pearson_ends_leave_half_the_failure_on_each_side(self, k: int, n: int) -> None:
        low, high = clopper_pearson(k, n)
        if k > 0:
            assert binom.sf(k - 1, n, low) == pytest.approx(0.025)
        if k < n:
            assert binom.cdf(k, n, high) == pytest.approx(0.025)
        assert (low == 0.0) == (k == 0)
        assert (high == 1.0) == (k == n)

    def test_the_published_intervals_of_table_4_come_back(self) -> None:
        _, rows = published_table(4)
        for row, (errors, accepted) in zip(rows[:3], ((5, 45), (3, 40), (3, 40)), strict=True):
            assert clopper_pearson(errors, accepted) == pytest.approx(row["heldout_risk_interval"], abs=6e-4)

    @pytest.mark.parametrize(("mean", "count"), [(0.0, 12), (0.2, 12), (0.37, 250), (1.0, 5)])
    def test_the_bounded_interval_is_where_one_of_two_tail_bounds_reaches_the_level(
        self, mean: float, count: int
    ) -> None:
        def bound(x: float, mu: float) -> float:
            kl = sum(p * math.log(p / q) for p, q in ((x, mu), (1 - x, 1 - mu)) if p > 0)
            return min(math.exp(-count * kl), math.e * float(binom.cdf(math.ceil(count * x), count, mu)))

        low, high = hoeffding_bentkus(mean, count)
        assert low <= mean <= high
        for x, end in ((mean, high), (1 - mean, 1 - low)):
            if end < 1.0:
                assert bound(x, end) == pytest.approx(0.025, rel=1e-6)
                assert bound(x, min(1 - 1e-9, end + 0.01)) < 0.025

    def test_the_bounded_interval_covers_and_a_normal_one_that_is_too_short_does_not(self) -> None:
        rng, mu, count, misses, short = np.random.default_rng(8), 0.06, 30, 0, 0

        @cache
        def interval(thirds: int) -> tuple[float, float]:
            return hoeffding_bentkus(thirds / (3 * count), count)

        for _ in range(2000):
            sample = rng.binomial(3, mu, size=count) / 3.0
            low, high = interval(round(3 * float(sample.sum())))
            misses += not low <= mu <= high
            half = 1.0 * sample.std() / math.sqrt(count)
            short += abs(float(sample.mean()) - mu) > half
        assert misses <= 0.05 * 2000
        assert short > 0.2 * 2000

    def test_the_method_follows_the_losses_and_no_records_give_no_information(self) -> None:
        assert mean_interval([0.0, 1.0, 1.0]).method == "clopper-pearson"
        assert mean_interval([0.0, 0.5]).method == "hoeffding-bentkus"
        empty = mean_interval([])
        assert (empty.mean, empty.low, empty.high) == (None, 0.0, 1.0)
        with pytest.raises(ValueError, match="successes"):
            clopper_pearson(3, 2)
        with pytest.raises(ValueError, match="mean"):
            hoeffding_bentkus(1.2, 3)


def small_items(fractional: bool = False) -> Items:
    records = made_records(800, 4, fractional=fractional)
    return frozen_items(records, fit_score_map(records, 5, 0.05))


class TestItemStreams:
    def test_every_record_is_used_once_and_the_last_sums_are_exact(self) -> None:
        items = small_items()
        slots = slots_of_looks((200, 500, 800), items.weights)
        run = run_items(items, slots, 0.0, LOSS_NONLOSS, ONCE, trials=5, seed=1)
        assert np.all(run.uses.sum(axis=1) == 1)
        z, a = items.truth()
        assert run.transcripts.loss[:, -1] == pytest.approx(np.tile(800 * z, (5, 1)))
        assert run.transcripts.other[:, -1] == pytest.approx(np.tile(800 * (a - z), (5, 1)))
        assert np.all(run.transcripts.transfer(items.weights).contrast[:, -1] == 0.0)
        with pytest.raises(ValueError, match="more records than it has"):
            run_items(items, slots_of_looks((900,), items.weights), 0.0, LOSS_NONLOSS, ONCE, 1, 1)

    def test_uses_counts_and_sums_are_of_the_same_records(self) -> None:
        items = small_items()
        run = run_items(items, slots_of_looks((300, 700), items.weights), 0.0, COUNT_ERROR, WITH_REPLACEMENT, 3, 2)
        for trial in range(3):
            uses = run.uses[trial].cumsum(axis=0)
            for number in range(2):
                accepted = [(uses[number] * (items.bins > j)).sum() for j in range(5)]
                lost = [(uses[number] * items.loss * (items.bins > j)).sum() for j in range(5)]
                assert run.transcripts.other[trial, number].tolist() == accepted
                assert run.transcripts.loss[trial, number].tolist() == lost
        by_site = np.stack([run.uses.sum(axis=1)[:, items.site == k].sum(axis=1) for k in range(items.sites)], axis=1)
        assert np.array_equal(by_site, run.transcripts.by_site[:, -1])

    def test_draws_with_replacement_have_the_mean_and_the_spread_of_the_frozen_law(self) -> None:
        items = small_items(fractional=True)
        run = run_items(items, slots_of_looks((400,), items.weights), 1.5, LOSS_NONLOSS, WITH_REPLACEMENT, 4000, 3)
        z, a = items.truth()
        sums = run.transcripts.loss[:, 0, 0]
        assert sums.mean() == pytest.approx(run.transcripts.events[0, 0] * z[0], abs=1.0)
        law = items.population("x")
        by_site = run.transcripts.by_site[0, 0]
        spread = sum(
            n * p * (1 - p) for n, p in zip(by_site, [law.site(k).accepted_loss()[0] for k in range(4)], strict=True)
        )
        assert sums.var() == pytest.approx(spread + 5 * 4 * 1.5**2, rel=0.1)
        assert law.accepted() == pytest.approx(a)
        assert law.accepted_loss() == pytest.approx(z)

    def test_every_use_is_charged_and_uses_in_one_release_more_than_in_several(self) -> None:
        sigma, delta = 1.17, 1e-6

        def charged(*uses: int, release: str = LOSS_NONLOSS) -> float:
            return epsilon_of_uses(np.array(uses), release, sigma, delta)

        assert charged(0, 0) == 0.0
        assert charged(1) < charged(1, 1) < charged(2, 0) < charged(2, 1)
        assert charged(3) == charged(1, 1, 1, 1, 1, 1, 1, 1, 1)
        assert charged(1, release=COUNT_ERROR) > charged(1)
        assert math.isinf(epsilon_of_uses(np.array([1]), LOSS_NONLOSS, 0.0, delta))
        # Slow twin: the exact ε of one Gaussian release whose sensitivity is the root of the sum of squares.
        exact = epsilon_of(delta, math.sqrt(5.0), sigma)
        assert exact <= charged(2, 1) <= 1.25 * exact

    def test_looks_end_at_the_last_record_and_none_stands_in_the_second_half(self) -> None:
        cells = np.stack([np.linspace(0.01, 0.08, 21), np.linspace(0.08, 0.0, 21)], axis=1)
        for scale in (0.0, 1.17, 30.0):
            looks = development_looks(cells, RULES["eprocess"], CLAIM, LOSS_NONLOSS, scale, 4, 2000, 0)
            assert looks[-1] == 2000
            assert list(looks) == sorted(set(looks))
            assert all(2 * look <= 2000 for look in looks[:-1])


class TestStudy:
    def test_once_certifies_without_reuse_and_the_item_pays_the_nominal_epsilon(self) -> None:
        study = study_file(made_records(), Question(CLAIM, 4.0, stream=ONCE, trials=20))
        assert study.decisions.fired.sum() >= 18
        made = study.outcome(0)
        assert made.certified
        assert made.reuse == 1.0
        assert made.events <= 2000
        assert made.item_epsilon == made.group_epsilon == 4.0
        assert study.violated is None
        assert made.heldout is not None
        assert made.heldout.low <= (made.heldout.mean or 0.0) <= made.heldout.high
        assert made.acceptance is not None
        assert made.acceptance_lower is not None
        assert 0.05 <= made.acceptance_lower <= made.acceptance

    def test_a_group_pays_for_all_its_records(self) -> None:
        study = study_file(made_records(groups=400), Question(CLAIM, 4.0, stream=ONCE))
        made = study.outcome(0)
        assert made.item_epsilon == 4.0
        assert made.group_epsilon > 10.0

    def test_with_replacement_reuses_records_and_charges_them(self) -> None:
        records = made_records(300, 1)
        study = study_file(records, Question(CLAIM, 2.0, trials=4))
        made = study.outcome(0)
        assert made.reuse > 1.0
        assert made.item_epsilon > 2.0
        assert study.violated is not None
        assert not study.violated.any()
        uses = study.run.uses[0, : made.rounds].sum(axis=0)
        assert made.events == uses.sum()
        assert made.unique_items == (uses > 0).sum()

    @pytest.mark.parametrize("rule", sorted(RULES))
    def test_every_rule_keeps_its_bounds_on_the_frozen_records(self, rule: str) -> None:
        study = study_file(made_records(fractional=True), Question(CLAIM, 4.0, rule=rule, looks="paper", trials=10))
        assert study.violated is not None
        assert not study.violated.any()
        assert study.question.release == (LOSS_NONLOSS if rule == "eprocess" else COUNT_ERROR)

    def test_the_first_certificate_agrees_with_the_studies_own_evaluation(self) -> None:
        study = study_file(made_records(), Question(CLAIM, 1.0, trials=30, looks="paper"))
        other = evaluate(study.rule, CLAIM, study.run.transcripts, study.items.population("x"))
        assert np.array_equal(study.decisions.fired, other.fired)
        assert np.array_equal(study.decisions.chosen, other.chosen)
        fired = other.fired
        assert np.array_equal(study.decisions.events[fired], other.events[fired])

    def test_a_target_that_development_meets_nowhere_is_not_certified_and_says_nothing_of_a_threshold(self) -> None:
        records = replace(made_records(), loss=np.ones(4000))
        made = study_file(records, Question(CLAIM, 4.0, stream=ONCE)).outcome(0)
        assert not made.certified
        assert made.threshold is None
        assert made.heldout is None
        assert made.events == 2000

    def test_the_same_seed_gives_the_same_study(self) -> None:
        first, second = (study_file(made_records(), Question(CLAIM, 4.0, seed=5, trials=3)) for _ in range(2))
        assert [first.outcome(i) for i in range(3)] == [second.outcome(i) for i in range(3)]

    def test_questions_out_of_range_are_refused(self) -> None:
        for wrong in ({"rule": "none"}, {"looks": "often"}, {"looks": "paper", "stream": ONCE}, {"method": "best"}):
            with pytest.raises(ValueError, match=r"must be|looks are|calibrated"):
                Question(CLAIM, 4.0, **wrong)  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="epsilon"):
            Question(CLAIM, 0.0)

    def test_a_certificate_of_frozen_records_can_be_false_for_new_ones(self) -> None:
        # The loss is a fair coin that the score knows nothing of: no threshold keeps r* = .3 for new records. Among
        # sixty frozen records some high scores are right by chance, and drawing them often enough certifies them.
        found = []
        for seed in range(12):
            rng = np.random.default_rng([seed, 99])
            records = replace(made_records(240, seed), loss=(rng.random(240) < 0.5).astype(np.float64))
            question = Question(CLAIM, 8.0, seed=seed, fractions=Fractions(0.25, 0.25, 0.5), thresholds=10)
            frozen = study_file(records, question)
            assert frozen.violated is not None
            assert not frozen.violated.any()
            once = study_file(records, replace(question, stream=ONCE))
            assert not once.decisions.fired.any()
            found.append(frozen.outcome(0))
        risks = [o.heldout.mean for o in found if o.heldout is not None and o.heldout.mean is not None]
        assert len(risks) >= 2
        assert max(risks) > 0.3


class TestPaperTables:
    def test_moved_weights_lie_at_the_stated_distance(self) -> None:
        law = synthetic("c1", 1).population
        for share in (0.0, 0.01, 0.4):
            moved = moved_weights(law, share)
            assert 0.5 * np.abs(moved.weights - law.weights).sum() == pytest.approx(share)
            assert moved.weights.sum() == pytest.approx(1.0)
        assert moved_weights(law.site(0), 0.3).weights.tolist() == [1.0]

    def test_partitions_keep_or_weigh_the_mixture_as_they_say(self) -> None:
        law = synthetic("c1", 1).population
        assert iid_sites(law, 3).accepted_loss() == pytest.approx(law.accepted_loss())
        dealt = dirichlet_sites(law, 5, 0.1, 1)
        assert dealt.cells.sum(axis=(1, 2)) == pytest.approx(np.ones(5))
        assert dealt.cells.std(axis=0).max() > law.cells.std(axis=0).max()

    def test_a_frozen_draw_is_a_law_of_its_own_records_and_a_subset_keeps_every_site(self) -> None:
        drawn = frozen_draw(synthetic("halueval", 1), 120, 1)
        assert drawn.items is not None
        assert len(drawn.items.loss) == 120
        part = subset(drawn, 40, 1)
        assert part.items is not None
        assert np.bincount(part.items.site).tolist() == [8] * 5
        with pytest.raises(ValueError, match="has no records"):
            subset(synthetic("halueval", 1), 40, 1)

    @pytest.mark.parametrize("number", PAPER_TABLES)
    def test_every_table_is_computed_under_the_published_names(self, number: int) -> None:
        made = recompute(number, trials=3).to_dict()
        assert json.loads(json.dumps(made, allow_nan=False)) == made
        _, rows = published_table(number)
        assert [row["published"] for row in made["rows"]] == list(rows)
        for row in made["rows"]:
            assert row["computed"]
            for found in row["computed"]:
                assert {"population", "rule"} < set(found)
        assert any("No real records" in note for note in made["notes"])

    def test_other_tables_are_refused(self) -> None:
        with pytest.raises(UnknownTableError, match="2, 4, 5"):
            recompute(3)

    def test_the_lift_cell_fires_as_published_and_the_bounds_of_table_13_come_back(self) -> None:
        rows = {row["label"]: row["computed"] for row in recompute(2, trials=60).to_dict()["rows"]}
        fired = {label: found[0]["fired"] for label, found in rows.items()}
        assert fired["eps inf"] == 60
        assert 10 <= fired["eps 8"] <= 30
        assert fired["eps 4"] <= 3
        assert fired["eps 2"] == fired["eps 1"] == fired["eps 0.5"] == 0
        assert [found[1]["fired"] for found in rows.values()][:5] == [60] * 5
        assert all(f["violations"] <= 3 for found in rows.values() for f in found)

    def test_decide_reports_the_bounds_at_the_first_certificate(self) -> None:
        study = study_file(made_records(), Question(CLAIM, 4.0, trials=10))
        made = decide(study.rule, CLAIM, study.run.transcripts, study.items.weights)
        assert np.all(made.contrast_upper[made.fired] <= 0.0)
        assert np.all(made.acceptance_lower[made.fired] >= 0.05)
