"""Flower's quickstart for PyTorch, with FedIF in place of FedAvg."""
