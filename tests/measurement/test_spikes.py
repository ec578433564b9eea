"""Which steps of a training stand out by their loss."""

import numpy as np

from throughline.measurement.spikes import find_spikes


def fall(steps=400):
    """Losses that fall from 2.5 to 0.02, and vary with their height."""
    usual = 2.5 * np.exp(-np.arange(steps) / 80) + 0.02
    return usual * np.random.default_rng(5).uniform(0.9, 1.1, steps)


def test_spikes_stand_out_from_the_steps_around_them_wherever_they_are():
    losses = fall()
    losses[60] += 1.0
    losses[350] += 0.5
    losses[351] += 0.4  # of the same spike
    assert {spike.step for spike in find_spikes(losses, most=2)} == {60, 350}
    assert [spike.step for spike in find_spikes(losses[:300], most=1)] == [60]
    (first,) = find_spikes(losses[300:], most=1)
    assert (first.step, first.loss) == (50, losses[350]) and 0.02 < first.usual < 0.1


def test_a_trifle_among_losses_of_nearly_0_is_less_than_a_batch_that_was_not_learned():
    losses = fall() * 1e-6
    losses[:100] = np.random.default_rng(6).uniform(0.9, 1.1, 100)
    losses[300] += 1e-4  # a hundred times what is usual there
    losses[50] += 1.0
    assert [spike.step for spike in find_spikes(losses, most=1)] == [50]


def test_what_is_no_number_comes_first_and_nothing_of_it_is_no_spike():
    losses = fall()
    losses[[200, 300]] = np.nan
    losses[60] += 9
    assert [spike.step for spike in find_spikes(losses, most=3)] == [200, 300, 60]
    assert find_spikes(np.full(9, np.nan)) == find_spikes([]) == []
