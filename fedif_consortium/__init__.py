"""What parties add who do not trust each other: evidence, masks, policies, statements.

Each room is a part of a run, a command, or both; none of them is needed by ``fedif_flower``, which
imports none.
"""

import logging

# What it logs is shown, and filtered, with what the library logs.
logging.getLogger(__name__).parent = logging.getLogger("fedif_flower")
