//! Long histories, as real processes make them.
