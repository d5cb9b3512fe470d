"""The machine and the Ray that a study runs on."""
