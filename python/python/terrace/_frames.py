"""pandas, if it is there."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Dict, List

if TYPE_CHECKING:
    import pandas


def frame(rows: List[Dict[str, Any]]) -> "pandas.DataFrame":
    """Rows as a DataFrame.

    Raises:
        ImportError: pandas is not installed.
    """
    try:
        import pandas
    except ImportError as error:
        raise ImportError("DataFrames need pandas: pip install 'terrace[frames]'") from error
    return pandas.DataFrame(rows)
