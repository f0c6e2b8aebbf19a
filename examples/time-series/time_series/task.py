"""What the stations learn, and what each of them has measured.

Each station measures the load of a part of a power grid, once an hour. The series are made here:

    load(t) = daily * cos(2 pi (t - peak) / 24) + weekly * [weekend] + noise(t),
    noise(t) = 0.8 * noise(t - 1) + 0.1 * epsilon(t),    epsilon ~ N(0, 1)

where each station has a strength ``daily`` ~ U(0.7, 1.3), an hour ``peak`` ~ U(12, 18) and a drop
``weekly`` ~ U(-0.6, -0.2) of its own. The server holds two stations, one to judge the others and
one to test the model.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from fedif_flower import ClientSite, Metric, Site, Task

HOURS = 24 * 7 * 3  # How many hours a station has measured.
WINDOW = 24  # How many hours a forecast is made from.
SHIFTED, SHIFT = 3, 1.5  # The sensor of station 3 reads too high by 1.5.


def measure(station: int) -> Tensor:
    """Return what a station has measured, ``[HOURS]``; stations -1 and -2 are the server's."""
    generator = torch.Generator().manual_seed(1000 + station)
    draws = torch.rand(3, generator=generator)
    daily, peak, weekly = 0.7 + 0.6 * draws[0], 12 + 6 * draws[1], -0.6 + 0.4 * draws[2]
    hours = torch.arange(HOURS)
    is_weekend = hours // 24 % 7 >= 5
    noise = torch.zeros(HOURS)
    for hour in range(1, HOURS):
        noise[hour] = 0.8 * noise[hour - 1] + 0.1 * torch.randn((), generator=generator)
    return daily * torch.cos(2 * torch.pi * (hours - peak) / 24) + weekly * is_weekend + noise


def windows(series: Tensor) -> tuple[Tensor, Tensor]:
    """Return a model's inputs, ``[n, WINDOW, 1]``, and the hours that follow them, ``[n, 1]``."""
    pieces = series.unfold(0, WINDOW + 1, 1)  # [n, WINDOW + 1]
    return pieces[:, :WINDOW, None].contiguous(), pieces[:, WINDOW:].contiguous()


def client_data(site: ClientSite) -> tuple[Tensor, Tensor]:
    """Return a station's examples."""
    series = measure(site.partition_id)
    return windows(series + SHIFT if site.partition_id == SHIFTED else series)


def validation_data(_: Site) -> tuple[Tensor, Tensor]:
    """Return the examples by which the server judges the stations."""
    return windows(measure(-1))


def test_data(_: Site) -> tuple[Tensor, Tensor]:
    """Return the examples by which the server tests the model."""
    return windows(measure(-2))


class Forecaster(nn.Module):
    """A GRU that reads the last day and forecasts the next hour."""

    def __init__(self) -> None:
        super().__init__()
        self.gru = nn.GRU(input_size=1, hidden_size=16, batch_first=True)
        self.head = nn.Linear(16, 1)

    def forward(self, past: Tensor) -> Tensor:
        """Map the last hours ``[n, WINDOW, 1]`` to forecasts of the next hour ``[n, 1]``."""
        states, _ = self.gru(past)
        forecast: Tensor = self.head(states[:, -1])
        return forecast


task = Task(
    name="time-series",
    model=Forecaster,
    client_data=client_data,
    validation_data=validation_data,
    test_data=test_data,
    loss=functional.mse_loss,
    metrics=[Metric("mean absolute error", functional.l1_loss, higher_is_better=False)],
)
