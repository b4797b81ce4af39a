//! Room `terrace` of Terrace; see ARCHITECTURE.md.
