"""What a federation needs whose parties distrust each other: evidence, masks, policies, statements.

Each subpackage adds parts to a run, commands to ``fedif``, or both. The library ``fedif_flower``
imports none of them and works without them.
"""

import logging

# Log messages of this package are shown, and filtered, with those of the library.
logging.getLogger(__name__).parent = logging.getLogger("fedif_flower")
