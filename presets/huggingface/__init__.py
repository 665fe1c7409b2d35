"""Reader of Hugging Face `config.json` files: a configuration in, a `ModelSpec` out, or one clear line why not."""

from __future__ import annotations

from .registry import read_config, supported_types

__all__ = ["read_config", "supported_types"]
