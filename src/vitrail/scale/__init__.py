"""Many processes that train one network: joined over torch.distributed, and started on one machine."""

from __future__ import annotations

from vitrail.scale.cost_model import Forecast, forecast
from vitrail.scale.process_group import joined

__all__ = ["Forecast", "forecast", "joined"]
