"""The feature space after each task: a plane that is fitted once, and distances of classes."""

import numpy as np
import pytest

from memjax.lifelong import train
from memjax.lifelong.class_features import principal_axes
from memjax.report import features, neighbors
from memjax.report.features import FeatureProjection, FeatureProjections
from memjax.report.panel import OpenedRun
from tests.report.crafted import AFTER, crafted, parts_of, smoke


def test_the_axes_are_those_of_the_largest_variance():
    points = np.array([[3.0, 1.0, 5.0], [-3.0, 1.0, 5.0], [0.0, 2.0, 5.0], [0.0, 0.0, 5.0]])
    middle, axes, share = principal_axes(points)
    np.testing.assert_allclose(middle, [0.0, 1.0, 5.0])
    np.testing.assert_allclose(axes, [[1.0, 0.0], [0.0, 1.0], [0.0, 0.0]], atol=1e-12)
    assert share == pytest.approx(1.0)
    one, axes, share = principal_axes(points[:1])
    assert one.tolist() == points[0].tolist() and share == 0.0 and axes.shape == (3, 2)
    thin = principal_axes(points[:, :1])[1]
    assert thin.tolist() == [[1.0, 0.0]]


def test_all_spaces_are_shown_in_one_plane():
    first, second = np.array([[0.0, 0.0], [2.0, 0.0]]), np.array([[0.0, 0.0], [8.0, 0.0]])
    marks = np.array([[1.0, 0.0]])
    both = (FeatureProjection("a", first, marks, 1.0, 2.0), FeatureProjection("b", second, marks, 1.0, 4.0))
    points, moved, share = FeatureProjections(both, np.array([0, 0]), {0: "x"}, ("a",), "test", 2, 2).projected()
    # The middle of all four points is 2.5.
    np.testing.assert_allclose([one[:, 0] for one in points], [[-2.5, -0.5], [-2.5, 5.5]], atol=1e-12)
    np.testing.assert_allclose(moved[0], [[-1.5, 0.0]], atol=1e-12)
    assert share == pytest.approx(1.0)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    config = smoke("lifelong_text", tmp_path_factory.mktemp("runs"))
    return OpenedRun(str(train(config, on_event=lambda event: None).path))


def test_a_space_stands_after_each_task(run):
    found = features.read_spaces(run)
    assert [space.task for space in found.spaces] == ["task_0", "task_1"] and (found.kept, found.count) == (2, 2)
    assert found.tasks == ("task_0", "task_1") and found.names == {n: str(n) for n in range(4)}
    assert all(len(space.features) == len(found.labels) == 32 and space.marks is None for space in found.spaces)
    assert np.abs(found.spaces[0].features - found.spaces[1].features).max() > 0
    parts = parts_of(features.panels(run))
    assert [*parts] == ["features_space", "features_ratio", "features_spread"]
    for (after, within, between, ratio), space in zip(parts["features_spread"].rows, found.spaces, strict=True):
        assert (after, within, between) == (space.task, space.within, space.between)
        assert ratio == pytest.approx(within / between)


def test_neighbours_are_counted_by_their_task(run):
    (panel,) = neighbors.panels(run)
    parts = parts_of([panel])
    assert [*parts] == ["neighbors_origin", "neighbors_read"]
    shares = parts["neighbors_origin"].draw.keywords["shares"]
    np.testing.assert_allclose(shares.sum(axis=1), 1.0)
    table = parts["neighbors_read"]
    assert table.columns[-1] == "class or answer"  # vectors have no text
    assert [row[0] for row in table.rows if row[0]] == ["task_0", "task_1"]
    near = [row for row in table.rows if not row[0]]
    assert near and all(row[3] >= 0.25 and row[1] in ("task_0", "task_1") for row in near)


def test_tasks_without_classes_or_ends_have_no_space(tmp_path):
    end = {**AFTER, "name": "task_0", "step": 4, "nats_per_token": 1.0}
    assert features.read_spaces(crafted(tmp_path / "a", smoke("lifelong_pretraining", tmp_path), [end])) is None
    assert features.read_spaces(crafted(tmp_path / "b", smoke("lifelong_mnist", tmp_path), [])) is None
    assert not [*neighbors.panels(crafted(tmp_path / "c", smoke("lifelong_mnist", tmp_path), [end]))]


@pytest.mark.slow
def test_prototypes_stand_in_the_space_of_emar(tmp_path):
    run = OpenedRun(str(train(smoke("lifelong_relations", tmp_path), on_event=lambda event: None).path))
    found = features.read_spaces(run)
    assert len(found.spaces) == 3 and found.tasks == ("task_0", "task_1")
    assert all(space.marks.shape == (5, space.features.shape[1]) for space in found.spaces)
    assert "Crosses" in parts_of(features.panels(run))["features_space"].caption
