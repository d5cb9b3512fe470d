"""IMPALA's convolutions, which RLlib's networks lack, and those of DQN. Imports RLlib and torch.

`StudyCatalog` builds the encoder in place of RLlib's, so that modules, heads and checkpoints stay RLlib's. The methods
that are replaced, the catalog's `_get_encoder_config` and an encoder's `_forward`, are private in RLlib, which has no
public ones for it.
"""

import dataclasses
from typing import Any

import gymnasium
from ray.rllib.algorithms.ppo.ppo_catalog import PPOCatalog
from ray.rllib.core.columns import Columns
from ray.rllib.core.models.base import ENCODER_OUT, Encoder
from ray.rllib.core.models.configs import ModelConfig
from ray.rllib.core.models.torch.base import TorchModel
from torch import Tensor, nn

CONV_NET = "study_conv_net"
"""Key of a model configuration beside RLlib's."""
NATURE_FILTERS = ((32, 8, 4), (64, 4, 2), (64, 3, 1))
"""Filters, kernel, stride. Source: Mnih et al., Nature 518 (2015), Methods."""
_CHANNELS, _FEATURES = (16, 32, 32), 256
"""Of IMPALA's large network, figure 3 of arXiv 1802.01561, without its LSTM."""


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
            pooling = nn.MaxPool2d(3, stride=2, padding=1)
            layers += [_convolution(channels, filters), pooling, _Residual(filters), _Residual(filters)]
            height, width, channels = (height + 1) // 2, (width + 1) // 2, filters
        flat = height * width * channels
        self.net = nn.Sequential(*layers, nn.ReLU(), nn.Flatten(), nn.Linear(flat, _FEATURES), nn.ReLU())

    def _forward(self, input_dict: dict[str, Any], **kwargs: Any) -> dict[str, Any]:
        return {ENCODER_OUT: self.net(input_dict[Columns.OBS].permute(0, 3, 1, 2))}


class _Residual(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        first, second = _convolution(channels, channels), _convolution(channels, channels)
        self.net = nn.Sequential(nn.ReLU(), first, nn.ReLU(), second)

    def forward(self, images: Tensor) -> Tensor:
        changed: Tensor = self.net(images)
        return images + changed


def _convolution(inputs: int, outputs: int) -> nn.Conv2d:
    return nn.Conv2d(inputs, outputs, 3, padding=1)


class StudyCatalog(PPOCatalog):
    """RLlib's catalog of networks, with IMPALA's."""

    @classmethod
    def _get_encoder_config(
        cls,
        observation_space: gymnasium.Space,
        model_config_dict: dict[str, Any],
        action_space: gymnasium.Space | None = None,
    ) -> ModelConfig:
        if model_config_dict.get(CONV_NET) == "impala":
            return ImpalaEncoderConfig(input_dims=observation_space.shape)
        config: ModelConfig = super()._get_encoder_config(observation_space, model_config_dict, action_space)
        return config
