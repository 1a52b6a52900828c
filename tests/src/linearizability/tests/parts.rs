//! What the search is guided by, held against what it was concluded from.
