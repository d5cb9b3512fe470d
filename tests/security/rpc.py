"""One gRPC question by hand: what anybody on the network can send to a port, with no library of Ray's in between.

Frames after RFC 9113, headers after RFC 7541 (literals, neither indexed nor Huffman coded), messages after gRPC's own
"gRPC over HTTP2". The answer is returned as it came; gRPC's servers write `grpc-status` in plain letters.
"""

import socket
import struct

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, SETTINGS = 0, 1, 4
END_STREAM, END_HEADERS = 1, 4
UNAUTHENTICATED = "16"
"""gRPC's code of a request without a valid proof of who asks."""
OK, UNIMPLEMENTED, UNAVAILABLE = "0", "12", "14"


def answer_of(port: int, method: str, token: str | None, timeout_s: float = 3.0) -> bytes:
    """Ask `method`, with an empty message, of the server at a port of this machine; empty where nothing answers."""
    headers = [
        (":method", "POST"),
        (":scheme", "http"),
        (":path", method),
        (":authority", f"127.0.0.1:{port}"),
        ("te", "trailers"),
        ("content-type", "application/grpc"),
    ]
    if token is not None:
        headers.append(("authorization", f"Bearer {token}"))
    request = PREFACE + _frame(SETTINGS, 0, 0, b"")
    request += _frame(HEADERS, END_HEADERS, 1, b"".join(_literal(*header) for header in headers))
    request += _frame(DATA, END_STREAM, 1, bytes(5))  # not compressed, no bytes
    answer = b""
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=timeout_s) as connection:
            connection.sendall(request)
            while b"grpc-status" not in answer and (block := connection.recv(65536)):
                answer += block
    except OSError:  # a time-out, or a server that speaks something else
        pass
    return answer


def status_of(answer: bytes) -> str | None:
    """Return the code in an answer; None where it holds none."""
    _, found, rest = answer.partition(b"grpc-status")
    return rest[1 : 1 + rest[0]].decode() if found and rest else None


def _frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return struct.pack(">I", len(payload))[1:] + bytes([kind, flags]) + struct.pack(">I", stream) + payload


def _literal(name: str, value: str) -> bytes:
    return b"\0" + bytes([len(name)]) + name.encode() + bytes([len(value)]) + value.encode()
