"""The spread of what is read of relations, from the checkpoints of a run."""

import numpy as np
import pytest

from memjax.config import EAEMR
from memjax.lifelong import load_run, train
from memjax.lifelong.class_features import read_features
from memjax.lifelong.feature_separation import class_distances
from memjax.settings.overrides import load_config
from tools.measurements.relation_spread import measure


def test_distances_are_those_of_all_pairs_of_examples():
    points, labels = np.random.RandomState(0).randn(9, 3), np.array([4, 4, 7, 7, 7, 9, 4, 9, 4])
    found = class_distances(points, labels)
    far = lambda one, other: np.linalg.norm(points[one] - points[other])
    pairs = lambda one, other: [
        far(i, j) for i in range(9) for j in range(9) if i != j and (labels[i], labels[j]) == (one, other)
    ]
    for place, one in enumerate((4, 7, 9)):
        np.testing.assert_allclose(found.within[place], np.mean(pairs(one, one)))
        for second, other in enumerate((4, 7, 9)):
            if one != other:
                np.testing.assert_allclose(found.between[place, second], np.mean(pairs(one, other)))
    with pytest.raises(ValueError, match="given those of 1 classes"):
        class_distances(points, np.zeros(9))


@pytest.mark.laws
def test_the_spread_is_read_after_each_task(tmp_path):
    config = load_config("lifelong_relations", "smoke")
    config.workdir, config.name, config.training.keep_checkpoints = str(tmp_path), "run", 99
    run = train(config, on_event=lambda event: None).path
    facts, found, relations = measure(run)
    assert len(facts["tasks"]) == 3 and relations.tolist() == [*range(8)]
    assert all(one.between.shape == (8, 8) for one in found)
    within = [one["within"] for one in facts["tasks"]]
    assert len({*within}) == 3  # another model after each task
    config.name, config.training.keep_checkpoints = "short", 1
    with pytest.raises(ValueError, match="checkpoints of the ends of 1 tasks, allowed: "):
        measure(train(config, on_event=lambda event: None).path)


@pytest.mark.laws
def test_the_spread_of_ea_emr_is_that_of_aligned_features(tmp_path):
    config = load_config("lifelong_relations", "smoke")
    config.workdir, config.name, config.training.keep_checkpoints = str(tmp_path), "run", 99
    config.lifelong.method = EAEMR(examples_per_task=4, alignment_epochs=3, alignment_learning_rate=0.1)
    config.task.relation_vectors, config.task.similarity = "names", "cosine"
    run = train(config, on_event=lambda event: None).path
    last, loaded = measure(run)[1][-1], load_run(run)
    read = read_features(loaded.experiment, loaded.variables, loaded.experiment.documents("test"))
    held = loaded.variables["constants"]["head"]["alignment"]
    moved = class_distances(read.features @ np.asarray(held["kernel"]) + np.asarray(held["bias"]), read.labels)
    np.testing.assert_allclose(last.within, moved.within, rtol=1e-4)
    assert abs(moved.within - class_distances(*read[:2]).within).max() > 1e-3  # the map is no identity any more
