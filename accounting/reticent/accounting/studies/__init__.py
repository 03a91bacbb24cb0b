"""Studies: simulations and real records that show what the rules do. Nothing here serves, releases or charges.

numpy's generators draw records and noise here, from seeds; no number drawn here is ever privacy noise.
"""

__all__: list[str] = []
