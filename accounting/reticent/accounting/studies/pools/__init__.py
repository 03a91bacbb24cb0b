"""What selection rules do on a pool of scored answers: `reticent simulate`.

* `files`: pool files, with a true reward for every answer;
* `groups`: one prompt's answers, put together by reward;
* `question`: which rules with which parameters, and the budget;
* `order_statistics`, `noisy_best`: the law of the answer of best-of-n and of PrivBoN, exact;
* `blocks`, `pessimism`: ITP and PrivITP, exact given λ*, whose law is sampled;
* `round_charges`: what PrivITP's rounds cost, quickly;
* `run`, `results`: all prompts, with a checkpoint, and the table;
* `replicates`: the rules themselves, played by chance, as a check;
* `choose`: parameters from one half of the prompts, judged on the other.
"""

__all__: list[str] = []
