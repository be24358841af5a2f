"""Many processes: those that train one network, joined over torch.distributed; workers of Ray for many images."""

from __future__ import annotations

from vitrail.scale.cost_model import Forecast, forecast
from vitrail.scale.process_group import joined

__all__ = ["Forecast", "forecast", "joined"]
