"""Reading and writing what other stacks know: configs, engines, models."""
