"""Objects full of tensors between two processes: the tensors as plain bytes beside the pickle of the rest.

Torch's own way goes through shared memory, of which a container often has little. Both ends are ours: a pickle from
anywhere else is never read.
"""

from __future__ import annotations

import io
import pickle
from multiprocessing.connection import Connection
from typing import Any

import torch
from torch import Tensor


class _Packer(pickle.Pickler):
    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file, protocol=pickle.HIGHEST_PROTOCOL)
        self.tensors: list[Tensor] = []

    def persistent_id(self, obj: Any) -> Any:
        if not isinstance(obj, Tensor):
            return None
        self.tensors.append(obj.detach().contiguous())
        return len(self.tensors) - 1, obj.dtype, tuple(obj.shape)


class _Unpacker(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, contents: list[Tensor]) -> None:
        super().__init__(file)
        self._contents = contents

    def persistent_load(self, pid: Any) -> Tensor:
        number, dtype, shape = pid
        return self._contents[number].view(dtype).reshape(shape)


def send(connection: Connection, obj: object) -> None:
    """Send an object; its tensors must be on the host."""
    file = io.BytesIO()
    packer = _Packer(file)
    packer.dump(obj)
    contents = [tensor.reshape(-1).view(torch.uint8) for tensor in packer.tensors]
    connection.send([content.numel() for content in contents])
    for content in contents:
        if content.numel():
            connection.send_bytes(content.numpy().data)
    connection.send_bytes(file.getvalue())


def receive(connection: Connection) -> Any:
    """The next object; ``EOFError`` if the other side is gone."""
    contents = [torch.empty(size, dtype=torch.uint8, device="cpu") for size in connection.recv()]
    for content in contents:
        if content.numel():
            connection.recv_bytes_into(content.numpy())
    return _Unpacker(io.BytesIO(connection.recv_bytes()), contents).load()
