"""What RLlib's default networks lack: normalised observations and IMPALA's convolutions. Imports RLlib and torch.

Both are encoders that `StudyCatalog` builds in place of RLlib's, so that modules, heads and checkpoints stay RLlib's.
The methods that they replace, the catalog's `_get_encoder_config` and an encoder's `_forward`, are private in RLlib,
which has no public ones for it.
"""

import dataclasses
from collections.abc import Iterator
from typing import Any

import gymnasium
import torch
from ray.rllib.algorithms.ppo.ppo_catalog import PPOCatalog
from ray.rllib.core.columns import Columns
from ray.rllib.core.models.base import ENCODER_OUT, Encoder
from ray.rllib.core.models.configs import ModelConfig
from ray.rllib.core.models.torch.base import TorchModel
from torch import Tensor, nn

NORMALIZE, CONV_NET = "study_normalize_observations", "study_conv_net"
"""Keys of a model configuration beside RLlib's."""
_MIN_VARIANCE, LARGEST = 1e-8, 10.0
"""As Stable-Baselines3's VecNormalize has them."""
_CHANNELS, _FEATURES = (16, 32, 32), 256
"""Of IMPALA's large network, figure 3 of arXiv 1802.01561, without its LSTM."""

NATURE_FILTERS = ((32, 8, 4), (64, 4, 2), (64, 3, 1))
"""Filters, kernel, stride. Source: Mnih et al., Nature 518 (2015), Methods."""


class RunningMoments(nn.Module):
    """Running mean and variance of the observations so far; saved with the weights.

    Attributes:
        mean: Shape of one observation, double precision; 0 at first.
        variance: The same; 1 at first.
        count: Number of observations, shape (1,).
    """

    mean: Tensor
    variance: Tensor
    count: Tensor

    def __init__(self, shape: tuple[int, ...]) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(shape, dtype=torch.float64))
        self.register_buffer("variance", torch.ones(shape, dtype=torch.float64))
        self.register_buffer("count", torch.zeros(1, dtype=torch.float64))  # checkpoints hold arrays only

    @torch.no_grad()
    def add(self, observations: Tensor) -> None:
        """Add a batch of observations, shape (rows, …).

        Source:
            Chan, Golub and LeVeque, "Algorithms for computing the sample variance", 1983.
        """
        values, count, before = observations.double(), len(observations), float(self.count)
        mean = values.sum(dim=0) / count
        squares = (values - mean).square().sum(dim=0)
        total = before + count
        apart = mean - self.mean
        all_squares = self.variance * before + squares + apart.square() * (before * count / total)
        self.mean += apart * (count / total)
        self.variance.copy_(all_squares / total)
        self.count.fill_(total)


class ObservationNormalizer(RunningMoments):
    """(observation - mean) / deviation, clipped."""

    def forward(self, observations: Tensor) -> Tensor:
        """Return what the network sees, same shape."""
        scale, shift = self.scale_and_shift()
        return (observations * scale + shift).clamp(-LARGEST, LARGEST)

    def scale_and_shift(self) -> tuple[Tensor, Tensor]:
        """Return two tensors of an observation's shape, float32: x * scale + shift is normalised."""
        scale = 1 / (self.variance + _MIN_VARIANCE).sqrt()
        return scale.float(), (-self.mean * scale).float()


def normalizers_of(module: nn.Module) -> Iterator[ObservationNormalizer]:
    """Yield every normaliser of a module: policy and value function may each have one."""
    return (each for each in module.modules() if isinstance(each, ObservationNormalizer))


@dataclasses.dataclass
class NormalizedEncoderConfig(ModelConfig):
    """RLlib's encoder behind normalised observations."""

    inner: ModelConfig | None = None

    @property
    def output_dims(self) -> tuple[int, ...]:
        """Of the inner encoder."""
        assert self.inner is not None
        dims: tuple[int, ...] = self.inner.output_dims
        return dims

    def build(self, framework: str = "torch") -> "NormalizedEncoder":
        """Return the encoder."""
        return NormalizedEncoder(self)


class NormalizedEncoder(TorchModel, Encoder):
    """An encoder that normalises first."""

    def __init__(self, config: NormalizedEncoderConfig) -> None:
        super().__init__(config)
        assert config.inner is not None
        self.normalizer = ObservationNormalizer(tuple(config.input_dims))
        self.inner = config.inner.build(framework="torch")

    def _forward(self, input_dict: dict[str, Any], **kwargs: Any) -> dict[str, Any]:
        outputs: dict[str, Any] = self.inner({**input_dict, Columns.OBS: self.normalizer(input_dict[Columns.OBS])})
        return outputs


@dataclasses.dataclass
class ImpalaEncoderConfig(ModelConfig):
    """IMPALA's residual convolutions."""

    @property
    def output_dims(self) -> tuple[int, ...]:
        """One vector."""
        return (_FEATURES,)

    def build(self, framework: str = "torch") -> "ImpalaEncoder":
        """Return the encoder."""
        return ImpalaEncoder(self)


class ImpalaEncoder(TorchModel, Encoder):
    """Three times: a convolution, a pooling to half the size, two residual blocks; then one dense layer."""

    def __init__(self, config: ImpalaEncoderConfig) -> None:
        super().__init__(config)
        height, width, channels = config.input_dims
        layers: list[nn.Module] = []
        for filters in _CHANNELS:
            layers += [
                nn.Conv2d(channels, filters, 3, padding=1),
                nn.MaxPool2d(3, stride=2, padding=1),
                _Residual(filters),
                _Residual(filters),
            ]
            height, width, channels = (height + 1) // 2, (width + 1) // 2, filters
        flat = height * width * channels
        self.net = nn.Sequential(*layers, nn.ReLU(), nn.Flatten(), nn.Linear(flat, _FEATURES), nn.ReLU())

    def _forward(self, input_dict: dict[str, Any], **kwargs: Any) -> dict[str, Any]:
        return {ENCODER_OUT: self.net(input_dict[Columns.OBS].permute(0, 3, 1, 2))}


class _Residual(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.net = nn.Sequential(
            nn.ReLU(),
            nn.Conv2d(channels, channels, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(channels, channels, 3, padding=1),
        )

    def forward(self, images: Tensor) -> Tensor:
        changed: Tensor = self.net(images)
        return images + changed


class StudyCatalog(PPOCatalog):
    """RLlib's catalog of networks, with ours."""

    @classmethod
    def _get_encoder_config(
        cls,
        observation_space: gymnasium.Space,
        model_config_dict: dict[str, Any],
        action_space: gymnasium.Space | None = None,
    ) -> ModelConfig:
        inner: ModelConfig
        if model_config_dict.get(CONV_NET) == "impala":
            inner = ImpalaEncoderConfig(input_dims=observation_space.shape)
        else:
            inner = super()._get_encoder_config(observation_space, model_config_dict, action_space)
        if model_config_dict.get(NORMALIZE):
            return NormalizedEncoderConfig(input_dims=observation_space.shape, inner=inner)
        return inner
