"""What one step costs: one mechanism a file, every charge a bound in nats at the data set's order α.

A charge c(outcome) is admissible when E under D of exp((α-1)(log P_D/P_D' - c)) ≤ 1 for all adjacent D, D'
(privacy.md, section 5); `reticent.accounting.filter` says what follows from that.
"""

__all__: list[str] = []
