"""Calibration over HTTP. Nothing is imported here, so that a site does not load the server.

* `server`: the application that opens rounds; `keys`: whose key is whose;
* `client`: a site's side.
"""

__all__: list[str] = []
