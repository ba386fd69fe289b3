"""The network endpoints: `amqp` and `http`. Each translates errors; neither imports the other."""
