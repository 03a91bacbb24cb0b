"""Studies of certificates: synthetic populations, simulated streams, comparators, controls, and the null suite.

* `populations`: laws of score and loss by site; the two cells fitted to published figures are in `cells.json`;
* `streams`, `engine`: what a simulated calibration asks for, and all its trials at once;
* `schedules`: when the rule looks;
* `comparators`, `conformal`, `controls`: published methods and deliberately broken rules, none of which serves;
* `study`: how often a rule fires, when, and whether it was right;
* `null_suite`: the risk exactly at the target, on every kind of stream.
"""

__all__: list[str] = []
