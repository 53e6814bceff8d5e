"""Where observations are evaluated."""

import pytest
import torch
from torch import nn

from anisoscope import Scope
from anisoscope.errors import BrokenRuleError
from anisoscope.evaluate.remote import placement as where
from anisoscope.evaluate.remote.placement import Where
from capture.families import build


def test_a_model_on_the_host_is_evaluated_there():
    model = build("gpt2")
    assert Where("auto", model).device is None
    assert Where("host", model).device is None


def test_the_device_needs_a_gpu(monkeypatch):
    model = build("gpt2")
    with pytest.raises(BrokenRuleError, match="evaluate must be one of auto device host"):
        Scope(model, rank=4, evaluate="gpu")
    if not torch.cuda.is_available():
        with pytest.raises(BrokenRuleError, match="needs a GPU, got none on this machine; use 'host' or 'auto'"):
            Scope(model, rank=4, evaluate="device")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    with pytest.raises(BrokenRuleError, match="needs a model on a GPU, got cpu; move the model first"):
        _ = Where("device", model).device


@pytest.mark.parametrize(("spare", "free", "taken"), [(False, 0.5, True), (False, 0.01, False), (True, 0.5, False)])
def test_auto_takes_the_device_where_no_cores_are_spare_and_there_is_room(monkeypatch, spare, free, taken):
    class Parameter:
        is_cuda, device = True, torch.device("cuda", 0)

    model = nn.Linear(2, 2)
    monkeypatch.setattr(model, "parameters", lambda: iter([Parameter()]))
    monkeypatch.setattr(where, "cores_are_spare", lambda: spare)
    monkeypatch.setattr(where.torch.cuda, "mem_get_info", lambda device: (free * 1000, 1000))
    monkeypatch.setattr(where.torch.cuda, "memory_reserved", lambda device: 0)
    monkeypatch.setattr(where.torch.cuda, "memory_allocated", lambda device: 0)
    asked = Where("auto", model)
    assert (asked.device is not None) == taken
    monkeypatch.setattr(where.torch.cuda, "mem_get_info", lambda device: (0, 1000))
    assert (asked.device is not None) == taken  # settled
