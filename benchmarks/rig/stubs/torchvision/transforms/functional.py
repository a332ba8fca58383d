def __getattr__(name):
    if name == "InterpolationMode":
        from torchvision.transforms import InterpolationMode  # noqa: PLC0415

        return InterpolationMode
    if name.startswith("__"):
        raise AttributeError(name)

    def missing(*arguments, **keywords):
        raise NotImplementedError(f"torchvision stub: {name}")

    return missing
