"""nginx in front of a SuperLink: its settings, made from one template.

Headers without end, bodies a byte a second, handshakes that nobody finishes, connections and
requests without number are what nginx is there for. It hands on what SuperNodes send and nothing
else, so that the SuperLink's own port may be for this host alone.
"""

from __future__ import annotations

from importlib.resources import files


def nginx_settings(listen: str, local: str, user: str) -> str:
    """Return nginx's settings for a federation's folder.

    Parameters
    ----------
    listen : str
        ``HOST:PORT`` for members.
    local : str
        ``HOST:PORT`` of the SuperLink, on this host.
    user : str
        Whose the folder is.
    """
    text = files(__package__).joinpath("nginx.conf").read_text()
    for name, value in {"listen": listen, "local": local, "user": user}.items():
        text = text.replace(f"@{name}@", value)
    return text
