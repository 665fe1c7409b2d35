"""What a model and a device are: the frozen spec types, the loader, one YAML file each, readers of other formats."""
