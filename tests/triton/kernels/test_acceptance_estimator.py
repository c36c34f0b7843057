# SPDX-License-Identifier: Apache-2.0
"""The estimator of how likely drafts are to be accepted: a logistic fit, made online."""

import math

import numpy as np
import pytest
import torch
from comparison import Rows, assert_close_ulp, assert_equal, float32, int32, int64
from torch import Tensor
from vllm.v1.worker.gpu.spec_decode.acceptance_estimator import OnlineAcceptanceEstimator

MODULE = "vllm.v1.worker.gpu.spec_decode.acceptance_estimator"
STEPS, STATES = 3, 300


def make_estimator(device: torch.device, features: Tensor, predictions: Tensor):
    estimator = OnlineAcceptanceEstimator(STATES, STEPS, device)
    estimator.features.copy_(features)
    estimator.predictions.copy_(predictions)
    return estimator


def observations(random: np.random.Generator, count: int) -> tuple[np.ndarray, ...]:
    """States, and how many tokens each sampled (with the bonus) and rejected."""
    states = random.permutation(STATES)[:count]
    sampled = random.integers(0, STEPS + 2, count)
    rejected = np.maximum(random.integers(0, STEPS + 1, count) - np.maximum(sampled - 1, 0), 0)
    return states, sampled, rejected


def graded(
    features: np.ndarray, predictions: np.ndarray, batches: list[tuple[np.ndarray, ...]]
) -> list[list[tuple[float, float, float]]]:
    """(feature, prediction, label) of every graded draft, by step.

    The accepted drafts count as 1, the first rejected one as 0; what is behind it was not judged.
    """
    result: list[list[tuple[float, float, float]]] = [[] for _ in range(STEPS)]
    for states, sampled, rejected in batches:
        for state, got, lost in zip(states, sampled, rejected, strict=True):
            accepted = max(int(got) - 1, 0)
            labels = [1.0] * accepted + [0.0] * (1 if lost else 0)
            for step, label in enumerate(labels[:STEPS]):
                item = (float(features[state, step]), float(predictions[state, step]), label)
                result[step].append(item)
    return result


def normal_equations(by_step: list[list[tuple[float, float, float]]]) -> tuple[np.ndarray, ...]:
    """[1 + STEPS] squared and [1 + STEPS]: what a Newton step solves, the slope first."""
    matrix, gradient = np.zeros((1 + STEPS, 1 + STEPS)), np.zeros(1 + STEPS)
    for step, items in enumerate(by_step):
        for feature, prediction, label in items:
            design = np.zeros(1 + STEPS)
            design[0], design[1 + step] = feature, 1.0
            matrix += prediction * (1 - prediction) * np.outer(design, design)
            gradient += (label - prediction) * design
    return matrix, gradient


@pytest.mark.checks(f"{MODULE}:_accumulate_kernel", f"{MODULE}:_refit_kernel")
@pytest.mark.parametrize("count", [1, 257])
def test_fit(device: torch.device, count: int) -> None:
    random = np.random.default_rng(count)
    features = random.normal(1.0, 2.0, (STATES, STEPS)).astype(np.float32)
    predictions = random.uniform(0.05, 0.95, (STATES, STEPS)).astype(np.float32)
    estimator = make_estimator(device, float32(features), float32(predictions))
    estimator.REFIT_INTERVAL = 3
    batches = [observations(random, count) for _ in range(3)]
    for batch, (states, sampled, rejected) in enumerate(batches):
        estimator.step(int32(states, device), int32(sampled, device), int32(rejected, device))
        if batch == 1:
            by_step = graded(features, predictions, batches[:2])
            matrix, gradient = normal_equations(by_step)
            info, grad = estimator.info.cpu(), estimator.grad.cpu()
            scale = float(np.abs(matrix).max()) + 1
            assert_close_ulp(info[:, 0].sum(), torch.tensor(matrix[0, 0]), 16, scale)
            assert_close_ulp(info[:, 1], torch.tensor(matrix[0, 1:]), 16, scale)
            assert_close_ulp(info[:, 2], torch.tensor(np.diag(matrix)[1:].copy()), 16, scale)
            assert_close_ulp(grad[:, 0].sum(), torch.tensor(gradient[0]), 32, scale)
            assert_close_ulp(grad[:, 1], torch.tensor(gradient[1:]), 32, scale)
            assert_equal(estimator.counts, float32([len(items) for items in by_step]))
    by_step = graded(features, predictions, batches)
    matrix, gradient = normal_equations(by_step)
    matrix += estimator.L2 * np.eye(1 + STEPS)
    counts = np.array([len(items) for items in by_step])
    damping = estimator.DAMPING_OBSERVATIONS
    # The slope moves by a damped Newton step; the intercepts by theirs, given that slope.
    slope_step = np.linalg.solve(matrix, gradient)[0] * counts.sum() / (counts.sum() + damping)
    if 0.5 + slope_step < 0:
        slope_step = 0.0
    bias_step = (gradient[1:] - matrix[0, 1:] * slope_step) / np.diag(matrix)[1:]
    bias_step *= counts / (counts + damping)
    torch.testing.assert_close(
        estimator.slope.cpu().double(), torch.tensor([0.5 + slope_step]), rtol=1e-4, atol=1e-5
    )
    torch.testing.assert_close(
        estimator.intercepts.cpu().double(), torch.tensor(-0.2 + bias_step), rtol=1e-4, atol=1e-5
    )
    for cleared in (estimator.info, estimator.grad, estimator.counts):
        assert not cleared.cpu().any()


