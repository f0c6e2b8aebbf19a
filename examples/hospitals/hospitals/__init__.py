"""Hospitals learn together to tell malignant from benign tumours."""
