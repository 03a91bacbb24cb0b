"""Calibration over HTTP: the server that opens rounds, and the client of a site."""

from reticent.plugin.calibration.client import CalibrationClient, ServerProblem, Standing
from reticent.plugin.calibration.keys import SiteKeys, load_site_keys
from reticent.plugin.calibration.server import create_calibration_app

__all__ = [
    "CalibrationClient",
    "ServerProblem",
    "SiteKeys",
    "Standing",
    "create_calibration_app",
    "load_site_keys",
]
