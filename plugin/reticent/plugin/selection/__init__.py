"""Selection rules, one a file. `rules.build_rule` makes one from the configuration."""
