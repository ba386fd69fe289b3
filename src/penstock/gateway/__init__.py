"""The doors: `amqp` and `http`. Each translates errors; neither knows the other."""
