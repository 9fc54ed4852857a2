"""The Hugging Face shell, written once for every architecture: configuration, backbone, heads, cache, Auto classes, importers."""
