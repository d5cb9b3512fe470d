"""What is used of tensorboardX, which Ray Tune brings: the messages of event files, and their checksum.

No TensorBoard is needed to write its files. tensorboardX imports torch where it is installed, for what is not used
here: seconds and 200 MB in a process that only copies numbers.
"""

from study.seams.tensorboardx import without_torch

api, event, hparams, summary, tensor, tensor_shape, text, _records = without_torch(
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
