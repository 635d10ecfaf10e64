"""Train a few steps on a point store: ``zarr-core first-step STORE``.

A small network predicts the fields of one domain at a point from its position. It shows that a store can be trained
from; the network is of no other use.
"""

from __future__ import annotations

from typing import Any

from zarr_core._util import command_line as cli
from zarr_core._util.redaction import redact
from zarr_core.errors import StoreError

app = cli.verb(
    "first-step",
    """
zarr-core first-step /data/store
zarr-core first-step s3://bucket/store --domain surface --steps 10
""",
)


def train(
    store: str, *, domain: str | None = None, steps: int = 3, points: int = 1024, limit: int = 8
) -> tuple[str, list[str], list[float]]:
    """Train on the first samples of a store, with new points in each step.

    Args:
        store: path or URL of a point store.
        domain: to train on, such as volume; by default the last of the store.
        steps: optimizer steps.
        points: points per sample and step.
        limit: at most N samples.

    Returns:
        The domain, the predicted fields (those that all these samples have), and the mean squared error of each step.
        Each field component is standardized per sample.

    Raises:
        StoreError: there is no point store, it has no samples or no such domain, or the samples share no field.
    """
    import numpy as np
    import torch

    from zarr_core.points.read.reader import ZarrChunkReader

    torch.manual_seed(0)
    reader = ZarrChunkReader(store)
    manifest = reader.manifest
    sample_ids = list(manifest.samples)[:limit]
    if not sample_ids or domain not in (None, *manifest.domains):
        which = f" with domain {domain}; its domains are {', '.join(manifest.domains)}" if domain else ""
        raise StoreError(f"{redact(store)} holds no samples{which}")
    domain = domain or list(manifest.domains)[-1]
    position = f"{domain}_position"
    columns = manifest.domains[domain].arrays
    shared = list(columns)
    for sample_id in sample_ids:
        fields = manifest.fields_of(sample_id)
        shared = [field for field in shared if field in fields]
    targets = [field for field in shared if field != position]
    if position not in shared or not targets:
        raise StoreError(
            f"the first {len(sample_ids)} samples of {redact(store)} share no field of {domain} to predict"
        )
    width = sum(columns[field].dim for field in targets)
    network = torch.nn.Sequential(
        torch.nn.Linear(columns[position].dim, 64), torch.nn.GELU(), torch.nn.Linear(64, width)
    )
    optimizer = torch.optim.AdamW(network.parameters(), lr=1e-3)
    losses = []
    for step in range(steps):
        errors = []
        for sample_id in sample_ids:
            drawn = reader.read_sample(sample_id, {domain: points}, [position, *targets], epoch=step)
            positions = torch.from_numpy(drawn.pop(position)).float()
            values = np.concatenate([drawn[field] for field in targets], axis=1)
            target = torch.from_numpy(values).float()
            target = (target - target.mean(dim=0)) / target.std(dim=0, correction=0).clamp_min(1e-6)
            errors.append(torch.nn.functional.mse_loss(network(positions), target))
        loss = torch.stack(errors).mean()
        optimizer.zero_grad()
        torch.autograd.backward(loss)
        optimizer.step()
        losses.append(loss.item())
    return domain, targets, losses


@app.default
@cli.command(train)
def _command(store: cli.Store, **arguments: Any) -> cli.Result:
    domain, targets, losses = train(store, **arguments)
    lines = []
    for step, loss in enumerate(losses, 1):
        lines.append(f"step {step}: loss {loss:.4f}")
    lines.append(f"predicted {', '.join(targets)} from {domain}_position")
    return cli.Result("\n".join(lines), {"domain": domain, "fields": targets, "losses": losses})


main = cli.program(app, __name__)
