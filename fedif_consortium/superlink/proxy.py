"""Settings of nginx in front of a SuperLink, made from one template.

nginx bounds what strangers can send: endless headers, bodies of one byte a second, handshakes that
nobody finishes, and too many connections or requests. It forwards the requests of SuperNodes and no
others. So the SuperLink's own port needs to be open to this host alone.
"""

from __future__ import annotations

from importlib.resources import files


def nginx_settings(listen: str, local: str, user: str) -> str:
    """Return nginx's settings for a federation's folder.

    Parameters
    ----------
    listen : str
        ``HOST:PORT`` at which nginx listens for members.
    local : str
        ``HOST:PORT`` of the SuperLink on this host, to which nginx forwards.
    user : str
        The user who owns the folder; if root starts nginx, its workers run as this user.
    """
    text = files(__package__).joinpath("nginx.conf").read_text()
    for name, value in {"listen": listen, "local": local, "user": user}.items():
        text = text.replace(f"@{name}@", value)
    return text
