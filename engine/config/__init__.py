"""What a checkpoint's config.json says, checked, and the engine's own limits."""

from __future__ import annotations

from engine.config.limits import EngineLimits, resolve_limits
from engine.config.model import LayerRole, ModelConfig
from engine.config.parse import load_model_config

__all__ = ["EngineLimits", "LayerRole", "ModelConfig", "load_model_config", "resolve_limits"]
