//! The janitor.

pub mod rebuild;
pub mod slots;
