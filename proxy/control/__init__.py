"""The control port: metrics, health and the admin API, one module per subject.

`access` says who may use it: `require(scope)` is the dependency by which a route asks for a token and learns its
holder's name. `app` puts the routes of the other modules together.
"""

from proxy.control.access import require
from proxy.control.app import control_app

__all__ = ["control_app", "require"]
