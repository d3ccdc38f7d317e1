"""What a file holds of a posterior over images: its network's input, the scan, its choices, and draws if made."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, final, get_type_hints

from jaxtyping import Float
from torch import Tensor

from lapwing.ct import Geometry, ImagePosterior, Observed, Projector, linear_image
from lapwing.ct.observed import only
from lapwing.ground.errors import DataError, UnsupportedError
from lapwing.ground.files.archive import Json, Tensors
from lapwing.ground.files.records import REPAIR
from lapwing.jacobian.network.network import Network
from lapwing.jacobian.products.linearisation import Linearisation
from lapwing.likelihoods import Likelihood
from lapwing.store.fits import records

ANGLES = get_type_hints(Geometry)["angles"]
"""The field of a geometry that is kept beside it."""


@final
@dataclass(frozen=True, eq=False)
class ImageFields:
    """What the posterior stands on, its network aside."""

    z: Float[Tensor, "1 c *space"]
    sinogram: Float[Tensor, " rows"]
    fitted: Likelihood
    geometry: Geometry
    angles: Float[Tensor, " angles"]
    examples: int | None
    memory: int
    deviations: Float[Tensor, "s pixels"] | None


def image_network(posterior: ImagePosterior) -> Network:
    """The network behind it.

    Raises:
        UnsupportedError: If no file holds what is around it.
    """
    image, operator = posterior.observed.image, posterior.observed.operator
    if not isinstance(image, Linearisation) or not isinstance(operator, Projector):
        came = f"a {type(image).__name__} seen by a {type(operator).__name__}"
        raise UnsupportedError("a network's own weights, seen by a Projector", came, "saving the network, to fit again")
    return image.model.network


def image_state(posterior: ImagePosterior, tensors: Tensors) -> Json:
    """Everything but the network; draws where they were made."""
    observed, operator = posterior.observed, posterior.observed.operator
    assert isinstance(operator, Projector)
    geometry, drawn = operator.geometry, vars(posterior).get("deviations")
    z = only(observed.image, 1).inputs
    assert isinstance(z, Tensor)
    kept = ImageFields(
        z, observed.targets, observed.likelihood, geometry, geometry.theta, observed.examples, observed.memory, drawn
    )
    own = records(tensors, given={Observed: None}).state(posterior)
    return own | {"observed": records(tensors, given={ANGLES: None}).state(kept, "observed")}


def image_from(header: Json, tensors: Tensors, network: Network) -> ImagePosterior:
    """The posterior of a header, around a network.

    Raises:
        DataError: If none gives it.
    """
    device, state = network.like.device, header.get("observed")
    angles = records(tensors).read(Tensor, state.get("angles") if isinstance(state, dict) else None, "observed.angles")
    kept: ImageFields = records(tensors, device, {ANGLES: angles}).read(ImageFields, state, "observed")
    operator = Projector(kept.geometry, kept.sinogram.dtype, device)
    image = linear_image(network.module, kept.z)
    observed = Observed(image, operator, kept.sinogram, kept.fitted, kept.examples, kept.memory)
    if image.model.network.names != network.names:
        raise DataError(f"uncertain weights {list(network.names)[:3]} of an image", "others", REPAIR)
    found: Any = records(tensors, device, {Observed: observed}).read(ImagePosterior, header, "")
    found.prior.diagonal(observed.layout, observed.weights)
    if kept.deviations is not None:
        if kept.deviations.shape != (found.samples, image.event.numel()):
            expected = f"{found.samples} draws of {image.event.numel()} pixels"
            raise DataError(expected, f"{list(kept.deviations.shape)}", REPAIR)
        vars(found)["deviations"] = kept.deviations
    return found
