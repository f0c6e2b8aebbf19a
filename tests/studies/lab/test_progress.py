"""What a grid says of itself while it runs."""

import pytest

from fedif_flower.run.rows import RoundRow
from fedif_studies.lab.federations import Outcome
from fedif_studies.lab.progress import GridProgress
from tests.studies.lab.small import printed, silent_console, small_cell


class Show:
    """A grid's progress over cells of ten rounds, with a clock that is moved by hand."""

    def __init__(self, tmp_path, count):
        self.cells = [
            small_cell(tmp_path, f"cell-{seed}", seed=seed, num_server_rounds=10)
            for seed in range(count)
        ]
        self.now, self._console = 100.0, silent_console()
        self.progress = GridProgress(self.cells, self._console, clock=lambda: self.now)
        self.progress.announce(actors=2, jobs=2)

    def run(self, index, rounds, seconds):
        """Let a cell finish these rounds."""
        for number in rounds:
            self.now += seconds
            row = RoundRow(number, 0.5, 1.0, 0.5, 1.0, seconds, seconds, 0.0, 0.0, 10, 0, 0, 0)
            self.progress.on_row(self.cells[index], row)

    def end(self, index, error=None):
        """Let a cell end."""
        cell = self.cells[index]
        run_dir = None if error else cell.config.run_dir
        self.progress.on_end(Outcome(cell, run_dir, error, 1.0))

    @property
    def lines(self):
        """What was printed."""
        return printed(self._console).splitlines()


@pytest.fixture
def show(tmp_path):
    return Show(tmp_path, count=3)


def test_the_time_left_follows_from_the_rounds_that_ran(show):
    show.progress.on_start(show.cells[0])
    show.run(0, range(11), seconds=60)  # round 0 is the first evaluation: 11 minutes, 10 rounds
    show.end(0)
    assert show.lines[0] == "3 cells, 2 at a time over 2 actors"
    assert show.lines[-1] == "[1/3] cell-0: done after 660 s; about 22 min left"


def test_without_a_terminal_a_line_comes_at_least_every_half_minute(show):
    show.progress.on_start(show.cells[0])
    show.run(0, range(1, 7), seconds=10)
    assert show.lines[1:] == [
        "[0/3] cell-0: round 3/10 50.0%; about 4 min left",
        "[0/3] cell-0: round 6/10 50.0%; about 4 min left",
    ]
