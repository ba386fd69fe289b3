"""The web portal: a process of its own, which acts as its users do.

It knows the service by two doors alone: the management API (`penstock.management.client`) and, for
events, AMQP (`penstock.client`). `python -m penstock.portal` runs it; `penstock serve` starts it.
"""
