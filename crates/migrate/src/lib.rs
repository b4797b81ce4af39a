//! Room `migrate` of Terrace; see ARCHITECTURE.md.
