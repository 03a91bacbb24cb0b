"""Privacy accounting and certificates of `reticent`.

An auditor can install this package alone: it needs numpy, scipy and OpenDP, no model and no server.
Start with `notation.md`. Nothing is imported here, so that a user of one charge does not pay for the rest:

* `units`, `lattice`, `noise`: integers of 1e-9 nat, integer rewards, exact random draws;
* `charges`: what one step of a mechanism costs, one mechanism a file;
* `filter`: why charges add up, and how much of a budget may be spent.
"""

__all__: list[str] = []
