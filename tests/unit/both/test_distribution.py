"""Whether a script trains together with its peers, by sources as people write them."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.both.distribution import distribution

FIT = "model = keras.Sequential([keras.layers.Dense(1)])\nmodel.compile('sgd', 'mse')\nmodel.fit(x, y, epochs=3)\n"


def source(tmp_path: Path, text: str, **modules: str) -> str:
    """Write a script and its modules, and return its path."""
    (tmp_path / "train.py").write_text(text)
    for name, content in modules.items():
        (tmp_path / f"{name}.py").write_text(content)
    return str(tmp_path / "train.py")


@pytest.mark.parametrize(
    "text",
    [
        "import keras\n" + FIT,
        '"""Sets no TF_CONFIG."""\nimport tensorflow as tf\nfrom tensorflow import keras\n' + FIT,
        "import keras\nfrom sklearn.impute import SimpleImputer\nSimpleImputer(strategy='mean').fit(x)\n"
        + FIT,
        "import tensorflow as tf, keras\nwith tf.distribute.get_strategy().scope():\n    pass\n" + FIT,
        "import tensorflow as tf, keras\nprint(tf.distribute.has_strategy())\n" + FIT,
        "import tensorflow as tf, keras\nstrategy = tf.distribute.MirroredStrategy()\n" + FIT,
        "import tensorflow as tf\nwith tf.GradientTape() as tape:\n    pass\noptimizer.apply_gradients(pairs)\n",
        "import keras\nfrom orchestrator.keras import make_parallel\nmake_parallel(model)\n" + FIT,
        "try:\n    tpu = tf.distribute.cluster_resolver.TPUClusterResolver()\n"
        "    strategy = tf.distribute.TPUStrategy(tpu)\nexcept ValueError:\n"
        "    strategy = tf.distribute.get_strategy()\nimport tensorflow as tf, keras\n" + FIT,
    ],
)
def test_each_of_several_workers_would_train_a_copy(tmp_path: Path, text: str) -> None:
    assert distribution(source(tmp_path, text)).is_plain


@pytest.mark.parametrize(
    "text",
    [
        "import tensorflow as tf, keras\nstrategy = tf.distribute.MultiWorkerMirroredStrategy()\n" + FIT,
        "import tensorflow as tf, keras\n"
        "strategy = tf.distribute.experimental.MultiWorkerMirroredStrategy()\n" + FIT,
        "import json, os, keras\nconfig = json.loads(os.environ['TF_CONFIG'])\n" + FIT,
        "import horovod.tensorflow.keras as hvd\nimport keras\n" + FIT,
        "from shared_parts.distribution import make_scope\nimport keras\n" + FIT,
        "import keras, shared_parts\nwith shared_parts.get_distribution_strategy().scope():\n    pass\n"
        + FIT,
        "import importlib, keras\nimportlib.import_module(name).prepare()\n" + FIT,
        "import tensorflow as tf\nestimator = tf.estimator.Estimator(f, config=tf.estimator.RunConfig())\n"
        "tf.estimator.train_and_evaluate(estimator, a, b)\n",
        "import tensorflow as tf\nprint(tf.__version__)\n",
        "from sklearn.svm import SVC\nSVC().fit(x, y)\n",
        "import tensorflow as tf, keras\nkind = tf.distribute.MultiWorkerMirroredStrategy\nkind()\n" + FIT,
        "import keras\nfrom tensorflow.distribute import MultiWorkerMirroredStrategy as M\nM()\n" + FIT,
        "import keras\nfrom company import make\nwith make().scope():\n    pass\n" + FIT,
        "import keras, jax\njax.distributed.initialize()\n" + FIT,
        "import keras, torch\ntorch.distributed.init_process_group('gloo')\n" + FIT,
    ],
)
def test_what_shares_the_training_or_may_do_so_is_not_refused(tmp_path: Path, text: str) -> None:
    assert not distribution(source(tmp_path, text)).is_plain


@pytest.mark.parametrize(
    ("text", "joins"),
    [
        (
            "import keras\nkeras.distribution.set_distribution(keras.distribution.DataParallel())\n" + FIT,
            True,
        ),
        ("import keras, jax\njax.distributed.initialize()\n" + FIT, True),
        (
            "import tensorflow as tf, keras\nif wanted:\n    tf.distribute.MultiWorkerMirroredStrategy()\n"
            + FIT,
            False,
        ),
    ],
)
def test_peers_that_are_joined_without_a_strategy_are_known_when_the_script_runs(
    tmp_path: Path, text: str, joins: bool
) -> None:
    assert distribution(source(tmp_path, text)).joins_otherwise is joins


def test_a_module_beside_the_script_counts(tmp_path: Path) -> None:
    text = "import keras\nfrom parts import make_strategy\nwith make_strategy().scope():\n    pass\n" + FIT
    makes = "import tensorflow as tf\ndef make_strategy():\n    return tf.distribute.{}()\n"
    mirrored = source(tmp_path, text, parts=makes.format("MirroredStrategy"))
    assert distribution(mirrored).is_plain
    several = source(tmp_path, text, parts=makes.format("MultiWorkerMirroredStrategy"))
    assert not distribution(several).is_plain
