"""Stations learn together to forecast the next hour."""
