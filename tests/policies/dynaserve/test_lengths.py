"""Output-length predictors: what they say, what they learn, and that they forget."""

from __future__ import annotations

import statistics

import pytest

from pdplugins.policies.dynaserve.config import DynaServeRouterSettings
from pdplugins.policies.dynaserve.lengths import LengthPredictor, Mean, Noisy, Oracle, Quantile, build_predictor
from pdplugins.types import Request


def request(prompt: int = 100, told: int | None = None) -> Request:
    return Request("r", 0.0, prompt, told)


def test_oracle_says_what_the_host_says_and_its_prior_where_that_is_silent() -> None:
    assert Oracle(256).predict(request(told=30)) == 30
    assert Oracle(256).predict(request()) == 256


def test_noisy_has_the_errors_of_table_4_and_repeats_them_for_the_same_seed() -> None:
    told = [Noisy(256, 100.0, 7).predict(request(told=1467)) for _ in range(3)]
    assert told[0] == told[1] == told[2]
    noisy = Noisy(256, 100.0, 7)
    errors = [noisy.predict(request(told=1467)) - 1467 for _ in range(4000)]
    assert abs(statistics.fmean(errors)) < 5
    assert statistics.pstdev(errors) == pytest.approx(100, rel=0.05)


def test_noisy_never_predicts_less_than_one_token() -> None:
    noisy = Noisy(256, 1000.0, 0)
    assert min(noisy.predict(request(told=1)) for _ in range(100)) == 1


def test_mean_is_of_the_last_requests_only() -> None:
    mean = Mean(256, window=2)
    assert mean.predict(request()) == 256
    for length in (1000, 10, 20):
        mean.learn(request(), length)
    assert mean.predict(request()) == 15


def test_quantile_is_per_prompt_length() -> None:
    predictor = Quantile(256, quantile=0.5, window=100)
    for length in range(1, 100):
        predictor.learn(request(prompt=100), length)
        predictor.learn(request(prompt=5000), 10 * length)
    assert predictor.predict(request(prompt=120)) == 50
    assert predictor.predict(request(prompt=7000)) == 500
    assert predictor.predict(request(prompt=300)) == 50, "an empty bucket asks its nearest neighbour"


def test_quantile_forgets_what_is_out_of_its_window() -> None:
    predictor = Quantile(256, quantile=0.9, window=4)
    for length in (9000, 9000, 1, 2, 3, 4):
        predictor.learn(request(), length)
    assert predictor.predict(request()) == 4


@pytest.mark.parametrize(
    ("name", "kind"), [("oracle", Oracle), ("noisy", Noisy), ("mean", Mean), ("quantile", Quantile)]
)
def test_every_predictor_has_a_name(name: str, kind: type[LengthPredictor]) -> None:
    settings = DynaServeRouterSettings.model_validate({"predictor": name})
    assert type(build_predictor(settings)) is kind
