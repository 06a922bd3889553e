"""What `temper new` copies: plugins that work as they are and pass their contract. They say NAME for their name."""
