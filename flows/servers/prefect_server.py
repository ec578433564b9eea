"""Prefect's server, which answers only requests to the host names 127.0.0.1 and localhost.

`python -m flows.servers.prefect_server --host …` takes the options of `prefect server start`. In a
DNS rebinding attack a foreign page's name resolves to 127.0.0.1, so that it has the same origin as
the server, but its requests still carry its name.
"""

import sys
from typing import Any

from starlette.middleware.trustedhost import TrustedHostMiddleware

NAMES = ("127.0.0.1", "localhost")


def main() -> None:
    """Run `prefect server start` with an app that refuses requests for host names not in NAMES."""
    from prefect.cli import app as cli
    from prefect.server.api import server

    create_app = server.create_app

    def create_app_for_own_names(**options: Any) -> TrustedHostMiddleware:
        return TrustedHostMiddleware(create_app(**options), NAMES)

    server.create_app = create_app_for_own_names  # type: ignore[assignment]
    sys.argv[1:] = ["server", "start", *sys.argv[1:]]
    cli()


if __name__ == "__main__":
    main()
