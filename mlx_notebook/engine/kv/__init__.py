"""How a row's keys and values are stored other than as they are."""