@pytest.mark.checks(f"{MODULE}:_local_max_sumexp_kernel", f"{MODULE}:_predict_kernel")
@pytest.mark.parametrize(
    ("vocab_size", "per_row", "dtype"),
    [(1, False, torch.float32), (4099, True, torch.float32), (32003, False, torch.bfloat16)],
)
def test_prediction(
    device: torch.device, vocab_size: int, per_row: bool, dtype: torch.dtype
) -> None:
    torch.manual_seed(vocab_size)
    mapping = [7, 7, 7, 2, 2, 2, -1, -1, -1] if per_row else [7, 299, -1, 0]
    steps = [0, 1, 2, 0, 1, 2, 0, 0, 0] if per_row else [1] * 4
    logits = (torch.randn(len(mapping), vocab_size) * 3).to(dtype)
    logits[1, :-1] = -math.inf  # certain: the log-odds are limited to 40
    logits[3, 0] = 16.0
    temperatures = torch.ones(STATES)
    temperatures[7], temperatures[2], temperatures[299] = 0.7, 0.0, 2.0
    estimator = make_estimator(
        device, torch.full((STATES, STEPS), -9.0), torch.full((STATES, STEPS), -9.0)
    )
    intercepts = float32([-0.2, 0.4, 1.0])
    estimator.intercepts.copy_(intercepts)
    confidence = Rows(torch.full((4, STEPS), -1.0), device)
    estimator.predict(
        Rows(logits, device).view,
        int64(mapping, device),
        int64(steps, device) if per_row else torch.tensor(1).to(device),
        confidence.view,
        temperatures.to(device),
    )
    features = torch.full((STATES, STEPS), -9.0, dtype=torch.float64)
    predictions, confidences = features.clone(), torch.full((4, STEPS), -1.0, dtype=torch.float64)
    for row, (state, step) in enumerate(zip(mapping, steps, strict=True)):
        if state < 0:
            continue
        scaled = logits[row].double() / (float(temperatures[state]) or 1.0)
        others = scaled.clone()
        others[scaled.argmax()] = -math.inf
        odds = float(scaled.max() - torch.logsumexp(others, 0)) if vocab_size > 1 else math.inf
        features[state, step] = min(max(odds, -40.0), 40.0)
        probability = torch.sigmoid(0.5 * features[state, step] + intercepts[step].double())
        predictions[state, step] = probability
        confidences[row // STEPS if per_row else row, step] = probability
    assert (features == 40).any()
    # The complement of the likeliest token is a difference, and small where the odds are high.
    assert_close_ulp(estimator.features, features, 8, magnitude=100.0)
    assert_close_ulp(estimator.predictions, predictions, 16, magnitude=10.0)
    assert_equal(confidence.cpu() == -1, confidences == -1)
    assert_close_ulp(confidence.cpu(), confidences, 16, magnitude=10.0)
