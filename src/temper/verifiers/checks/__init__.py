"""What runs in a pool worker (or, `driver`, in a sandbox): plain functions over plain data, without numpy or torch."""
