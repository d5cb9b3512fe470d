"""What is used of tensorboardX, which Ray Tune brings: the messages of event files, and their checksum.

No TensorBoard is needed to write its files. tensorboardX imports torch where it is installed, for what is not used
here: seconds and 200 MB in a process that only copies numbers.
"""

import sys
from importlib import import_module
from typing import Any


def _without_torch(*modules: str) -> tuple[Any, ...]:
    """Import modules as if torch were not installed; where it is imported already, nothing is saved."""
    hidden = "torch" not in sys.modules
    if hidden:
        sys.modules["torch"] = None  # type: ignore[assignment] # the import system's word for: there is none
    try:
        return tuple(import_module(f"tensorboardX.{module}") for module in modules)
    finally:
        if hidden:
            del sys.modules["torch"]


api, event, hparams, summary, tensor, tensor_shape, text, _records = _without_torch(
    "proto.api_pb2",
    "proto.event_pb2",
    "proto.plugin_hparams_pb2",
    "proto.summary_pb2",
    "proto.tensor_pb2",
    "proto.tensor_shape_pb2",
    "proto.plugin_text_pb2",
    "record_writer",
)


def checksum(data: bytes) -> int:
    """Return the masked CRC-32C of the TFRecord format."""
    value: int = _records.masked_crc32c(data)
    return value
