//! Room `cache` of Terrace; see ARCHITECTURE.md.
