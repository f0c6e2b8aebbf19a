from __future__ import annotations

import pytest
import torch

from fedif_flower.client.cuda_graph import WARM_UP_STEPS, GraphedStep, capture_stream


def test_warm_up_and_odd_batches_run_the_step_itself():
    seen = []
    graphed = GraphedStep(lambda inputs, labels: seen.append((inputs, labels)), batch_size=4)
    full = (torch.zeros(4, 2), torch.zeros(4))
    odd = (torch.zeros(3, 2), torch.zeros(3))
    for batch in [full] * WARM_UP_STEPS + [odd] * 2:
        graphed(*batch)
    assert [len(labels) for _, labels in seen] == [4] * WARM_UP_STEPS + [3, 3]
    assert seen[0][0] is full[0]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_replays_read_each_batch_and_run_no_python():
    device = torch.device("cuda", torch.cuda.current_device())
    total = torch.zeros((), device=device)
    calls = []

    def step(inputs, labels):
        calls.append(len(labels))
        total.add_((inputs.sum(1) * labels).sum())

    labels = torch.ones(4, device=device)
    with capture_stream(device):
        graphed = GraphedStep(step, batch_size=4)
        for value in range(8):
            graphed(torch.full((4, 2), float(value), device=device), labels)
        graphed(torch.ones(3, 2, device=device), labels[:3])
    assert float(total) == 8 * sum(range(8)) + 6
    assert calls == [4] * (WARM_UP_STEPS + 1) + [3]  # The one more is the capture.


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_step_that_cannot_be_captured_still_runs_with_a_warning(caplog):
    device = torch.device("cuda", torch.cuda.current_device())
    total = torch.zeros((), device=device)

    def waiting_step(inputs, _):
        total.add_(float(inputs.sum()))

    with capture_stream(device):
        graphed = GraphedStep(waiting_step, batch_size=2)
        for _ in range(6):
            graphed(torch.ones(2, 1, device=device), torch.zeros(2, device=device))
    assert float(total) == 12
    assert "cannot be captured" in caplog.text
