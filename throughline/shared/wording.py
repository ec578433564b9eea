"""Words that many messages share."""

import json
import re
from collections.abc import Sequence

_PLAIN = re.compile(r"(?!(?i:null|true|false)$)[^\W\d]\w*")  # YAML reads it as this text


def name_some(names: Sequence[str], *, most: int = 12) -> str:
    """Join the first `most` names with commas, and add how many more there are.

    >>> name_some(["height", "width"]), name_some([str(number) for number in range(784)], most=3)
    ('height, width', '0, 1, 2 and 781 more')
    """
    more = len(names) - most
    return ", ".join(names[:most]) + (f" and {more:,} more" if more > 0 else "")


def write_name(name: str) -> str:
    """Return a name as it is written in YAML, in quotes if necessary.

    >>> print(write_name("price"), write_name("lot size"))
    price "lot size"
    """
    return name if _PLAIN.fullmatch(name) else json.dumps(name, ensure_ascii=False)
