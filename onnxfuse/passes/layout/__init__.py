"""Channels-last layout: choice of regions, and the channels-last form of each operator."""
