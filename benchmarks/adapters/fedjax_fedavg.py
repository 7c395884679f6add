# /// script
# requires-python = "==3.11.*"
# dependencies = ["fedjax==0.0.17", "jax==0.10.2", "jaxlib==0.10.2", "dm-haiku==0.0.17", "numpy==2.4.6"]
# ///
"""Federated averaging in FedJAX.

What differs from the job: a server method (FedAvg): FedJAX has no gossip, so all workers start a round from the same
model. Images are [N, 28, 28, 1], as JAX users write them. The layout "ordinary" has haiku's convolution and pooling;
"tuned" is the best of four formulations in a short trial: pooling before ReLU as the maximum of a reshaped array,
and the convolution as one product with the nine shifted images side by side.

Settings: FedJAX's jit back end, and XLA on all cores or on one (``--threads 1``): try both. FedJAX's pmap back end
over two CPU devices fails with this jax; with jax 0.4.30 it ran the ordinary CNN, no faster than this in a short trial.
FedJAX 0.0.17 calls ``jax.tree_map``, which newer jax dropped: a line below puts it back.
"""

# ruff: noqa: E402
import os

import job as jobs

job = jobs.load()
if job.threads == 1:
    os.environ["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false"

import fedjax
import haiku as hk
import jax
import jax.numpy as jnp

jax.tree_map = jax.tree_util.tree_map


def pool(x: jax.Array) -> jax.Array:
    if job.layout == "ordinary":
        return hk.max_pool(x, 2, 2, "VALID", channel_axis=3)
    n, height, width, channels = x.shape
    return x.reshape(n, height // 2, 2, width // 2, 2, channels).max(axis=(2, 4))


def convolve(x: jax.Array) -> jax.Array:
    if job.layout == "ordinary":
        return hk.Conv2D(16, 3)(x)
    _, height, width, _ = x.shape
    padded = jnp.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)))
    shifted = [padded[:, i : i + height, j : j + width] for i in range(3) for j in range(3)]
    return hk.Linear(16)(jnp.concatenate(shifted, axis=-1))


def forward(batch: fedjax.BatchExample) -> jax.Array:
    x = batch["x"]
    for _ in range(2 if job.model == "cnn" else 0):
        x = convolve(x)
        x = pool(jax.nn.relu(x)) if job.layout == "ordinary" else jax.nn.relu(pool(x))
    return hk.Linear(10)(hk.Flatten()(x))


def loss(batch: fedjax.BatchExample, scores: jax.Array) -> jax.Array:
    return fedjax.metrics.unreduced_cross_entropy_loss(batch["y"], scores)


images = job.x.reshape(-1, 28, 28, 1)
datasets = [fedjax.ClientDataset({"x": images[rows], "y": job.y[rows]}) for rows in job.parts]
model = fedjax.create_model_from_haiku(hk.transform(forward), datasets[0].all_examples(), loss)
algorithm = fedjax.algorithms.fed_avg.federated_averaging(
    fedjax.model_grad(model),
    client_optimizer=fedjax.optimizers.sgd(job.eta),
    server_optimizer=fedjax.optimizers.sgd(1.0),
    client_batch_hparams=fedjax.ShuffleRepeatBatchHParams(batch_size=job.batch, num_epochs=None, num_steps=job.K),
)
*keys, first = jax.random.split(jax.random.PRNGKey(job.seed), job.m + 1)
state = algorithm.init(model.init(first))
clients = [(b"%d" % i, datasets[i], keys[i]) for i in range(job.m)]


def run_round() -> None:
    global state
    state, _ = algorithm.apply(state, clients)
    jax.block_until_ready(state)


jobs.report(jobs.time_rounds(job, run_round), threads=job.threads or os.cpu_count())
