"""What a file holds of a posterior over images: its network's input, the scan, and draws if they were made."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final, get_type_hints

from jaxtyping import Float
from torch import Tensor

from lapwing.ct.geometry import Geometry
from lapwing.ct.observed import Measurement, Observed, linear_image, single_chunk
from lapwing.ct.projector import Projector
from lapwing.ct.whitened import Whitened, unwhitened
from lapwing.ground.errors import DataError, UnsupportedError
from lapwing.ground.files.archive import Json
from lapwing.ground.files.records import REPAIR, Records
from lapwing.jacobian.network.network import Network
from lapwing.jacobian.products.linearisation import Linearisation
from lapwing.likelihoods import Likelihood

ANGLES = get_type_hints(Geometry)["angles"]
"""The field of a geometry that is kept beside it."""


@final
@dataclass(frozen=True, eq=False)
class ScanRecord:
    """What the posterior stands on, its network aside."""

    z: Float[Tensor, "1 c *space"]
    sinogram: Float[Tensor, " rows"]
    fitted: Likelihood
    geometry: Geometry
    angles: Float[Tensor, " angles"]
    examples: int | None
    memory: int
    deviations: Float[Tensor, "s pixels"] | None
    std: Float[Tensor, " rows"] | None


def network_of(observed: Observed) -> Network:
    """The network behind an image.

    Raises:
        UnsupportedError: If no file holds what is around it.
    """
    image = observed.image
    operator, _ = unwhitened(observed.operator)
    if not isinstance(image, Linearisation) or not isinstance(operator, Projector):
        came = f"a {type(image).__name__} seen by a {type(operator).__name__}"
        raise UnsupportedError("a network's own weights, seen by a Projector", came, "saving the network, to fit again")
    return image.model.network


def scan_record(observed: Observed, deviations: Float[Tensor, "s pixels"] | None, records: Records) -> Json:
    """The network's input and the scan; draws where they were made."""
    operator, std = unwhitened(observed.operator)
    z = single_chunk(observed.image, 1).inputs
    assert isinstance(operator, Projector)
    assert isinstance(z, Tensor)
    scan = ScanRecord(
        z=z,
        sinogram=observed.targets,
        fitted=observed.likelihood,
        geometry=operator.geometry,
        angles=operator.geometry.theta,
        examples=observed.examples,
        memory=observed.memory,
        deviations=deviations,
        std=std,
    )
    return records.giving({ANGLES: None}).state(scan, "observed")


def scan_of(record: Json, records: Records, network: Network) -> tuple[Observed, Float[Tensor, "s pixels"] | None]:
    """The rays through a network's image, and draws of it if they were made.

    Raises:
        DataError: If none give the record.
    """
    state = record.get("observed")
    angles = records.on("cpu").read(Tensor, state.get("angles") if isinstance(state, dict) else None, "observed.angles")
    scan: ScanRecord = records.giving({ANGLES: angles}).read(ScanRecord, state, "observed")
    operator: Measurement = Projector(scan.geometry, scan.sinogram.dtype, network.like.device)
    if scan.std is not None:
        operator = Whitened(operator, scan.std)
    image = linear_image(network.module, scan.z)
    if image.model.network.names != network.names:
        raise DataError(f"uncertain weights {list(network.names)[:3]} of an image", "others", REPAIR)
    return Observed(image, operator, scan.sinogram, scan.fitted, scan.examples, scan.memory), scan.deviations
